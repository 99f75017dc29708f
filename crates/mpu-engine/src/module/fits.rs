//! Whether this host can have the module, found out without building or changing anything.
//!
//! Owns the question that `auto` asks before it takes another engine. The conditions are `checks`'s, and how the module is then
//! raised is `raise`'s. What can only be known by loading (a redirect that another module holds) is not looked at here.

use super::build::Store;
use super::checks;
use super::error::ModuleError;
use super::raise::{is_of_no_use, may_load, sources_of, ModuleOptions};
use super::{foreign, state, which};
use mpu_host::driver::Driver;
use mpu_host::host::{Host, CAP_SYS_MODULE};

/// Why it cannot; none if it can, or is up already. A caller without rights learns nothing here: what it lacks is the same for
/// every engine. A driver of an unknown release is no reason either: it is as unknown to any other engine.
///
/// # Errors
/// When it cannot be known: the state of a module that is up cannot be read.
pub fn unfit(
    host: &Host,
    options: &ModuleOptions,
    driver: Option<&Driver>,
) -> Result<Option<ModuleError>, ModuleError> {
    if !host.has_capability(CAP_SYS_MODULE) {
        return Ok(None);
    }
    if state::read(host)?.is_some_and(|state| !is_of_no_use(&state, driver)) {
        return Ok(None);
    }
    if let Err(unfit) = foreign::names_are_free(host) {
        return Ok(Some(unfit.into()));
    }
    let release = match checks::kernel(host) {
        Ok(release) => release,
        Err(unfit) => return Ok(Some(unfit.into())),
    };
    let ready = which::ready_made(host, &release, options.modules);
    let after = |error: ModuleError| Ok(Some(error.after(ready.passed_over.clone())));
    let file = ready.file.as_ref().map(|(_, built)| built);
    match may_load(host, &release, options, file, ready.wants_signature) {
        Err(error @ ModuleError::Unfit(_)) => return after(error),
        other => other?,
    }
    if file.is_some() {
        return Ok(None);
    }
    let kept = || Store::kept(host, &release, &sources_of(options).ok()?);
    match checks::toolchain(host, &release) {
        Err(unfit) if kept().is_none() => after(unfit.into()),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::super::raise::fake::Setup;
    use super::*;
    use mpu_host::explain::Explain;
    use mpu_host::host::fake::RELEASE;

    fn why(setup: &Setup) -> Option<&'static str> {
        let host = setup.fake.host();
        unfit(&host, &setup.options(), Driver::loaded(&host).as_ref()).expect("known").map(|unfit| unfit.code())
    }

    #[test]
    fn a_host_in_order_fits_and_each_broken_one_has_its_reason() {
        assert_eq!(why(&Setup::new()), None);
        let check = |file: &str, text: &str, expect| {
            let s = Setup::new();
            s.fake.write(file, text);
            assert_eq!(why(&s), expect, "{file}");
        };
        check("/sys/kernel/security/lockdown", "none [integrity] confidentiality", Some("locked_down"));
        check("/sys/module/module/parameters/sig_enforce", "Y", Some("signatures_enforced"));
        check("/proc/sys/kernel/modules_disabled", "1", Some("modules_disabled"));
        check("/proc/sys/kernel/ftrace_enabled", "0", Some("ftrace_disabled"));
        check(&format!("/boot/config-{RELEASE}"), "CONFIG_MODULES=y\n", Some("missing_kernel_option"));
        check("/sys/module/nvidia/version", "700.10", None);
        check("/proc/self/status", "CapEff:\t0000000000000000\n", None);
        check("/sys/module/mpu/initstate", "live", Some("foreign_module"));
        check("/sys/module/mpu_next/initstate", "live", Some("foreign_module"));
        let s = Setup::new();
        s.fake.remove("/usr/bin/make");
        assert_eq!(why(&s), Some("no_make"));
    }

    #[test]
    fn a_module_that_is_up_fits_whatever_the_host_would_say_now() {
        let s = Setup::new();
        s.fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
        s.fake.write("/sys/module/mpu/parameters/state", state::ARMED);
        assert_eq!(why(&s), None);
        s.fake.write("/sys/module/mpu/parameters/state", "version=0.1.0\nstate=refused\nrefused=os_is_init_ns:16\n");
        assert_eq!(why(&s), Some("locked_down"), "one that does nothing would have to be loaded anew");
    }
}
