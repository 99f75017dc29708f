//! The notify engine's processes: `mpu run`, the supervisor and the keeper. No GPU is needed: the ioctls go through the
//! whole engine to `/dev/null`, and must return its error.
//!
//! Each test runs in its own mount namespace with its own `/run/mpu`.

mod operator;
mod sys;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const MPU: &str = env!("CARGO_BIN_EXE_mpu");
/// How often a caller makes each of its ioctls.
const CALLS: &str = "MPU_TEST_CALLS";

/// Whether this test cannot run here. Prints the reason.
fn is_skipped() -> bool {
    let host = std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]");
    let actions = std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let reasons = [
        (rustix::process::geteuid().is_root() && host, "only root in the host's PID namespace can answer for others"),
        (actions.contains("user_notif"), "this kernel has no listeners for system calls"),
        (Command::new("unshare").arg("--version").output().is_ok(), "there is no unshare"),
    ];
    let missing = reasons.iter().find(|(is_met, _)| !is_met);
    missing.inspect(|(_, reason)| println!("skipped: {reason}")).is_some()
}

/// The time limit of a script in seconds, for slow machines.
const LIMIT: &str = "900";

/// Kills all processes in a script's mount namespace when the script ends.
const END: &str = "end() { set +e; here=$(readlink /proc/self/ns/mnt)
    for p in /proc/[0-9]*; do
        [ \"$(readlink $p/ns/mnt)\" != \"$here\" ] || [ $p = /proc/$$ ] || kill -9 ${p#/proc/} 2>/dev/null
    done; }
    trap end EXIT; trap 'exit 124' TERM";

/// A shell in a mount namespace with an empty `/run/mpu`.
fn shell(script: &str) -> Command {
    in_namespace(Command::new("unshare"), script)
}

fn in_namespace(mut command: Command, script: &str) -> Command {
    let set = "set -u; mkdir -p /run/mpu; mount -t tmpfs none /run/mpu";
    command.args(["--mount", "--propagation", "private", "sh", "-c", &format!("{END}; {set}; {script}")]);
    command.env("MPU", MPU).env("CALLER", std::env::current_exe().expect("this program"));
    command
}

/// Runs a script and returns its output; none if it cannot run here.
fn run_script(script: &str) -> Option<String> {
    if is_skipped() {
        return None;
    }
    let mut limited = Command::new("timeout");
    limited.args(["--kill-after=60", LIMIT, "unshare"]);
    let out = in_namespace(limited, script).stdin(Stdio::null()).output().expect("timeout, unshare and sh");
    assert_ne!(out.status.code(), Some(124), "not done after {LIMIT} s: {out:?}");
    print!("{}", String::from_utf8_lossy(&out.stderr));
    Some(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The same with a running keeper, whose PID is `$hold`.
fn run_beside_keeper(log: &str, script: &str) -> Option<String> {
    run_script(&format!("{SEND_COMMAND}; $MPU notify hold {log} & hold=$!; send state >/dev/null; {script}"))
}

/// Not a test: the program that other tests run in a container. Every call must fail as on `/dev/null`.
#[test]
#[ignore = "the caller that other tests start"]
fn caller() {
    let calls: u32 = std::env::var(CALLS).ok().and_then(|calls| calls.parse().ok()).unwrap_or(0);
    let null = File::options().read(true).write(true).open("/dev/null").expect("/dev/null");
    for _ in 0..calls {
        // A control without PIDs, one with PIDs, and one with PIDs and an unknown size.
        for (cmd, size) in [(0x0080_0101, 64), (0x2080_018d, 3812), (0x2080_018e, 4)] {
            let error = sys::control(&null, cmd, size).expect_err("/dev/null knows no control");
            // Standard output, so that the calling test's failure shows it.
            if error.raw_os_error() != Some(libc::ENOTTY) {
                println!("{cmd:#x} did not come back: {error}");
                std::process::exit(1);
            }
        }
    }
    println!("all {calls} came back");
}

const CALLER: &str = "$CALLER --exact caller --ignored --nocapture";

#[test]
fn supervisor_raises_open_file_limit() {
    let script = "(ulimit -n 4096 && ulimit -n 524288) 2>/run/mpu/no || { echo skipped; exit; }
        ulimit -n 4096; $MPU notify serve & supervisor=$!
        until test -S /run/mpu/notify/control.sock; do sleep 0.05; done
        grep 'open files' /proc/$supervisor/limits; kill -9 $supervisor";
    let Some(out) = run_script(script) else { return };
    if out == "skipped\n" {
        return println!("skipped: this root may not raise limits");
    }
    assert_eq!(out.split_whitespace().collect::<Vec<_>>()[3..5], ["524288", "524288"], "{out}");
}

#[test]
fn keeper_ends_with_failed_first_supervisor() {
    for socket in ["listener.sock", "control.sock"] {
        let script = format!(
            "mkdir -p /run/mpu/notify/{socket}
            timeout -s KILL 300 $MPU notify hold 2>&1; echo $?; ls -A /run/mpu/notify | grep -vx keeper.lock"
        );
        let Some(out) = run_script(&script) else { return };
        assert_eq!(out.matches(&format!("cannot use /run/mpu/notify/{socket}: ")).count(), 1, "{out}");
        // A runtime that reached the other socket would have lost its listener.
        assert!(out.ends_with(&format!("\n1\n{socket}\n")), "{out}");
    }
}

#[test]
fn run_command_has_own_pids_and_exit_code() {
    let script = "$MPU run sh -c 'echo $$; ls -d /proc/[0-9]* | wc -l'
        $MPU run -- sh -c 'exit 7'; echo $?
        $MPU run -- sh -c 'kill -9 $$'; echo $?
        $MPU run /nonexistent 2>&1; echo $?
        $MPU run /etc/passwd 2>&1; echo $?
        $MPU run /nonexistent 2>/dev/full; echo $?
        $MPU run /etc/passwd 2>/dev/full; echo $?
        echo given | $MPU run -- sh -c 'cat <&3' 3<&0
        $MPU run -- readlink /proc/1/ns/pid > /run/mpu/inside; readlink /proc/self/ns/pid | cmp -s - /run/mpu/inside || echo another";
    let Some(out) = run_script(script) else { return };
    let lines: Vec<&str> = out.lines().collect();
    // PID 1 is the small init; `ls` and `wc` are there, too.
    assert_eq!(lines.first(), Some(&"2"), "{out}");
    assert!(lines[1].trim().parse::<u32>().is_ok_and(|count| (3..6).contains(&count)), "{out}");
    assert_eq!(lines[2..4], ["7", "137"], "{out}");
    assert!(lines[4].contains("No such file") && lines[5] == "127", "{out}");
    assert!(lines[6].contains("denied") && lines[7] == "126", "{out}");
    assert_eq!(lines[8..], ["127", "126", "given", "another"], "{out}");
}

#[test]
fn run_without_descriptors_names_their_limit() {
    let script = "for limit in 5 64; do (ulimit -n $limit; $MPU run true) 2>&1; echo $?; done";
    let Some(out) = run_script(script) else { return };
    assert_eq!((out.matches("\n125\n").count(), out.matches("fix: raise the limit").count()), (2, 2), "{out}");
}

#[test]
fn signal_to_run_ends_its_command() {
    let script = "$MPU run -- sh -c 'trap \"echo stopped; exit 3\" TERM; echo up; >/run/mpu/up; while :; do sleep 0.1; done' & run=$!
        until test -e /run/mpu/up; do sleep 0.1; done; kill -TERM $run; wait $run; echo $?
        $MPU run -- sleep 987654 & run=$!
        until pgrep -f '^sleep 987654' > /run/mpu/there; do sleep 0.1; done; kill -KILL $run; wait $run
        for i in $(seq 600); do pgrep -f '^sleep 987654' > /run/mpu/there || break; sleep 0.1; done
        pgrep -f '^sleep 987654' || echo none";
    let Some(out) = run_script(script) else { return };
    assert_eq!(out.lines().collect::<Vec<_>>(), ["up", "stopped", "3", "none"], "{out}");
}

#[test]
fn terminals_interrupt_reaches_command_once() {
    // `script` provides a terminal, and the interrupt character is typed into it. After the first interrupt, the
    // command waits two seconds for another. An interrupted sleep does not count.
    let count = r#"perl -e '\$SIG{INT} = sub { \$n++ }; open F, q(>), q(/run/mpu/up);
        for (1 .. 120) { sleep 1; last if \$n && \$after++ > 1 } print qq(interrupts \$n\n)'"#;
    let typed = r"until test -e /run/mpu/up; do sleep 0.1; done; printf '\003'
        until test -e /run/mpu/over; do sleep 0.1; done";
    let script = format!(r#"({typed}) | {{ script -qec "$MPU run -- {count}" /dev/null; >/run/mpu/over; }}"#);
    let Some(out) = run_script(&script) else { return };
    assert!(out.contains("interrupts 1"), "{out}");
}

#[test]
fn filter_keeps_ioctl_result_of_other_files() {
    let Some(out) = run_script(&format!("export {CALLS}=500; {CALLER}; $MPU run -- {CALLER}")) else { return };
    assert_eq!(out.matches("all 500 came back").count(), 2, "{out}");
}

/// Sends a command to the supervisor and prints the answer. Retries the connection: a killed supervisor leaves its
/// socket, and the next one listens soon.
const SEND_COMMAND: &str = "send() { python3 -c 'import socket,sys,time
for _ in range(2400):
    s=socket.socket(socket.AF_UNIX)
    try:
        s.connect(\"/run/mpu/notify/control.sock\")
        break
    except OSError:
        time.sleep(0.05)
s.sendall(sys.argv[1].encode()); s.shutdown(1)
print(s.makefile().read())' \"$1\"; }";

/// A shell with a keeper and callers.
struct KeeperShell {
    shell: Child,
}

impl KeeperShell {
    fn up(script: &str) -> (KeeperShell, BufReader<ChildStdout>) {
        let mut shell = shell(&format!("{SEND_COMMAND}; $MPU notify hold & send state >/dev/null; {script}"));
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare and sh");
        let out = BufReader::new(shell.stdout.take().expect("piped"));
        (KeeperShell { shell }, out)
    }

    /// The supervisor: the keeper's child.
    fn supervisor(&self) -> Option<u32> {
        let children = |pid: u32| -> Vec<u32> {
            let listed = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            listed.split_whitespace().filter_map(|word| word.parse().ok()).collect()
        };
        let is = |pid: &u32, word: &str| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.split(|byte| *byte == 0).any(|found| found == word.as_bytes()))
        };
        let keeper = children(self.shell.id()).into_iter().find(|pid| is(pid, "hold"))?;
        children(keeper).into_iter().find(|pid| is(pid, "serve") && !is(pid, "-c"))
    }

    fn kill_supervisor(&self) -> bool {
        let pid = self.supervisor().and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
        pid.is_some_and(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok())
    }
}

impl Drop for KeeperShell {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        if std::thread::panicking() {
            let pid = rustix::process::Pid::from_child(&self.shell);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.shell.wait();
    }
}

#[test]
fn repeated_supervisor_kills_lose_no_call() {
    if is_skipped() {
        return;
    }
    // Eight callers in four namespaces; the shell ends once they have.
    let callers = format!(
        "export {CALLS}=1500; for i in 1 2 3 4; do $MPU run -- sh -c '{CALLER} & {CALLER}; wait' & all=\"${{all-}} $!\"; done"
    );
    let (keeper, mut out) = KeeperShell::up(&format!("{callers}; wait $all; echo over; read end; send retire; wait"));
    let began = Instant::now();
    let (sender, finished) = std::sync::mpsc::channel();
    let reading = std::thread::spawn(move || {
        let mut all = String::new();
        let mut line = String::new();
        while out.read_line(&mut line).is_ok_and(|len| len > 0) {
            all.push_str(&line);
            if line.trim() == "over" {
                let _ = sender.send(());
            }
            line.clear();
        }
        all
    });
    // The kills are limited: a slow machine starts no supervisor between two kills, so endless kills would starve the
    // callers.
    let mut kills = 0;
    let mut over = false;
    while !over && kills < 200 && began.elapsed() < Duration::from_secs(300) {
        over = finished.recv_timeout(Duration::from_millis(60)).is_ok();
        kills += u32::from(!over && keeper.kill_supervisor());
    }
    over = over || finished.recv_timeout(Duration::from_secs(600)).is_ok();
    assert!(over, "{kills} kills, and a caller waits still, {:.0} s after the first", began.elapsed().as_secs_f64());
    drop(keeper);
    let out = reading.join().expect("the reader");
    let came_back: Vec<&str> =
        out.lines().filter(|line| line.contains("come back") || line.contains("came back")).collect();
    assert_eq!(came_back, ["all 1500 came back"; 8], "{kills} kills");
    assert!(kills >= 5, "only {kills} kills were seen: not much of a storm");
    println!("{kills} kills, 36000 calls, {:.1} s", began.elapsed().as_secs_f64());
}

#[test]
fn retired_supervisor_ends_with_last_container() {
    let script = format!(
        "mkfifo /run/mpu/fifo
        $MPU run -- sh -c 'echo in; read word < /run/mpu/fifo; {CALLS}=10 {CALLER}' & run=$!
        until send state | grep -q '\"listeners\":1'; do sleep 0.05; done
        send retire; test -S /run/mpu/notify/listener.sock && echo open
        kill -0 $hold && echo still
        echo go > /run/mpu/fifo; wait $run; echo $?; wait $hold; echo $?; ls -A /run/mpu/notify | grep -vx keeper.lock"
    );
    let Some(out) = run_beside_keeper("", &script) else { return };
    assert!(out.contains("{\"ok\":true}") && out.contains("open\nstill"), "{out}");
    assert!(out.contains("all 10 came back") && out.trim_end().ends_with("0\n0"), "{out}");
}

/// systemd keeps stored descriptors after the end of a unit. A retired supervisor without containers ends after a
/// second. It stays for a stored connection of a runtime that has not sent anything yet.
#[test]
fn supervisor_with_unreachable_socket_makes_another() {
    if is_skipped() {
        return;
    }
    let lost = std::os::unix::net::UnixListener::bind_addr(&abstract_name()).expect("a socket");
    let script = format!(
        "{SEND_COMMAND}; mkdir -p /run/mpu/notify; touch /run/mpu/notify/retired
        export LISTEN_FDS=$1 LISTEN_FDNAMES=$2
        sh -c 'exec 5>&-; LISTEN_PID=$$ exec $MPU notify serve' & pid=$!; exec 4>&-
        until test -S /run/mpu/notify/listener.sock || ! kill -0 $pid; do sleep 0.05; done
        found=$(test -S /run/mpu/notify/listener.sock && echo found)
        send state; echo $found; $MPU run -- echo served
        send retire; exec 5>&-; wait $pid; echo $?; ls -A /run/mpu/notify"
    );
    for (fds, names) in [("2", "socket:connection-left"), ("0", "")] {
        use command_fds::{CommandFdExt, FdMapping};
        let (left, runtime) = std::os::unix::net::UnixStream::pair().expect("a connection");
        let mappings = [(lost.try_clone().expect("a copy").into(), 3), (left.into(), 4), (runtime.into(), 5)];
        let mappings = mappings.map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd });
        let mut command = shell(&script);
        command.args(["sh", fds, names]).stdin(Stdio::null()).stdout(Stdio::piped());
        command.fd_mappings(mappings.into()).expect("three mappings");
        let playing = command.spawn().expect("unshare and sh");
        // Only the shell keeps the runtime's end, so the connection ends with it.
        drop(command);
        let out = String::from_utf8_lossy(&playing.wait_with_output().expect("its end").stdout).into_owned();
        assert!(out.contains("found\nserved"), "{out}");
        // Without stored descriptors, an earlier supervisor's `retired` mark is ignored.
        let state = if fds == "0" { "armed" } else { "retired" };
        assert!(out.contains(&format!("\"state\":\"{state}\"")), "{out}");
        assert!(out.trim_end().ends_with("\n0"), "nothing is left: {out}");
    }
}

fn abstract_name() -> std::os::unix::net::SocketAddr {
    use std::os::linux::net::SocketAddrExt;
    std::os::unix::net::SocketAddr::from_abstract_name(format!("mpu-test-{}", std::process::id())).expect("a name")
}

/// Not a test: makes one call after the other until a file exists. Prints the number of calls, the longest and the total time in
/// microseconds.
#[test]
#[ignore = "the caller that another test starts"]
fn timed_caller() {
    let pause = std::env::var(PAUSE).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let null = File::options().read(true).write(true).open("/dev/null").expect("/dev/null");
    let (began, mut calls, mut longest) = (Instant::now(), 0u64, Duration::ZERO);
    while !std::path::Path::new("/run/mpu/stop").exists() && began.elapsed() < Duration::from_secs(120) {
        let began_call = Instant::now();
        let error = sys::control(&null, 0x2080_018d, 3812).expect_err("/dev/null knows no control");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        longest = longest.max(began_call.elapsed());
        calls += 1;
        std::thread::sleep(Duration::from_millis(pause));
    }
    println!("calls {calls} {} {}", longest.as_micros(), began.elapsed().as_micros());
}

const TIMED_CALLER: &str = "$CALLER --exact timed_caller --ignored --nocapture";
/// The pause of `timed_caller` after each call, in milliseconds.
const PAUSE: &str = "MPU_TEST_PAUSE";

#[test]
fn budget_slows_container_and_spares_neighbour() {
    // A hog of four processes and a neighbour with few calls, first without a limit, then with 2 % of a processor for
    // each. On a slow and busy machine, a call costs the supervisor 0.6 ms, so the neighbour needs only a fraction of
    // its share.
    let hog = format!("$MPU run -- sh -c 'for i in 1 2 3 4; do {TIMED_CALLER} & done; wait' > /run/mpu/hog & hog=$!");
    let neighbour = format!("{PAUSE}=100 $MPU run -- {TIMED_CALLER} > /run/mpu/neighbour & beside=$!");
    let script = format!(
        "for percent in 0 2; do
            rm -f /run/mpu/stop; send \"budget\n$percent\"; {hog}; {neighbour}
            until send state | grep -q '\"listeners\":2'; do sleep 0.05; done
            sleep 3; send state; touch /run/mpu/stop; wait $hog $beside
            # Four test programs write to one file, and none of them its own lines in one piece.
            for who in hog neighbour; do sed -n \"s/^.*calls \\([0-9 ]*\\)$/$who calls \\1/p\" /run/mpu/$who; done
        done
        send 'budget
        many'; send retire; wait"
    );
    let Some(out) = run_beside_keeper("", &script) else { return };
    let of = |who: &str| -> Vec<[u64; 3]> {
        let lines = out.lines().filter_map(|line| line.strip_prefix(who)?.strip_prefix(" calls "));
        let numbers = lines.map(|line| line.split(' ').map(|word| word.parse().expect("a number")).collect::<Vec<_>>());
        numbers.map(|numbers| numbers.try_into().expect("three")).collect()
    };
    let (hog, neighbour) = (of("hog"), of("neighbour"));
    assert_eq!((hog.len(), neighbour.len()), (8, 2), "{out}");
    let states: Vec<serde_json::Value> = out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    // For each container, the processor time and the time held back, in ascending order: the hog is last.
    let costs = |percent: u64| -> Vec<(u64, u64)> {
        let state = states.iter().find(|state| state["cpu_percent"] == percent).expect("a state");
        let number = |cost: &serde_json::Value, name: &str| cost[name].as_u64().expect("a number");
        let all = state["costs"].as_array().expect("a list").iter();
        let mut all: Vec<_> =
            all.map(|cost| (number(cost, "cpu_microseconds"), number(cost, "held_back_microseconds"))).collect();
        all.sort_unstable();
        all
    };
    let ([(_, 0), (free, 0)], [(_, 0), (held, back)]) = (&costs(0)[..], &costs(2)[..]) else { panic!("{out}") };
    // 2 % of the time, the initial budget of 20 ms, and 40 ms that two threads may exceed before the next tick.
    let most = hog[4..].iter().map(|[.., took]| took / 50).max().unwrap_or(0) + 20_000 + 40_000;
    assert!(*held < most, "the hog had {held} of {most} us: {out}");
    assert!(*back > 200_000, "it was held back for {back} us: {out}");
    let rate = |of: &[[u64; 3]]| of.iter().map(|[calls, _, took]| *calls as f64 / *took as f64 * 1e6).sum::<f64>();
    let (before, after) = (rate(&hog[..4]), rate(&hog[4..]));
    assert!(after * 2.0 < before, "{before:.0} calls a second became {after:.0}: {out}");
    assert!(
        neighbour[1][1] < 500_000.max(4 * neighbour[0][1]) && rate(&neighbour[1..]) > rate(&neighbour[..1]) / 2.0,
        "{neighbour:?}: {out}"
    );
    assert!(out.contains("a budget is a number of percent"), "{out}");
    println!(
        "the hog's {before:.0} calls a second became {after:.0}, {free} us {held}; the neighbour's longest {} us {}",
        neighbour[0][1], neighbour[1][1]
    );
}

/// Not a test: makes calls for four seconds, each with a page that this program has never touched, and prints their
/// number.
#[test]
#[ignore = "the caller that another test starts"]
fn page_toucher() {
    const PAGE: usize = 4096;
    let null = File::options().read(true).write(true).open("/dev/null").expect("/dev/null");
    let memory = Vec::<u8>::with_capacity(1 << 30);
    let pages = (1..(1 << 30) / PAGE).map(|page| memory.as_ptr().wrapping_add(page * PAGE));
    let began = Instant::now();
    let began_call = pages.take_while(|_| began.elapsed() < Duration::from_secs(4)).filter(|page| {
        let error = sys::control_at(&null, *page).expect_err("/dev/null knows no control");
        error.raw_os_error() == Some(libc::ENOTTY)
    });
    println!("touched {}", began_call.count());
}

/// The page tables for such a page are charged to the supervisor, so the budget must limit them.
#[test]
fn faulted_pages_are_charged_to_budget() {
    let script = "for percent in 0 100; do
            send \"budget\n$percent\" >/dev/null; $MPU run -- $CALLER --exact page_toucher --ignored --nocapture
        done
        send retire; wait";
    let Some(out) = run_beside_keeper("", script) else { return };
    let counts: Vec<u64> =
        out.lines().filter_map(|line| line.rsplit_once("touched ")?.1.split(' ').next()?.parse().ok()).collect();
    let [free, paid] = counts[..] else { panic!("{out}") };
    // A second's worth at once, and four seconds; the supervisor's threads need some pages of their own.
    assert!(paid > 0 && paid <= 64 * 6, "{paid} pages in four seconds, {free} without a limit");
    assert!(free > 2 * paid, "{free} pages without a limit, {paid} with one: that shows nothing");
    println!("{paid} pages in four seconds, {free} without a limit");
}

#[test]
fn full_log_ends_neither_keeper_nor_supervisor() {
    let script = format!(
        "$MPU run -- {TIMED_CALLER} & run=$!
        until send state | grep -q '\"listeners\":1'; do sleep 0.05; done
        first=$(send state | {PID}); kill -9 $first
        tries=0; until next=$(send state | {PID}); test -n \"$next\" && test $next != $first; do
            sleep 0.05; tries=$((tries+1)); test $tries -lt 1200 || {{ echo never; break; }}
        done
        sleep 1; touch /run/mpu/stop; wait $run; echo ended $?; send retire; wait"
    );
    let Some(out) = run_beside_keeper("2>/dev/full", &script) else { return };
    assert!(out.contains("calls ") && out.contains("ended 0") && !out.contains("never"), "{out}");
}

/// Extracts the supervisor's PID from its state.
const PID: &str = "sed -n 's/.*\"pid\":\\([0-9]*\\).*/\\1/p'";

/// If one container uses up all PIDs for a moment, another container must not lose its listener.
#[test]
fn listener_without_thread_is_attended_later() {
    let script = format!(
        "group=
        for at in /sys/fs/cgroup/pids /sys/fs/cgroup /sys/fs/cgroup/unified; do
            mkdir $at/mpu-test-$$ 2>/dev/null || continue
            test -e $at/mpu-test-$$/pids.max && group=$at/mpu-test-$$ && break
            rmdir $at/mpu-test-$$
        done
        test -n \"$group\" || {{ echo 'skipped: no control group that counts processes'; exit; }}
        {SEND_COMMAND}; $MPU notify hold 2>/run/mpu/log & hold=$!
        send state >/dev/null
        $MPU run -- {TIMED_CALLER} & run=$!
        until send state | grep -q '\"listeners\":1'; do sleep 0.05; done
        first=$(send state | {PID}); for pid in $hold $first; do echo $pid >$group/cgroup.procs; done
        echo 2 >$group/pids.max; kill -9 $first
        tries=0; until grep -q 'cannot start a thread of the listener' /run/mpu/log; do
            sleep 0.05; tries=$((tries+1)); test $tries -lt 1200 || {{ echo never; break; }}
        done
        echo max >$group/pids.max
        sleep 1; touch /run/mpu/stop; wait $run; echo ended $?; send retire; wait; rmdir $group"
    );
    let Some(out) = run_script(&script) else { return };
    if let Some(reason) = out.lines().find(|line| line.starts_with("skipped: ")) {
        return println!("{reason}");
    }
    assert!(out.contains("calls ") && out.contains("ended 0") && !out.contains("never"), "{out}");
}
