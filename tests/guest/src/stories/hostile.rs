//! Hostile or unlucky callers: descriptors of other files, memory that blocks, death during a call.

use crate::stories::common::*;

pub const STORIES: &[Story] = &[
    story!(scene foreign_descriptor_gets_its_own_answer, [5, 6];
        "The request of a control on eleven descriptors that are not the control device, from a file to a closed \
        number, gets the same answer as without the engine.")
    .kernel_story()
    .right("these are the kernel's own answers"),
    story!(scene protected_memory_keeps_drivers_answer, [5];
        "Argument or parameters lie in private, shared, read-only or unreadable memory, across the edge into such \
        memory and into nothing, and at addresses with a tag (arm64): return and status are as without the engine, \
        and nothing is written past a protection.")
    .right("these are the driver's own answers"),
    story!(scene killed_callers_leave_nothing_behind, [7];
        "Thirty callers are killed while they ask: none counts as inside, and the next caller is answered right.")
    .kernel_story(),
    story!(scene caller_blocking_its_memory_delays_no_other, [7];
        "The argument, parameters or table of four callers lie in memory that is never supplied (userfaultfd): \
        another container is answered meanwhile, and their own container after they were killed.")
    .kernel_story(),
    story!(scene swapped_call_shows_no_foreign_pid, [3];
        "In thousands of calls a thread swaps the file, removes it, swaps control and size, or swaps all of that and \
        the parameters: no PID of another process comes back.")
    .notify(SUPERVISOR_ONLY)
    .kernel_story()
    .without_engine(|stage| {
        // A newer real driver has a wrong list, but no foreign PID in it.
        let is_newer = stage.release().is_some() && stage.era >= 4;
        once(stage, BareResult::Wrong(if is_newer { "the list shows" } else { "saw" }))
    }),
    story!(unreadable_argument_is_refused, [3, 5];
        "An argument in `memfd_secret` memory gets EFAULT and is counted.")
    .notify(SUPERVISOR_ONLY)
    .kernel_story()
    .only(
        |_| run(&["nvctl", "secret"]).is_ok_and(|done| done.status <= 1),
        "this kernel has no memfd_secret, or was not told to have it",
    ),
    story!(scene thread_with_own_descriptors_sees_own_only, [3];
        "A thread that shares no descriptor with its process is answered right, or refused, depending on the kernel.")
    .notify(SUPERVISOR_ONLY)
    .kernel_story()
    .real(Real::Engines),
    story!(scene x32_calls_get_the_kernels_answer, [5];
        "`ioctl` by its x32 number gets ENOSYS, as without the engine.")
    .notify(SUPERVISOR_ONLY)
    .kernel_story()
    .only(|_| cfg!(target_arch = "x86_64"), "x86-64 alone has x32 calls")
    .right("these are the kernel's own answers"),
    story!(scene huge_descriptor_table_slows_no_lookup, [7];
        "A process with room for 4,194,304 descriptors and hardly one open is asked about 200 times in one call: \
        that takes no longer than with another process.")
    .kernel_story()
    .right("the driver looks at no descriptors"),
    story!(ended_threads_slow_no_lookup, [7];
        "A process of which only 4,000 ended threads are left, because they are traced, is asked about 200 times in \
        one call: that takes no longer than with another process.")
    .kernel_story()
    .right("the driver looks at no threads"),
];

fn foreign_descriptor_gets_its_own_answer(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let with = same_with_engine_off(stage, || {
        Ok(scene.a.script("nvctl elsewhere; nvctl --xfer elsewhere; nvctl32 elsewhere")?)
    })?;
    check!(with.lines().count() > 15, "only so much was asked: {with}");
    check_own_list(scene, "the list")
}

fn protected_memory_keeps_drivers_answer(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let with =
        same_with_engine_off(stage, || Ok(scene.a.script("nvctl memory; nvctl --xfer memory; nvctl32 memory")?))?;
    // Nine kinds of memory, and four with tagged addresses, which 32-bit programs lack.
    check!(with.lines().count() == 2 * (13 + 13 + 9), "only so much was asked: {with}");
    // The arm64 kernel accepts tags, so the driver answers.
    let answered = with.contains("params tagged-high ret=0 status=0x0 written=1");
    check!(answered == cfg!(target_arch = "aarch64"), "without the engine, too: {with}");
    check_own_list(scene, "the list")
}

fn killed_callers_leave_nothing_behind(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let own = pid_words(&scene.own());
    check_own_list(scene, "the list")?;
    // The shell's child is nvctl only after its exec.
    let calls = "until [ \"$(cat /proc/$p/comm)\" = nvctl ]; do usleep 10000; done; usleep 60000";
    let each = format!("nvctl spin 60 {own} & p=$!; {calls}; kill -9 $p");
    let text = scene.a.script(&format!("for i in $(seq 30); do {each}; done 2>&1; wait"))?;
    check!(!text.contains("wrong"), "before it was killed, a caller got: {text}");
    let none_inside = || Ok(!stage.has_engine() || stage.engine_state("inside").as_deref() == Some("0"));
    let none_left = wait_until("the callers are dead, and some count as inside", none_inside);
    check!(none_left.is_ok(), "{none_left:?}: {:?}", stage.engine_state("inside"));
    check_own_list(scene, "the list")
}

fn caller_blocking_its_memory_delays_no_other(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    check_list(&scene.b, "the list", &[scene.other.view_pid])?;
    for what in ["argument", "params", "table"] {
        blocked(stage, what)?;
    }
    Ok(())
}

fn blocked(stage: &Stage, what: &str) -> Result<(), Fault> {
    let scene = stage.scene()?;
    // More callers than the supervisor has threads for a container.
    let script =
        format!("for i in 1 2 3 4; do nvctl stall {what} 60 >/tmp/stall.$i 2>&1 & echo $! >/tmp/stalled.$i; done");
    scene.a.script(&script)?;
    // Once the supervisor's threads for the container are blocked, a later caller blocks before it prints `stalls`.
    wait_until("the callers do not stall", || Ok(scene.a.script("cat /tmp/stall.*")?.contains("stalls")))?;
    std::thread::sleep(Duration::from_millis(500));
    let (listed, took) = timed(|| check_list(&scene.b, "beside stalled callers, the list", &[scene.other.view_pid]));
    listed?;
    check!(took < Duration::from_secs(30), "beside callers that stall on their {what} an answer took {took:?}");
    scene.a.script("kill -9 $(cat /tmp/stalled.*); rm /tmp/stall.* /tmp/stalled.*")?;
    check_own_list(&scene, "after the stalled callers' end, the list")
}

pub(super) const SUPERVISOR_ONLY: &str = "it takes a call out of the caller's hands, and may give it back";

/// Racing calls in each of four modes, for each reload of a row.
const SWAPPED_CALLS: u32 = 125;
/// Calls of one program: an emulated call takes milliseconds, and no program may take minutes.
pub(super) const SWAPPED_AT_ONCE: u32 = 1000;

fn swapped_call_shows_no_foreign_pid(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let own = scene.own();
    let each = SWAPPED_CALLS * stage.reloads.max(1);
    let rounds = each.div_ceil(SWAPPED_AT_ONCE);
    let mut calls = 0;
    let modes = ["dup2", "close", "number", "all"].map(|mode| (mode, each / rounds));
    for (mode, each) in modes.into_iter().cycle().take(modes.len() * rounds as usize) {
        let text = scene.a.script(&format!("nvctl swap {mode} 1 {each}"))?;
        let (made, saw) = parse_race(&text, each)?;
        calls += made;
        check_no_foreign_pid(&format!("swapping by {mode}, a caller saw"), saw, &own)?;
    }
    println!("guest: {calls} racing calls, none saw a number of anybody else's");
    check_list(&scene.a, "the list", &own)
}

fn unreadable_argument_is_refused(stage: &Stage) -> Result<(), Fault> {
    let answer = stage.scene()?.a.query(&["secret"]);
    check!(answer.as_ref().is_ok_and(|answer| answer.pids().is_empty()), "it shows {answer:?}");
    secret(stage, "nvctl secret")
}

/// Checks that the call is refused and counted.
pub(super) fn secret(stage: &Stage, call: &str) -> Result<(), Fault> {
    let scene = stage.scene()?;
    let before = stage.counter("passed.unreadable");
    let text = scene.a.script(&format!("{call}; true"))?;
    check!(text.starts_with("ret=-14 "), "it comes to {}", text.trim());
    let after = stage.counter("passed.unreadable");
    check!(before.is_some() && after == before.map(|before| before + 1), "it was counted from {before:?} to {after:?}");
    Ok(())
}

fn thread_with_own_descriptors_sees_own_only(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let answer = scene.a.query(&["--own-files", "fbc"])?;
    check_no_foreign_pid("a thread with a table of its own: fbc shows", answer.pids(), &[scene.first.view_pid])?;
    let refused = answer.text.starts_with("ret=-5 ");
    check!(refused || answer.pids() == [scene.first.view_pid], "it gets {}", answer.text);
    Ok(())
}

fn x32_calls_get_the_kernels_answer(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let with = same_with_engine_off(stage, || Ok(scene.a.query(&["x32"])?.text))?;
    check!(with.starts_with("ret=-38 "), "this kernel takes x32 calls: {with}");
    Ok(())
}

/// The kernel's limit of descriptors for a process, and a value that a container's runtime may set.
const MOST_FILES: &str = "/proc/sys/fs/nr_open";
const WIDE: &str = "4194304";

fn huge_descriptor_table_slows_no_lookup(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let _wide = Setting::set(MOST_FILES, WIDE)?;
    let plain = scene.a.hold_by_script("echo ready $$; exec cat >/dev/null")?;
    let wide = scene.a.hold_by_script("exec nvctl wide")?;
    let query = |pid: u32| {
        let words = [vec!["pidinfo".to_owned()], vec![pid.to_string(); 200]].concat();
        let (answer, took) = timed(|| scene.a.query(&words.iter().map(String::as_str).collect::<Vec<_>>()));
        anyhow::Ok((answer?.numbers("mem"), took))
    };
    let usual = query(plain.view_pid)?.1.min(query(plain.view_pid)?.1);
    let limit = usual * 3 + Duration::from_secs(1);
    let mut took = Duration::MAX;
    // A busy machine is slow now and then; a slow look-up is slow each time.
    for _ in 0..3 {
        let (answer, time) = query(wide.view_pid)?;
        check!(
            answer.len() == 200 && answer.iter().all(|&mem| mem == 0),
            "a process without the driver shows {answer:?}"
        );
        took = took.min(time);
        if took < limit {
            break;
        }
    }
    check!(took < limit, "200 looks at {WIDE} descriptors took {took:?}, at a few {usual:?}");
    Ok(())
}

const CROWD: &str = "4000";

fn ended_threads_slow_no_lookup(stage: &Stage) -> Result<(), Fault> {
    let answer = stage.scene()?.a.query(&["crowd", CROWD])?;
    let (usual, crowd) = (answer.one("usual")?, answer.one("crowd")?);
    // The engine checks only some of them, at some times the cost of one. Checking all cost 850 times as much.
    check!(crowd < 60 * usual, "200 looks at {CROWD} ended threads took {crowd} ns, at one {usual} ns");
    Ok(())
}
