//! `mpu up` on fake hosts, with the real code that starts both engines.

use super::*;
use mpu_engine::module::load::fake::FakeKernel;
use mpu_engine::module::proof::ProbeFn;
use mpu_engine::module::proof::fake::{cannot, misses, only_enters, translates};
use mpu_engine::module::raise::ModuleOptions;
use mpu_engine::module::raise::fake::{BUILDS_BOTH, Setup};
use mpu_engine::module::record::Record;
use mpu_engine::module::{sources, state};
use mpu_host::config::{EngineSetting, FILE};
use mpu_host::host::fake::RELEASE;
use mpu_notify::fake::{self, FakeSupervisor};

fn up_with(s: &Setup, kernel: &FakeKernel<'_>, options: UpOptions) -> Result<Done, Explained> {
    super::up(&s.fake.host(), kernel, &options)
}

/// `mpu up` with the sources at hand and the configured engine.
fn up(s: &Setup, kernel: &FakeKernel<'_>) -> Result<Done, Explained> {
    up_with(s, kernel, UpOptions { module: s.options(), ..UpOptions::default() })
}

fn by(engine: EngineSetting, s: &Setup) -> UpOptions {
    UpOptions { engine: Some(engine), module: s.options(), ..UpOptions::default() }
}

/// Runs `mpu up`, which must fail with this code, after these numbers of insertions and removals.
fn fails(s: &Setup, kernel: &FakeKernel<'_>, options: UpOptions, expect: (&str, Exit, (usize, usize))) -> Explained {
    let error = up_with(s, kernel, options).expect_err(expect.0);
    assert_eq!((error.code(), error.exit(), kernel.calls.get()), expect, "{error}");
    error
}

/// A host whose kernel has listeners, and a supervisor on it.
fn supervised(s: &Setup, containers: &[&str]) -> FakeSupervisor {
    s.fake.can_notify();
    FakeSupervisor::on(&s.fake, fake::state(containers))
}

#[test]
fn repeated_up_is_already_up() {
    let s = Setup::new();
    let done = up(&s, &s.kernel()).expect("up");
    assert_eq!((done.result, done.engine), (How::Loaded, Engine::Module));
    assert!(done.build_seconds.is_some() && done.driver.as_ref().is_some_and(|d| d.era == Some(1)));
    assert_eq!(done.module_state.as_ref().map(|s| &s.phase), Some(&Phase::Armed));
    let text = done.text(Style::Plain);
    assert!(text.starts_with("MPU is up") && text.contains("os_find_ns_pid") && text.contains("550.163.01"), "{text}");
    let record = Record::read(&s.fake.host()).expect("a record");
    assert!(record.since > 1_700_000_000 && record.module.ends_with(format!("{RELEASE}/mpu.ko")));

    let (before, kernel) = (s.fake.snapshot(), s.kernel());
    assert_eq!(up(&s, &kernel).expect("up").result, How::AlreadyUp);
    assert_eq!((kernel.calls.get(), s.fake.snapshot()), ((0, 0), before));
}

/// `mpu up` with a function that calls the driver.
fn up_with_probe(s: &Setup, kernel: &FakeKernel<'_>, probe: ProbeFn) -> Result<Done, Explained> {
    up_with(s, kernel, UpOptions { module: s.options(), probe: Some(probe), ..UpOptions::default() })
}

#[test]
fn up_reports_armed_only_after_translation() {
    let s = Setup::new();
    let done = up_with_probe(&s, &FakeKernel::taking(&s.fake, state::PLACED), translates).expect("up");
    assert_eq!((done.result, done.exit()), (How::Loaded, Exit::Ok));
    crate::report::documented::check(&crate::report::json_of("up", &done));
    let text = done.text(Style::Plain);
    assert!(text.contains("armed: callers in containers are translated"), "{text}");

    let s = Setup::new();
    let kernel = FakeKernel::taking(&s.fake, state::PLACED);
    let done = up_with_probe(&s, &kernel, cannot).expect("up");
    let text = done.text(Style::Plain);
    assert_eq!((done.exit(), done.proof.map(|proof| proof.result)), (Exit::Ok, Some("not_asked")));
    let expected = text.contains("placed: ") && text.contains("no translation was seen yet");
    assert!(expected && !text.contains("armed"), "{text}");
    let again = up_with_probe(&s, &kernel, translates).expect("up");
    assert_eq!((again.result, again.module_state.map(|s| s.phase)), (How::AlreadyUp, Some(Phase::Armed)));
}

#[test]
fn up_unloads_only_module_without_calls() {
    let s = Setup::new();
    let kernel = FakeKernel::taking(&s.fake, state::PLACED);
    let options = UpOptions { module: s.options(), probe: Some(misses), ..UpOptions::default() };
    let error = fails(&s, &kernel, options, ("driver_entry", Exit::Failed, (1, 1)));
    assert!(error.to_string().contains("nvidia_unlocked_ioctl") && !state::is_loaded(&s.fake.host()), "{error}");
    assert_eq!(Record::read(&s.fake.host()), None);

    let done = up_with_probe(&s, &FakeKernel::taking(&s.fake, state::PLACED), only_enters).expect("up");
    assert_eq!((done.exit(), state::is_loaded(&s.fake.host())), (Exit::Failed, true));
    assert!(done.text(Style::Plain).contains("nothing was translated"));
}

#[test]
fn missing_rights_are_reported_first() {
    let s = Setup::new();
    s.fake.write("/proc/self/status", "CapEff:\t0000000000000000\n");
    s.fake.write(&format!("/boot/config-{RELEASE}"), "CONFIG_MODULES=y\n");
    s.fake.write(FILE, "nonsense");
    for engine in [None, Some(EngineSetting::Module), Some(EngineSetting::Notify)] {
        let options = UpOptions { engine, module: s.options(), ..UpOptions::default() };
        let error = fails(&s, &s.kernel(), options, ("not_root", Exit::Refused, (0, 0)));
        assert!(error.to_string().starts_with("this needs root"), "{error}");
    }
    // Root in a container that may load no module: the notify engine needs no module.
    s.fake.remove(FILE);
    let _supervisor = supervised(&s, &["a"]);
    s.fake.write("/proc/self/status", "CapEff:\t0000000000200000\n");
    assert_eq!(up_with(&s, &s.kernel(), by(EngineSetting::Notify, &s)).expect("up").result, How::AlreadyUp);
    // The missing rights come before a missing kernel feature.
    fails(&s, &s.kernel(), by(EngineSetting::Module, &s), ("not_root", Exit::Refused, (0, 0)));
}

#[test]
fn missing_driver_leaves_module_waiting() {
    let s = Setup::new();
    s.fake.remove("/sys/module/nvidia");
    let done = up(&s, &FakeKernel::taking(&s.fake, "version=0.1.0\nstate=waiting\nhooks=\ninside=0\n")).expect("up");
    let text = done.text(Style::Plain);
    assert_eq!(done.exit(), Exit::Ok);
    assert!(text.contains("waiting: the NVIDIA driver is not loaded") && text.contains("none yet"), "{text}");
}

#[test]
fn refused_redirect_leaves_no_module_or_record() {
    let s = Setup::new();
    let kernel = FakeKernel::taking(&s.fake, "version=0.1.0\nstate=refused\nrefused=nvidia_unlocked_ioctl:16\n");
    fails(&s, &kernel, by(EngineSetting::Auto, &s), ("redirect_refused", Exit::Refused, (1, 1)));
    assert_eq!(Record::read(&s.fake.host()), None);
}

#[test]
fn build_only_needs_no_rights() {
    let s = Setup::new();
    s.fake.write("/proc/self/status", "CapEff:\t0000000000000000\n");
    s.fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
    let (kernel, module) = (s.kernel(), ModuleOptions { build_only: true, ..s.options() });
    let done = up_with(&s, &kernel, UpOptions { module, ..UpOptions::default() }).expect("built");
    assert_eq!((done.result, kernel.calls.get()), (How::Built, (0, 0)));
    assert!(done.text(Style::Plain).starts_with("built "));

    let s = Setup::new();
    s.fake.remove("/usr/bin/make");
    let path = s.sources.path().join("mpu.ko");
    std::fs::write(&path, sources::fake::module(RELEASE)).expect("a module");
    let module = ModuleOptions { module: Some(path.clone()), ..ModuleOptions::default() };
    let done = up_with(&s, &s.kernel(), UpOptions { module, ..UpOptions::default() }).expect("up");
    assert_eq!((done.module, done.build_seconds), (Some(path), None));
}

#[test]
fn module_loads_only_with_valid_policy() {
    let s = Setup::new();
    s.fake.write(FILE, "[[rule]]\nsees = \"host\"\ncgroup = \"/monitors\"\n");
    up(&s, &s.kernel()).expect("up");
    assert_eq!(s.fake.host().text("/sys/module/mpu/parameters/policy").as_deref(), Some("host /monitors"));

    let s = Setup::new();
    s.fake.write(FILE, "[[rule]]\nsees = \"host\"\n");
    let error = up(&s, &s.kernel()).expect_err("malformed");
    assert_eq!((error.code(), state::is_loaded(&s.fake.host())), ("config_malformed", false));
}

#[test]
fn replace_option_replaces_other_version() {
    let s = Setup::new();
    s.fake.write("/sys/module/mpu/parameters/state", "version=0.0.9\nstate=armed\n");
    s.fake.tool("make", BUILDS_BOTH);
    let module = ModuleOptions { replace: true, ..s.options() };
    let options = UpOptions { module, ..UpOptions::default() };
    let done = up_with(&s, &s.kernel(), options.clone()).expect("replaced");
    let replaced = (done.result, done.replaced_version.as_deref(), done.gapless);
    assert_eq!(replaced, (How::Replaced, Some("0.0.9"), Some(true)));
    assert!(done.text(Style::Plain).contains("in the place of 0.0.9, without a gap"));
    let kernel = s.kernel();
    let done = up_with(&s, &kernel, options).expect("nothing to replace");
    assert_eq!((done.result, kernel.calls.get()), (How::AlreadyUp, (0, 0)));
}

#[test]
fn locked_down_kernel_gets_notify_engine() {
    let s = Setup::new();
    let _supervisor = supervised(&s, &["a"]);
    s.fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
    let done = up(&s, &s.kernel()).expect("up");
    assert_eq!((done.engine, done.result), (Engine::Notify, How::AlreadyUp));
    let text = done.text(Style::Plain);
    assert!(text.contains("notify (the module cannot be used: the kernel is locked down (integrity)"), "{text}");
    assert!(text.contains("note         for the module: ") && text.contains("1 now, by 1 listeners"), "{text}");
}

#[test]
fn untrusted_signature_falls_back_to_notify() {
    let s = Setup::new();
    let _supervisor = supervised(&s, &[]);
    let refusing = s.kernel();
    refusing.inserts.borrow_mut().extend([libc::EKEYREJECTED; 2]);
    let done = up(&s, &refusing).expect("up");
    assert_eq!(done.engine, Engine::Notify);
    assert!(done.engine_because.contains("the kernel refuses"), "{}", done.engine_because);
    fails(&s, &refusing, by(EngineSetting::Module, &s), ("load_failed", Exit::Refused, (2, 0)));
}

#[test]
fn failed_build_does_not_fall_back() {
    let s = Setup::new();
    let supervisor = supervised(&s, &[]);
    s.fake.tool("make", "echo No space left on device >&2; exit 2");
    let kernel = s.kernel();
    fails(&s, &kernel, by(EngineSetting::Auto, &s), ("build_failed", Exit::Failed, (0, 0)));
    assert!(supervisor.commands.lock().expect("ours").is_empty());
    let done = up_with(&s, &kernel, by(EngineSetting::Notify, &s)).expect("up");
    assert_eq!(done.engine, Engine::Notify, "it needs no build");
}

#[test]
fn switching_leaves_one_engine() {
    let s = Setup::new();
    let supervisor = supervised(&s, &["a"]);
    let done = up(&s, &s.kernel()).expect("up");
    assert_eq!((done.engine, done.result), (Engine::Module, How::Loaded));
    assert!(done.notes[0].contains("is retired, and ends with the last of 1 containers"), "{:?}", done.notes);
    assert_eq!(*supervisor.commands.lock().expect("ours"), ["retire\n"]);
    let again = up(&s, &s.kernel()).expect("up");
    assert_eq!((again.result, again.notes.len()), (How::AlreadyUp, 0), "retired it is left alone");

    let done = up_with(&s, &s.kernel(), by(EngineSetting::Notify, &s)).expect("up");
    assert_eq!((done.result, state::is_loaded(&s.fake.host())), (How::Resumed, false));
    assert!(done.notes[0].starts_with("the module was unloaded"), "{:?}", done.notes);
}

#[test]
fn unknown_driver_is_refused_only_if_configured() {
    let s = Setup::new();
    s.fake.write("/sys/module/nvidia/version", "700.10\n");
    let done = up(&s, &s.kernel()).expect("up");
    assert_eq!((done.result, done.exit()), (How::Loaded, Exit::Ok));
    let text = done.text(Style::Plain);
    assert!(text.contains("700.10; newer than the table of this MPU"), "{text}");

    let s = Setup::new();
    s.fake.write("/sys/module/nvidia/version", "700.10\n");
    s.fake.write(FILE, "drivers = \"known\"\n");
    let before = s.fake.snapshot();
    let error = fails(&s, &s.kernel(), by(EngineSetting::Auto, &s), ("unknown_driver", Exit::NotReady, (0, 0)));
    assert!(error.fix().contains("drivers = \"known\""), "{}", error.fix());
    assert_eq!(s.fake.snapshot(), before);
    let done = up_with(&s, &s.kernel(), UpOptions { any_driver: true, ..by(EngineSetting::Auto, &s) }).expect("up");
    assert!(done.driver.is_some_and(|driver| !driver.known));
}

#[test]
fn configured_plugin_starts_with_notify_engine() {
    let s = Setup::new();
    let _supervisor = FakeSupervisor::on(&s.fake, fake::state(&[]));
    let note = |config: &str| {
        s.fake.write(FILE, config);
        let done = up(&s, &s.kernel()).expect("up");
        assert_eq!(done.engine, Engine::Notify);
        done.notes.iter().find(|note| note.contains("nri")).cloned().unwrap_or_default()
    };
    let config = "engine = \"notify\"\nnri = true\n";
    assert!(note(config).contains("there is no mpu-nri.service here"));
    std::fs::create_dir_all(s.fake.host().at("/run/systemd/system")).expect("made");
    s.fake.write("/usr/lib/systemd/system/mpu-nri.service", "");
    let calls = s.fake.host().at("/asked");
    s.fake.tool("systemctl", &format!("echo \"$@\" >{}", calls.display()));
    assert_eq!(note("engine = \"notify\"\n"), "", "it is not configured");
    assert!(!calls.exists());
    assert!(note(config).starts_with("mpu-nri.service is started"));
    let call = std::fs::read_to_string(calls).expect("asked");
    assert_eq!(call, "start --no-block --no-ask-password mpu-nri.service\n");
    s.fake.tool("systemctl", "echo 'Unit mpu-nri.service is masked.' >&2; exit 1");
    assert!(note(config).contains("is masked"));
}
