//! The engine after `mpu up --replace`: a working engine is never lost to one that does not come up.

use super::*;
use crate::module::load::fake::FakeKernel;
use crate::module::prebuilt::{self, FOLDERS};
use crate::module::raise::fake::{BUILDS_BOTH, Setup};
use crate::module::sources;
use mpu_host::host::fake::RELEASE;
use mpu_notify::fake::FakeSupervisor;
use std::fs;

const OLD: &str = "version=0.0.9\nabi=2\nstate=armed\nredirect=direct\ninside=0\n";
const OLD_FILE: &str = "/elsewhere/mpu.ko";

/// A host on which 0.0.9 is up, from a file that still exists.
fn with_old() -> Setup {
    let s = Setup::new();
    s.fake.tool("make", BUILDS_BOTH);
    s.fake.write("/sys/module/mpu/parameters/state", OLD);
    s.fake.write("/sys/module/mpu/parameters/policy", "host /before\n");
    s.fake.write(OLD_FILE, "");
    let file = s.fake.host().at(OLD_FILE);
    fs::write(&file, sources::fake::module_of("mpu", RELEASE, "0.0.9")).expect("a module");
    s.fake.write(
        "/run/mpu/up.json",
        &format!("{{\"since\":1,\"module\":{:?},\"by_agent\":true}}", file.display().to_string()),
    );
    s
}

fn replace(s: &Setup, kernel: &FakeKernel<'_>, module: ModuleOptions) -> Result<Up, Explained> {
    let module = ModuleOptions { replace: true, ..module };
    up(&s.fake.host(), kernel, &UpOptions { module, ..UpOptions::default() })
}

fn version_up(s: &Setup) -> Option<String> {
    state::read(&s.fake.host()).expect("readable").map(|state| state.version)
}

#[test]
fn running_module_stays_if_replacement_fails() {
    // No headers, and the modules that were built elsewhere are still the old version's.
    let s = with_old();
    s.fake.can_notify();
    s.fake.remove(&format!("/lib/modules/{RELEASE}/build"));
    prebuilt::fake::put(&s.fake, FOLDERS[0], RELEASE, RELEASE, "0.0.9");
    let _supervisor = FakeSupervisor::on(&s.fake, mpu_notify::fake::state(&[]));
    for config in ["", "modules = \"prebuilt\"\n"] {
        s.fake.write("/etc/mpu/config.toml", config);
        let error = replace(&s, &s.kernel(), ModuleOptions::default()).expect_err("none fits");
        assert_eq!(version_up(&s).as_deref(), Some("0.0.9"), "{config}");
        assert!(error.to_string().ends_with("; MPU 0.0.9 is up"), "{error}");
    }
    // The kernel does not trust the key of its signature.
    let s = with_old();
    s.fake.can_notify();
    let _supervisor = FakeSupervisor::on(&s.fake, mpu_notify::fake::state(&[]));
    let kernel = s.kernel();
    kernel.inserts.borrow_mut().push(libc::EKEYREJECTED);
    let error = replace(&s, &kernel, s.options()).expect_err("refused");
    assert_eq!((error.code(), version_up(&s).as_deref()), ("load_failed", Some("0.0.9")), "{error}");
}

#[test]
fn refused_module_without_predecessor_selects_notify_engine() {
    let s = with_old();
    s.fake.can_notify();
    s.fake.remove("/sys/module/mpu");
    let _supervisor = FakeSupervisor::on(&s.fake, mpu_notify::fake::state(&[]));
    let kernel = s.kernel();
    kernel.inserts.borrow_mut().push(libc::EKEYREJECTED);
    assert_eq!(replace(&s, &kernel, s.options()).expect("up").choice.engine, Engine::Notify);
}

#[test]
fn old_module_returns_if_replacement_is_refused() {
    let s = with_old();
    let kernel = s.kernel();
    kernel.inserts.borrow_mut().push(libc::EPROTO);
    kernel
        .states
        .borrow_mut()
        .extend(["version=0.2.0\nabi=2\nstate=refused\nrefused=os_is_init_ns:-16\n".to_string(), OLD.to_string()]);
    let error = replace(&s, &kernel, s.options()).expect_err("a live patch has it");
    assert_eq!((error.code(), version_up(&s).as_deref()), ("redirect_refused", Some("0.0.9")), "{error}");
    assert!(error.to_string().ends_with("; MPU 0.0.9 is up"), "{error}");
    let rules = state::read_policy(&s.fake.host()).expect("readable").expect("up");
    assert_eq!(rules, ["host /before"], "with the rules that it had");
    assert!(Record::read(&s.fake.host()).expect("written").by_agent, "it is whose it was");
}

#[test]
fn missing_old_file_reports_no_engine_up() {
    let s = with_old();
    // The new version lies in its place.
    fs::write(s.fake.host().at(OLD_FILE), sources::fake::module(RELEASE)).expect("a module");
    let kernel = s.kernel();
    kernel.inserts.borrow_mut().push(libc::EPROTO);
    kernel.states.borrow_mut().push("version=0.2.0\nabi=2\nstate=refused\nrefused=os_is_init_ns:-16\n".to_string());
    let error = replace(&s, &kernel, s.options()).expect_err("a live patch has it");
    assert_eq!((error.code(), version_up(&s)), ("redirect_refused", None), "{error}");
    assert!(error.to_string().ends_with("; no engine is up now"), "{error}");
}

#[test]
fn old_module_returns_if_replacement_gets_no_calls() {
    let s = with_old();
    let kernel = FakeKernel::taking(&s.fake, state::PLACED);
    kernel.states.borrow_mut().extend([state::PLACED.to_string(), state::PLACED.to_string(), OLD.to_string()]);
    let module = ModuleOptions { replace: true, ..s.options() };
    let options = UpOptions { module, probe: Some(|_, _| Ok(())), ..UpOptions::default() };
    let error = up(&s.fake.host(), &kernel, &options).expect_err("not entered");
    assert_eq!((error.code(), version_up(&s).as_deref()), ("driver_entry", Some("0.0.9")), "{error}");
}

#[test]
fn refused_redirect_mode_restores_previous_mode() {
    let s = with_old();
    s.fake.remove(OLD_FILE);
    s.fake.write("/etc/mpu/config.toml", "redirect = \"ipmodify\"\n");
    let kernel = s.kernel();
    // The instance that is up redirects by direct calls, and the new one is configured not to.
    kernel.inserts.borrow_mut().push(libc::EPROTO);
    kernel.states.borrow_mut().push("version=0.2.0\nabi=2\nstate=refused\nrefused=functions:-16\n".to_string());
    let error = replace(&s, &kernel, s.options()).expect_err("refused");
    let this = env!("CARGO_PKG_VERSION");
    assert_eq!((error.code(), version_up(&s).as_deref()), ("redirect_refused", Some(this)), "{error}");
    assert!(error.to_string().ends_with(&format!("; MPU {this} is up")), "{error}");
    assert_eq!(s.fake.host().text("/sys/module/mpu/parameters/redirect").as_deref(), Some("auto"));
}

#[test]
fn module_is_preferred_if_host_can_run_it() {
    let s = Setup::new();
    s.fake.can_notify();
    let choice = |engine, module: &ModuleOptions| {
        let options = UpOptions { engine: Some(engine), module: module.clone(), ..UpOptions::default() };
        preflight(&s.fake.host(), &Config::default(), &options).expect("a choice").choice
    };
    let auto = ModuleOptions::default();
    assert_eq!(choice(EngineSetting::Auto, &s.options()).engine, Engine::Module);
    s.fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
    let found = choice(EngineSetting::Auto, &auto);
    assert_eq!(found.engine, Engine::Notify);
    assert!(found.why.contains("locked down (integrity)") && found.better.is_some(), "{found:?}");
    assert_eq!(choice(EngineSetting::Module, &auto).engine, Engine::Module, "what is asked for is taken");
    let build = ModuleOptions { build_only: true, ..auto.clone() };
    assert_eq!(choice(EngineSetting::Auto, &build).engine, Engine::Module, "there is nothing to build of the other");

    s.fake.write("/proc/sys/kernel/osrelease", "5.8.0-generic");
    assert_eq!(choice(EngineSetting::Auto, &auto).engine, Engine::Module, "neither: the module says what is missing");
    s.fake.write("/proc/sys/kernel/osrelease", RELEASE);
    s.fake.write("/proc/self/status", "CapEff:\t0000000000000000\n");
    assert_eq!(
        choice(EngineSetting::Auto, &auto).engine,
        Engine::Module,
        "who has no rights learns nothing of the host"
    );
}
