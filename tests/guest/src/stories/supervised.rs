//! The supervisor while containers call: killed, restarted, retired, and under load.

use std::process::{Child, Stdio};

use crate::container::enter_command;
use crate::stories::common::*;

const ITS_LIFE: &str = "the supervisor's own life";

pub const STORIES: &[Story] = &[
    story!(scene killed_supervisor_loses_no_call, [7];
        "The supervisor gets SIGKILL over and over under nine callers in three containers: no call fails, hangs or \
        is answered wrong.")
    .notify(ITS_LIFE)
    .eras(&[0, 4], "the supervisor's life does not follow the era: played in 0 and 4"),
    story!(restarted_supervisor_loses_no_call, [7];
        "The same with `again`, the way in which it is upgraded.")
    .notify(ITS_LIFE)
    .eras(&[0, 4], "the supervisor's life does not follow the era: played in 0 and 4"),
    story!(scene retired_supervisor_passes_calls_on, [5, 7];
        "The supervisor is retired and resumed under callers: each answer is right or the bare driver's; a runtime's \
        exec still works meanwhile.")
    .notify(ITS_LIFE)
    .eras(&[0, 4], "it retires alike in every era: played in 0 and 4, where the bare driver's list is another"),
    story!(sixty_four_containers_are_right_under_load, [1, 7];
        "64 PID namespaces at once are each answered right; eight callers that never pause in one of them delay the \
        others sixfold, or by ten seconds, at most.")
    .notify(ITS_LIFE)
    .eras(&[0, 4], "the supervisor's life does not follow the era: played in 0 and 4"),
    story!(up_status_down_control_the_supervisor, [5, 7];
        "`mpu up --engine notify`, `status` and `down` by the real command, without systemd: state, counters and \
        exit codes; retired while a container lives, up again, ended with the last.")
    .notify(ITS_LIFE)
    .kernel_story(),
    story!(concurrent_starts_leave_one_supervisor, [7];
        "Two `mpu up` at once, and one right after SIGKILL of the supervisor: there is one keeper, counters and \
        `since` continue, the crash is counted, and log lines have times.")
    .notify(ITS_LIFE)
    .kernel_story(),
];

fn killed_supervisor_loses_no_call(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    under_load(stage, &|pid| {
        // No supervisor takes a caller that comes between the stop and the kill; the next supervisor takes it.
        run_ok(&["kill", "-STOP", &pid.to_string()])?;
        let newcomer = spawn(&scene.b.enter_command(), &["nvctl", "pids"])?;
        std::thread::sleep(Duration::from_millis(100));
        run_ok(&["kill", "-9", &pid.to_string()])?;
        supervisor::wait_until("no process takes the killed supervisor's place", || {
            Ok(supervisor::pid()?.is_some_and(|new| new != pid))
        })?;
        check_pids("to a newcomer, the list", &answer_of(newcomer)?.pids(), &[scene.other.view_pid])
    })
}

fn restarted_supervisor_loses_no_call(stage: &Stage) -> Result<(), Fault> {
    under_load(stage, &|pid| {
        supervisor::send("again\n")?;
        Ok(supervisor::wait_until("no process takes the place of the supervisor that makes room", || {
            Ok(supervisor::pid()?.is_some_and(|new| new != pid))
        })?)
    })
}

fn under_load(stage: &Stage, strike: &dyn Fn(u32) -> Result<(), Fault>) -> Result<(), Fault> {
    let scene = stage.scene()?;
    check_own_list(&scene, "the list")?;
    let third = stage.container("third")?;
    let holder = third.hold(&["--mem", "20"])?;
    let own = pid_words(&scene.own());
    let spin = |own: &str| format!("nvctl spin 2 {own}");
    let callers = [
        Callers::start(&scene.a, 3, &spin(&own))?,
        Callers::start(&scene.b, 3, &spin(&scene.other.view_pid.to_string()))?,
        Callers::start(&third, 3, &spin(&holder.view_pid.to_string()))?,
    ];
    let struck: Result<(), Fault> = (0..2 * stage.reloads).try_for_each(|_| {
        std::thread::sleep(Duration::from_millis(30));
        strike(supervisor::pid()?.context("no supervisor")?)
    });
    let texts = callers.into_iter().map(Callers::stop).collect::<Result<Vec<_>>>()?;
    struck?;
    for text in texts {
        check_answers("while the supervisor was struck", &text, 30)?;
    }
    check_no_caller_inside(stage)?;
    check_own_list(&scene, "the list")
}

fn retired_supervisor_passes_calls_on(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    check_own_list(scene, "the list")?;
    let own = pid_words(&scene.own());
    let bare = pid_words(&stage.with_engine_off(|| scene.a.query(&["pids"]))??.pids());
    check!(bare != own, "the bare driver shows {bare}, which is right");
    let callers = Callers::start(&scene.a, 4, &format!("nvctl spin 1 {bare} or {own}"))?;
    let retired: Result<()> = (0..stage.reloads).try_for_each(|_| {
        stage.with_engine_off(|| std::thread::sleep(Duration::from_millis(200)))?;
        std::thread::sleep(Duration::from_millis(200));
        Ok(())
    });
    // A runtime that enters a running container finds the socket that the container's configuration names.
    let entered = stage.with_engine_off(|| run_ok(&["crun", "exec", "a", "nvctl", "pids"]))??;
    let text = callers.stop()?;
    retired?;
    check!(
        pid_words(&nvctl::read(&entered)?.pids()) == bare,
        "retired, an exec shows {entered}, the bare driver {bare}"
    );
    check_both_lists_answered(&text)?;
    check_own_list(scene, "resumed, the list")
}

/// For a story that starts and ends supervisors itself: ends the stage's own.
fn end_supervisor(stage: &Stage) -> Result<(), Fault> {
    check_own_list(&*stage.scene()?, "the list")?;
    stage.clear_scene();
    Ok(stage.unload_engine()?)
}

fn up_status_down_control_the_supervisor(stage: &Stage) -> Result<(), Fault> {
    end_supervisor(stage)?;
    let mpu = |words: &str| run(&[&["mpu"], &words.split(' ').collect::<Vec<_>>()[..]].concat());
    let status = mpu("status --json")?;
    check!(valid_answer(&status)?["up"] == false && status.status == 3, "nothing is up, status says {}", status.out);
    let up = mpu("up --engine notify --json")?;
    check!(up.status == 0 && valid_answer(&up)?["result"] == "started", "up says {} {} {}", up.status, up.out, up.err);
    {
        let container = stage.container("box")?;
        let holder = container.hold(&["--mem", "40", "--clients", "2"])?;
        check_list(&container, "in a container of its, the list", &[holder.view_pid])?;
        let counted = stage.counter("translated.GPU_GET_PIDS");
        let status = valid_answer(&mpu("status --json")?)?;
        check!(status["up"] == true && status["engine"] == "notify", "it is up, status says {status}");
        check!(
            counted.is_some() && status["translated"]["GPU_GET_PIDS"].as_u64() == counted,
            "{counted:?} calls were counted, status says {status}"
        );
        check_exit("a second up", &mpu("up --engine notify")?, 0, "nothing was changed")?;
        check_exit("down", &mpu("down")?, 0, "still has its filter")?;
        let status = mpu("status --json")?;
        check_exit("retired, status", &status, 3, "")?;
        check!(
            valid_answer(&status)?["notify_state"]["state"] == "retired",
            "it is retired, status says {}",
            status.out
        );
        check_exit("up after down", &mpu("up --engine notify")?, 0, "takes new containers again")?;
        check_list(&container, "after that, the list", &[holder.view_pid])?;
    }
    for expected in ["MPU is down", "nothing was changed"] {
        check_exit("down", &mpu("down")?, 0, expected)?;
        check!(supervisor::pid()?.is_none(), "after down a supervisor is there, which has no container");
    }
    Ok(())
}

fn concurrent_starts_leave_one_supervisor(stage: &Stage) -> Result<(), Fault> {
    end_supervisor(stage)?;
    let both =
        "mpu up --engine notify >/run/up.1 2>&1 & mpu up --engine notify >/run/up.2 2>&1; s=$?; wait $! && exit $s";
    let log = || {
        let read = |file| std::fs::read_to_string(file).unwrap_or_default();
        format!("{} / {}", read("/run/up.1"), read("/run/up.2"))
    };
    check!(run(&["sh", "-c", both])?.status == 0, "of two starts at once one fails: {}", log());
    // A start that finds another retries for half a second: a process that only checks also holds the lock.
    std::thread::sleep(Duration::from_secs(2));
    let one = wait_until("two starts at once leave several keepers", || Ok(keepers() == 1));
    check!(one.is_ok(), "{one:?}: {} are left: {}", keepers(), log());
    let container = stage.container("box")?;
    let holder = container.hold(&["--mem", "40"])?;
    check_list(&container, "in a container of its, the list", &[holder.view_pid])?;
    let before = supervisor::state()?.context("no supervisor")?;
    run_ok(&["kill", "-9", &before["pid"].to_string()])?;
    let up = run(&["mpu", "up", "--engine", "notify"])?;
    check!(up.status == 0, "after a crash `mpu up` says {} {}", up.out, up.err);
    std::thread::sleep(Duration::from_secs(2));
    let one = wait_until("a start after a crash leaves several keepers", || Ok(keepers() == 1));
    check!(one.is_ok(), "{one:?}: {} are left: {}{}", keepers(), up.out, up.err);
    let after = supervisor::state()?.context("no supervisor")?;
    check!(
        after["pid"] != before["pid"] && after["since"] == before["since"],
        "it began {after}, the one before {before}"
    );
    check!(after["restarts"] == 1 && after["restarts_last_hour"] == 1, "the crash was counted: {after}");
    let counted = |state: &serde_json::Value| state["translated"]["GPU_GET_PIDS"].as_u64().unwrap_or(0);
    check!(counted(&after) > 0 && counted(&after) >= counted(&before), "counters start again: {after} after {before}");
    check_list(&container, "after the crash, the list", &[holder.view_pid])?;
    let log = std::fs::read_to_string("/run/mpu/notify/log")?;
    let dated = |line: &str| line.starts_with("20") && line.get(10..11) == Some("T");
    check!(log.lines().count() > 0 && log.lines().all(dated), "the log has lines without a time: {log}");
    Ok(())
}

fn keepers() -> usize {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let commands = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    commands.filter(|command| command.windows(12).any(|words| words == b"notify\0hold\0")).count()
}

const MANY: usize = 64;
/// Eight callers without a pause, and the supervisor's threads for them, may slow the others by this factor.
const SLOWER: u32 = 6;
/// Always permitted: the machine is emulated and has more callers than processors.
const SLOW: Duration = Duration::from_secs(10);

fn sixty_four_containers_are_right_under_load(_: &Stage) -> Result<(), Fault> {
    let _foreign = Holder::on_host(&["--mem", "30"])?;
    let members = (0..MANY).map(|_| Member::start()).collect::<Result<Vec<_>>>()?;
    let mut quiet = query_from_all(&members, "quiet")?;
    quiet.sort_unstable();
    let hammer = members[0].spawn(&["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do nvctl spin 600 1 & done; wait"])?;
    let hammered = query_from_all(&members[1..], "hammered");
    end(hammer)?;
    let worst = hammered?.into_iter().max().unwrap_or_default();
    let limit = SLOW.max(SLOWER * quiet[quiet.len() / 2]);
    check!(worst < limit, "hammered, eight were answered within {worst:?}; quiet, within {quiet:?}");
    Ok(())
}

/// A PID namespace with one GPU process, which is its process 1.
struct Member {
    _holder: Holder,
    init: u32,
}

impl Member {
    fn start() -> Result<Self> {
        let new = ["unshare", "-p", "-m", "-f", "--mount-proc", "gpu-hold", "--clients", "2", "--mem", "5"];
        let holder = Holder::start(&[supervisor::join_command(), &new].concat(), |_| Ok(0))?;
        let init = processes::deepest_descendant(holder.started());
        Ok(Self { _holder: holder, init })
    }

    fn spawn(&self, words: &[&str]) -> Result<Child> {
        spawn(&enter_command(self.init), words)
    }
}

fn spawn(entered: &[String], words: &[&str]) -> Result<Child> {
    let mut command = command(&behind(entered, words));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start a caller")
}

fn answer_of(mut caller: Child) -> Result<nvctl::Answer> {
    // Its few lines fit into the pipe.
    wait_for_end(&mut caller)?;
    let done = caller.wait_with_output()?;
    nvctl::read(&String::from_utf8_lossy(&done.stdout))
}

/// Queries from all members, eight at a time. Returns the time of each eight.
fn query_from_all(members: &[Member], when: &str) -> Result<Vec<Duration>, Fault> {
    let mut times = Vec::new();
    for some in members.chunks(8) {
        let began = Instant::now();
        let callers = some.iter().map(|member| member.spawn(&["nvctl", "pids"])).collect::<Result<Vec<_>>>()?;
        for caller in callers {
            check_pids(&format!("{when}, the list"), &answer_of(caller)?.pids(), &[1])?;
        }
        times.push(began.elapsed());
    }
    println!("guest: {when}, eight containers were answered within {times:?}");
    Ok(times)
}

fn end(mut child: Child) -> Result<()> {
    // The shell and its children are below one nsenter, and would outlive it.
    for pid in processes::descendants(child.id()) {
        let _ = crate::command::run(&["kill", "-9", &pid.to_string()]);
    }
    child.kill()?;
    child.wait()?;
    Ok(())
}
