//! `mpu up` on made-up hosts, with the real raising of both engines.

use super::*;
use mpu_engine::module::load::fake::FakeKernel;
use mpu_engine::module::proof::fake::{cannot, misses, only_enters, translates};
use mpu_engine::module::proof::Ask;
use mpu_engine::module::raise;
use mpu_engine::module::raise::fake::Setup;
use mpu_engine::module::record::Record;
use mpu_engine::module::sources;
use mpu_engine::module::state;
use mpu_host::config::Asked;
use mpu_host::explain::Explain;
use mpu_host::host::fake::RELEASE;
use mpu_notify::fake::{self, FakeSupervisor};

fn up(host: &Host, kernel: &dyn Kernel, module: &raise::ModuleOptions) -> Result<Done, Error> {
    super::up(host, kernel, &UpOptions { module: module.clone(), ..UpOptions::default() })
}

#[test]
fn up_builds_loads_and_reports() {
    let s = Setup::new();
    let done = up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
    assert_eq!((done.result, done.engine), (How::Loaded, Engine::Module));
    assert!(done.build_seconds.is_some() && done.driver.as_ref().is_some_and(|d| d.era == Some(1)));
    assert_eq!(done.module_state.as_ref().map(|s| &s.state), Some(&Phase::Armed));
    let text = done.text(Style::Plain);
    assert!(text.starts_with("MPU is up") && text.contains("os_find_ns_pid") && text.contains("550.163.01"), "{text}");
    let record = Record::read(&s.fake.host()).expect("a record");
    assert!(record.since > 1_700_000_000 && record.module.ends_with(format!("{RELEASE}/mpu.ko")));
}

/// `mpu up` of a module that says `placed`, with somebody to ask the driver.
fn asked(s: &Setup, kernel: &FakeKernel<'_>, ask: Ask) -> Result<Done, Error> {
    super::up(&s.fake.host(), kernel, &UpOptions { module: s.options(), ask: Some(ask), ..UpOptions::default() })
}

#[test]
fn armed_is_said_of_what_was_seen_and_placed_of_what_was_not() {
    let s = Setup::new();
    let kernel = FakeKernel::taking(&s.fake, state::PLACED);
    let done = asked(&s, &kernel, translates).expect("up");
    assert_eq!((done.result, done.exit()), (How::Loaded, Exit::Ok));
    crate::report::documented::check("`mpu up --json`", &crate::report::json(&done));
    let text = done.text(Style::Plain);
    assert!(text.contains("armed: callers in containers are translated"), "{text}");

    let s = Setup::new();
    let kernel = FakeKernel::taking(&s.fake, state::PLACED);
    let done = asked(&s, &kernel, cannot).expect("up");
    let text = done.text(Style::Plain);
    assert_eq!((done.exit(), done.proof.map(|proof| proof.result)), (Exit::Ok, Some("not_asked")));
    assert!(
        !text.contains("armed") && text.contains("placed: ") && text.contains("no translation was seen yet"),
        "{text}"
    );
    let again = asked(&s, &kernel, translates).expect("up");
    assert_eq!((again.result, again.module_state.map(|state| state.state)), (How::AlreadyUp, Some(Phase::Armed)));
}

#[test]
fn a_module_that_the_drivers_calls_do_not_come_to_does_not_stay() {
    let s = Setup::new();
    let kernel = FakeKernel::taking(&s.fake, state::PLACED);
    let error = asked(&s, &kernel, misses).expect_err("another entry");
    assert_eq!((error.code(), error.exit(), kernel.calls.get()), ("driver_entry", Exit::Failed, (1, 1)));
    assert!(error.to_string().contains("nvidia_unlocked_ioctl") && !state::is_loaded(&s.fake.host()), "{error}");
    assert_eq!(Record::read(&s.fake.host()), None);
}

#[test]
fn calls_that_come_and_are_not_translated_are_a_failure_that_can_be_looked_into() {
    let s = Setup::new();
    let kernel = FakeKernel::taking(&s.fake, state::PLACED);
    let done = asked(&s, &kernel, only_enters).expect("up");
    assert_eq!((done.exit(), state::is_loaded(&s.fake.host())), (Exit::Failed, true));
    assert!(done.text(Style::Plain).contains("nothing was translated"));
}

#[test]
fn who_is_not_root_hears_that_before_anything_else() {
    let s = Setup::new();
    s.fake.write("/proc/self/status", "CapEff:\t0000000000000000\n");
    s.fake.write(&format!("/boot/config-{RELEASE}"), "CONFIG_MODULES=y\n");
    s.fake.write(mpu_host::config::FILE, "nonsense");
    for engine in [None, Some(Asked::Module), Some(Asked::Notify)] {
        let options = UpOptions { engine, module: s.options(), ..UpOptions::default() };
        let error = super::up(&s.fake.host(), &s.kernel(), &options).expect_err("not root");
        assert_eq!((error.code(), error.exit()), ("not_root", Exit::Refused));
        assert!(error.to_string().starts_with("this needs root"), "{error}");
    }
    // Root in a container that may load no module: the notify engine needs no module.
    s.fake.remove(mpu_host::config::FILE);
    let _supervisor = supervised(&s, &["a"]);
    s.fake.write("/proc/self/status", "CapEff:\t0000000000200000\n");
    let up = |engine| {
        let options = UpOptions { engine, module: s.options(), ..UpOptions::default() };
        super::up(&s.fake.host(), &s.kernel(), &options).map_err(|error| error.code())
    };
    assert_eq!(up(Some(Asked::Notify)).expect("up").result, How::AlreadyUp);
    assert_eq!(up(Some(Asked::Module)).map(|_| ()), Err("not_root"), "not what the kernel lacks");
}

#[test]
fn a_second_up_changes_nothing() {
    let s = Setup::new();
    up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
    let before = s.fake.snapshot();
    let kernel = s.kernel();
    let done = up(&s.fake.host(), &kernel, &s.options()).expect("up");
    assert_eq!((done.result, kernel.calls.get()), (How::AlreadyUp, (0, 0)));
    assert_eq!(s.fake.snapshot(), before);
}

#[test]
fn without_a_driver_it_waits() {
    let s = Setup::new();
    s.fake.remove("/sys/module/nvidia");
    let kernel = FakeKernel::taking(&s.fake, "version=0.1.0\nstate=waiting\nhooks=\ninside=0\n");
    let done = up(&s.fake.host(), &kernel, &s.options()).expect("up");
    assert_eq!(done.exit(), Exit::Ok);
    let text = done.text(Style::Plain);
    assert!(text.contains("waiting: the NVIDIA driver is not loaded") && text.contains("none yet"), "{text}");
}

#[test]
fn a_refused_redirect_leaves_nothing_loaded_and_no_record() {
    let s = Setup::new();
    let kernel = FakeKernel::taking(&s.fake, "version=0.1.0\nstate=refused\nrefused=nvidia_unlocked_ioctl:16\n");
    let error = up(&s.fake.host(), &kernel, &s.options()).expect_err("refused");
    assert_eq!((error.code(), kernel.calls.get()), ("redirect_refused", (1, 1)));
    assert_eq!(Record::read(&s.fake.host()), None);
}

#[test]
fn building_alone_needs_no_rights_and_loads_nothing() {
    let s = Setup::new();
    s.fake.write("/proc/self/status", "CapEff:\t0000000000000000\n");
    s.fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
    let kernel = s.kernel();
    let options = raise::ModuleOptions { build_only: true, ..s.options() };
    let done = up(&s.fake.host(), &kernel, &options).expect("built");
    assert_eq!((done.result, kernel.calls.get()), (How::Built, (0, 0)));
    assert!(done.text(Style::Plain).starts_with("built "));
}

#[test]
fn a_given_module_is_loaded_without_tools() {
    let s = Setup::new();
    s.fake.remove("/usr/bin/make");
    let path = s.sources.path().join("mpu.ko");
    std::fs::write(&path, sources::fake::module(RELEASE)).expect("a module");
    let options = raise::ModuleOptions { module: Some(path.clone()), source: None, ..s.options() };
    let done = up(&s.fake.host(), &s.kernel(), &options).expect("up");
    assert_eq!((done.module, done.build_seconds), (Some(path), None));
}

#[test]
fn the_policy_goes_in_with_the_module_and_a_bad_one_loads_nothing() {
    let s = Setup::new();
    s.fake.write(mpu_host::config::FILE, "[[rule]]\nsees = \"host\"\ncgroup = \"/monitors\"\n");
    up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
    assert_eq!(s.fake.host().text("/sys/module/mpu/parameters/policy").as_deref(), Some("host /monitors"));

    let s = Setup::new();
    s.fake.write(mpu_host::config::FILE, "[[rule]]\nsees = \"host\"\n");
    let kernel = s.kernel();
    let error = up(&s.fake.host(), &kernel, &s.options()).expect_err("malformed");
    assert_eq!((error.code(), kernel.calls.get()), ("config_malformed", (0, 0)));
}

#[test]
fn another_version_is_replaced_when_asked() {
    let s = Setup::new();
    s.fake.write("/sys/module/mpu/parameters/state", "version=0.0.9\nstate=armed\n");
    s.fake.tool(
        "make",
        r#"for a; do case $a in M=*) for k in mpu mpu_next; do echo m >"${a#M=}/$k.ko"; done;; esac; done"#,
    );
    let options = raise::ModuleOptions { replace: true, ..s.options() };
    let done = up(&s.fake.host(), &s.kernel(), &options).expect("replaced");
    assert_eq!(
        (done.result, done.replaced_version.as_deref(), done.gapless),
        (How::Replaced, Some("0.0.9"), Some(true))
    );
    assert!(done.text(Style::Plain).contains("in the place of 0.0.9, without a gap"));
    let kernel = s.kernel();
    let done = up(&s.fake.host(), &kernel, &options).expect("nothing to replace");
    assert_eq!((done.result, kernel.calls.get()), (How::AlreadyUp, (0, 0)));
}

/// A host whose kernel has listeners, and a supervisor on it.
fn supervised(setup: &Setup, containers: &[&str]) -> FakeSupervisor {
    setup.fake.can_notify();
    FakeSupervisor::on(&setup.fake, fake::state(containers))
}

#[test]
fn a_locked_kernel_gets_the_other_engine_and_the_reason() {
    let s = Setup::new();
    let _supervisor = supervised(&s, &["a"]);
    s.fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
    let done = up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
    assert_eq!((done.engine, done.result), (Engine::Notify, How::AlreadyUp));
    let text = done.text(Style::Plain);
    assert!(text.contains("notify (the module cannot be used: the kernel is locked down (integrity)"), "{text}");
    assert!(text.contains("note         for the module: ") && text.contains("1 now, by 1 listeners"), "{text}");
}

#[test]
fn a_signature_that_the_kernel_does_not_trust_is_a_reason_too_unless_the_module_was_asked_for() {
    let s = Setup::new();
    let _supervisor = supervised(&s, &[]);
    let refusing = || {
        let kernel = s.kernel();
        kernel.inserts.borrow_mut().push(libc::EKEYREJECTED);
        kernel
    };
    let done = up(&s.fake.host(), &refusing(), &s.options()).expect("up");
    assert_eq!(done.engine, Engine::Notify);
    assert!(done.engine_because.contains("the kernel refuses"), "{}", done.engine_because);
    let asked = UpOptions { engine: Some(Asked::Module), module: s.options(), ..UpOptions::default() };
    let error = super::up(&s.fake.host(), &refusing(), &asked).expect_err("asked for");
    assert_eq!(error.exit(), Exit::Refused);
}

#[test]
fn a_build_that_fails_is_a_failure_and_no_reason_for_the_other_engine() {
    let s = Setup::new();
    let supervisor = supervised(&s, &[]);
    s.fake.tool("make", "echo No space left on device >&2; exit 2");
    let kernel = s.kernel();
    let error = up(&s.fake.host(), &kernel, &s.options()).expect_err("not built");
    assert_eq!((error.code(), error.exit(), kernel.calls.get()), ("build_failed", Exit::Failed, (0, 0)));
    assert!(supervisor.told.lock().expect("ours").is_empty());
    let asked = UpOptions { engine: Some(Asked::Notify), module: s.options(), ..UpOptions::default() };
    assert_eq!(super::up(&s.fake.host(), &kernel, &asked).expect("up").engine, Engine::Notify, "it needs no build");
}

#[test]
fn who_switches_has_one_engine_afterwards() {
    let s = Setup::new();
    let supervisor = supervised(&s, &["a"]);
    let done = up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
    assert_eq!((done.engine, done.result), (Engine::Module, How::Loaded));
    assert!(done.notes[0].contains("is retired, and ends with the last of 1 containers"), "{:?}", done.notes);
    assert_eq!(*supervisor.told.lock().expect("ours"), ["retire\n"]);
    let again = up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
    assert_eq!((again.result, again.notes.len()), (How::AlreadyUp, 0), "retired it is left alone");

    let asked = UpOptions { engine: Some(Asked::Notify), module: s.options(), ..UpOptions::default() };
    let done = super::up(&s.fake.host(), &s.kernel(), &asked).expect("up");
    assert_eq!((done.result, state::is_loaded(&s.fake.host())), (How::Resumed, false));
    assert!(done.notes[0].starts_with("the module was unloaded"), "{:?}", done.notes);
}

#[test]
fn an_unknown_driver_is_no_reason_to_refuse_unless_the_configuration_says_so() {
    let s = Setup::new();
    s.fake.write("/sys/module/nvidia/version", "700.10\n");
    let done = up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
    assert_eq!((done.result, done.exit()), (How::Loaded, Exit::Ok));
    let text = done.text(Style::Plain);
    assert!(text.contains("700.10; newer than the table of this MPU, which ends with branch 610"), "{text}");

    let s = Setup::new();
    s.fake.write("/sys/module/nvidia/version", "700.10\n");
    s.fake.write(mpu_host::config::FILE, "drivers = \"known\"\n");
    let before = s.fake.snapshot();
    let error = up(&s.fake.host(), &s.kernel(), &s.options()).expect_err("unknown");
    assert_eq!((error.code(), error.exit()), ("unknown_driver", Exit::NotReady));
    assert!(error.fix().contains("drivers = \"known\""), "{}", error.fix());
    assert_eq!(s.fake.snapshot(), before);
    let options = UpOptions { module: s.options(), any_driver: true, ..UpOptions::default() };
    let done = super::up(&s.fake.host(), &s.kernel(), &options).expect("up");
    assert!(done.driver.is_some_and(|driver| !driver.known));
}

#[test]
fn the_plugin_is_started_with_the_notify_engine_where_the_configuration_wants_it() {
    let s = Setup::new();
    let _supervisor = FakeSupervisor::on(&s.fake, fake::state(&[]));
    let note = |config: &str| {
        s.fake.write(mpu_host::config::FILE, config);
        let done = up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
        assert_eq!(done.engine, Engine::Notify);
        done.notes.iter().find(|note| note.contains("nri")).cloned().unwrap_or_default()
    };
    let wanted = "engine = \"notify\"\nnri = true\n";
    assert!(note(wanted).contains("there is no mpu-nri.service here"));
    std::fs::create_dir_all(s.fake.host().at("/run/systemd/system")).expect("made");
    s.fake.write("/usr/lib/systemd/system/mpu-nri.service", "");
    let asked = s.fake.host().at("/asked");
    s.fake.tool("systemctl", &format!("echo \"$@\" >{}", asked.display()));
    assert_eq!(note("engine = \"notify\"\n"), "", "nobody wants it");
    assert!(!asked.exists());
    assert!(note(wanted).starts_with("mpu-nri.service is started"));
    let said = std::fs::read_to_string(asked).expect("asked");
    assert_eq!(said, "start --no-block --no-ask-password mpu-nri.service\n");
    s.fake.tool("systemctl", "echo 'Unit mpu-nri.service is masked.' >&2; exit 1");
    assert!(note(wanted).contains("is masked"));
}
