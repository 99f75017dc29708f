//! `raise` and `lower` with fake supervisors of each state and version.

use super::super::fake::{FakeSupervisor, state};
use super::*;
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::fake::FakeHost;
use std::os::unix::fs::PermissionsExt;

const OPTIONS: SupervisorOptions = SupervisorOptions {
    replace: false,
    drivers: Drivers::Known,
    policy: String::new(),
    cpu_percent: 100,
    program: None,
};

/// The outcome as a word, or the error's code.
fn outcome(fake: &FakeHost, options: &SupervisorOptions) -> Result<String, &'static str> {
    let host = fake.host();
    let outcome = raise(&host, options, Driver::loaded(&host).as_ref()).map_err(|error| error.code())?;
    Ok(match outcome {
        Raised::Started(_) => "started".to_string(),
        Raised::Resumed(_) => "resumed".to_string(),
        Raised::Replaced(_, old) => format!("in the place of {old}"),
        Raised::Already(_) => "already".to_string(),
    })
}

#[test]
fn running_supervisor_is_left_alone() {
    let fake = FakeHost::in_order();
    let supervisor = FakeSupervisor::on(&fake, state(&[]));
    assert_eq!(outcome(&fake, &OPTIONS).as_deref(), Ok("already"));
    assert_eq!(outcome(&fake, &SupervisorOptions { replace: true, ..OPTIONS }).as_deref(), Ok("already"));
    assert!(supervisor.commands.lock().expect("ours").is_empty());
}

#[test]
fn retired_supervisor_resumes_with_current_rules() {
    let fake = FakeHost::in_order();
    let supervisor = FakeSupervisor::on(&fake, State { state: Phase::Retired, ..state(&["a"]) });
    let options = SupervisorOptions { policy: "host /monitors".to_string(), ..OPTIONS };
    assert_eq!(outcome(&fake, &options).as_deref(), Ok("resumed"));
    assert_eq!(*supervisor.commands.lock().expect("ours"), ["resume\n", "policy\nhost /monitors", "budget\n100"]);
}

#[test]
fn other_version_is_replaced_only_on_request() {
    let fake = FakeHost::in_order();
    let supervisor = FakeSupervisor::on(&fake, State { version: "0.0.9".into(), ..state(&["a"]) });
    assert_eq!(outcome(&fake, &OPTIONS), Err("other_version_up"));
    assert!(supervisor.commands.lock().expect("ours").is_empty());
    assert_eq!(outcome(&fake, &SupervisorOptions { replace: true, ..OPTIONS }).as_deref(), Ok("in the place of 0.0.9"));
    assert_eq!(*supervisor.commands.lock().expect("ours"), ["again\n"]);
}

#[test]
fn slow_supervisor_has_not_ended() {
    let fake = FakeHost::in_order();
    let path = fake.host().at(CONTROL_SOCKET);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    let up = serde_json::to_string(&state(&["a"])).expect("JSON");
    let cut_off = up[..up.len() - 1].to_string();
    let answers = [up.clone(), "{\"ok\":true}".to_string(), "[]".to_string(), cut_off, up];
    let supervisor = std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().expect("a client");
            std::io::read_to_string(&stream).expect("a request");
            std::io::Write::write_all(&mut stream, answer.as_bytes()).expect("its answer");
        }
    });
    assert_eq!(lower(&fake.host()).expect("lowered"), Some(Lowered::Retired { containers: 1 }));
    supervisor.join().expect("all requests");
}

#[test]
fn lower_reports_remaining_containers() {
    let fake = FakeHost::in_order();
    assert_eq!(lower(&fake.host()).expect("nothing to do"), None);
    let with_containers = FakeSupervisor::on(&fake, state(&["a", "b"]));
    assert_eq!(lower(&fake.host()).expect("lowered"), Some(Lowered::Retired { containers: 2 }));
    assert_eq!(lower(&fake.host()).expect("lowered"), Some(Lowered::Retired { containers: 2 }), "twice is once");
    drop(with_containers);
    let _without = FakeSupervisor::on(&fake, state(&[]));
    assert_eq!(lower(&fake.host()).expect("lowered"), Some(Lowered::Ended));
}

#[test]
fn installed_unit_is_started_by_systemd() {
    let fake = FakeHost::in_order();
    fake.write("/usr/lib/systemd/system/mpu-notify.service", "");
    assert!(!systemd::has_unit(&fake.host(), UNIT), "systemd does not run");
    std::fs::create_dir_all(fake.host().at("/run/systemd/system")).expect("made");
    let request = fake.host().at("/request");
    fake.tool(
        "systemctl",
        &format!("[ $1 = show ] || {{ echo \"$@\" >{0}.part; mv {0}.part {0}; }}", request.display()),
    );
    let socket = fake.host().at(CONTROL_SOCKET);
    let systemd = std::thread::spawn({
        let request = request.clone();
        move || {
            while !request.exists() {
                std::thread::sleep(PAUSE);
            }
            FakeSupervisor::at(socket, state(&[]))
        }
    });
    assert_eq!(outcome(&fake, &OPTIONS).as_deref(), Ok("started"));
    let arguments = std::fs::read_to_string(request).expect("written");
    assert_eq!(arguments, "start --no-block --no-ask-password mpu-notify.service\n");
    drop(systemd.join().expect("up"));

    fake.tool("systemctl", "echo 'Unit mpu-notify.service is masked.' >&2; exit 1");
    let error = raise(&fake.host(), &OPTIONS, None).expect_err("masked");
    assert!(error.code() == "not_started" && error.to_string().contains("is masked"), "{error}");
}

#[test]
fn restarted_unit_ends_wait_with_its_error() {
    let fake = FakeHost::in_order();
    fake.write("/usr/lib/systemd/system/mpu-notify.service", "");
    std::fs::create_dir_all(fake.host().at("/run/systemd/system")).expect("made");
    let count = fake.host().at("/count");
    let show = format!("echo x >>{0}; echo NRestarts=$(($(wc -l <{0}) * 8))", count.display());
    fake.tool("systemctl", &format!("[ $1 != show ] || {{ {show}; }}"));
    fake.tool("journalctl", "echo 'mpu: no room for a socket'; echo 'fix: make room'");
    let began = Instant::now();
    let error = raise(&fake.host(), &OPTIONS, None).expect_err("it fails at each start");
    assert_eq!((error.code(), error.exit()), ("not_started", Exit::Failed));
    assert!(error.to_string().ends_with("mpu-notify.service failed: mpu: no room for a socket"), "{error}");
    assert!(began.elapsed() < TIMEOUT, "{:?}", began.elapsed());
}

#[test]
fn failed_keeper_leaves_its_output_in_log() {
    let fake = FakeHost::in_order();
    fake.program("/keeper", "echo \"$@: no\" >&2; exit 3");
    let options = SupervisorOptions { program: Some(fake.host().at("/keeper")), ..OPTIONS };
    let error = raise(&fake.host(), &options, None).expect_err("ended");
    assert_eq!((error.code(), error.exit()), ("not_started", Exit::Failed));
    assert_eq!(fake.host().text(LOG).as_deref(), Some("notify hold: no"));
    // Other users read files in `/run/mpu`.
    let mode = |path: &str| fs::metadata(fake.host().at(path)).expect("a folder").permissions().mode() & 0o777;
    fs::create_dir(fake.host().at("/usual")).expect("made");
    assert_eq!((mode("/run/mpu") & 0o755, mode(FOLDER)), (mode("/usual") & 0o755, 0o700));
}

/// Without a reader, opening a pipe waits for ever. With one, the pipe fills up.
#[test]
fn pipe_in_place_of_log_is_refused() {
    let fake = FakeHost::in_order();
    fake.program("/keeper", "exit 3");
    let options = SupervisorOptions { program: Some(fake.host().at("/keeper")), ..OPTIONS };
    let log = fake.host().at(LOG);
    fs::create_dir_all(log.parent().expect("a folder")).expect("made");
    rustix::fs::mknodat(rustix::fs::CWD, &log, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    assert_eq!(outcome(&fake, &options), Err("no_file"));
    let _reader = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&log);
    assert_eq!(outcome(&fake, &options), Err("no_file"));
}

#[test]
fn supervisor_needs_root_and_known_driver() {
    let fake = FakeHost::in_order();
    fake.write("/sys/module/nvidia/version", "700.10");
    assert_eq!(outcome(&fake, &OPTIONS), Err("unknown_driver"));
    fake.write("/proc/self/status", "CapEff:\t0000000000000000\n");
    let before = fake.snapshot();
    assert_eq!(outcome(&fake, &SupervisorOptions { drivers: Drivers::Any, ..OPTIONS }), Err("not_root"));
    assert_eq!(fake.snapshot(), before);
}

#[test]
fn unfit_host_is_reported_with_reason() {
    let fake = FakeHost::in_order();
    let unfit_reason = || unfit(&fake.host()).map(|error| (error.code(), error.exit()));
    assert_eq!(unfit_reason(), Some(("no_listeners", Exit::NotReady)));
    fake.can_notify();
    assert_eq!(unfit_reason(), None);
    fake.write("/proc/sys/kernel/osrelease", "5.4.0-216-generic");
    assert_eq!(unfit_reason(), Some(("no_listeners", Exit::NotReady)));
    fake.write("/proc/sys/kernel/osrelease", "5.10.0");
    fake.write("/proc/sys/kernel/yama/ptrace_scope", "3");
    assert_eq!(unfit_reason(), Some(("no_listeners", Exit::NotReady)));
    fake.write("/proc/sys/kernel/yama/ptrace_scope", "2");
    assert_eq!(unfit_reason(), None);
    fake.remove("/proc/self/ns");
    assert_eq!(unfit_reason(), Some(("not_on_host", Exit::Refused)));
}

#[test]
fn failed_keeper_error_quotes_last_log_line() {
    let fake = FakeHost::in_order();
    fake.tool("keeper", "echo first; echo 'no room for a socket' >&2; echo 'fix: make room' >&2; exit 3");
    let program = Some(fake.host().at("/usr/bin/keeper"));
    let error = raise(&fake.host(), &SupervisorOptions { program, ..OPTIONS }, None);
    let error = error.map(|_| ()).expect_err("it ended");
    let error = std::error::Error::source(&error).expect("its cause").to_string();
    assert!(error.contains("exit status: 3") && error.contains("\"no room for a socket\""), "{error}");
    assert!(error.contains(LOG), "{error}");
}
