//! Checks of the kernel: version, restrictions, and the tools to build a module.

use super::check::{CheckResult, CheckRow, Level};
use mpu_engine::module::build::STORE;
use mpu_engine::module::checks::{self, Unfit};
use mpu_engine::module::plan::{self, Origin};
use mpu_engine::module::record::Record;
use mpu_engine::module::sources::{self, Built, PassedOver};
use mpu_engine::module::{prebuilt, state};
use mpu_engine::signing::{self, Enrolled, Key, Signer};
use mpu_host::config::{Config, Modules};
use mpu_host::host::{CAP_SYS_MODULE, Host, Lockdown};
use mpu_host::kernel_release;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub const CHECKS: &[CheckRow] = &[
    ("root", "whether this runs as root: without root, some checks cannot look", root),
    ("kernel", "the kernel's version and configuration: direct calls, kprobes, modules", kernel),
    ("modules_allowed", "whether modules can be loaded at all until the next boot", modules_allowed),
    ("function_tracing", "whether function tracing is on: the module's redirects do not work without it", tracing),
    (
        "signatures",
        "Secure Boot, lockdown and signature enforcement, and whether the module at hand is signed",
        signatures,
    ),
    ("headers", "headers and compiler of the running kernel, or a module that is built already", headers),
    ("module_file", "which module file is used or would be, and which were passed over and why", module_file),
    (
        "next_kernel",
        "whether the newest installed kernel can have its module too: the next boot may start that kernel",
        next_kernel,
    ),
];

fn root(host: &Host) -> CheckResult {
    match host.has_capability(CAP_SYS_MODULE) {
        true => CheckResult::ok("yes"),
        false => CheckResult::attention("not root: files that only root may read were not checked", "sudo mpu doctor"),
    }
}

fn kernel(host: &Host) -> CheckResult {
    match checks::kernel(host) {
        Ok(release) => CheckResult::ok(release),
        Err(unfit) => CheckResult::from_error(Level::Broken, &unfit),
    }
}

fn modules_allowed(host: &Host) -> CheckResult {
    match (host.modules_disabled(), state::is_loaded(host)) {
        (false, _) => CheckResult::ok("yes"),
        (true, true) => CheckResult::attention(
            "module loading is disabled: the engine that is up works, and cannot be replaced before a reboot",
            "sudo systemctl enable mpu.service   # so that the next boot starts it before the setting applies",
        ),
        (true, false) => CheckResult::from_error(Level::Broken, &Unfit::ModulesDisabled),
    }
}

fn tracing(host: &Host) -> CheckResult {
    match (host.ftrace_disabled(), state::read(host)) {
        (false, _) => CheckResult::ok("on"),
        (true, Ok(Some(state))) if state.phase.is_placed() => CheckResult::broken(
            "function tracing was switched off (kernel.ftrace_enabled = 0) under the module: its redirects do \
                nothing, and containers see what \
             the driver shows them by itself",
            "sudo sysctl kernel.ftrace_enabled=1",
        ),
        (true, _) => CheckResult::from_error(Level::Broken, &Unfit::FtraceDisabled),
    }
}

fn signatures(host: &Host) -> CheckResult {
    let secure_boot = signing::secure_boot(host) == Some(true);
    let locked = host.lockdown() != Lockdown::None;
    let boot = match (secure_boot, locked, host.enforces_signatures()) {
        (_, false, false) => {
            return CheckResult::ok(if secure_boot { "Secure Boot; any module loads" } else { "any module loads" });
        }
        (true, ..) => "Secure Boot: signed modules only",
        (_, true, _) => "the kernel is locked down: signed modules only",
        _ => "the kernel accepts signed modules only",
    };
    if state::is_loaded(host) {
        return CheckResult::ok(format!("{boot}; the module is loaded"));
    }
    let release = host.release().unwrap_or_default();
    let installed = ready_made(host, &release);
    if installed.as_ref().is_some_and(|built| built.signed) {
        return CheckResult::ok(format!("{boot}; the installed module is signed"));
    }
    let unsigned = installed.as_ref().map(|built| built.path.as_path());
    let fix = super::check::shell_safe(signing::advice(host, &release, unsigned));
    match Key::find(host).filter(|_| unsigned.is_none() && Signer::find(host, &release).is_some()) {
        Some(key) if key.enrolled(host) != Enrolled::No => {
            CheckResult::ok(format!("{boot}; `mpu up` signs what it builds with {}", key.private))
        }
        Some(key) => CheckResult::attention(format!("{boot}, and the firmware does not know {}", key.certificate), fix),
        None => CheckResult::broken(format!("{boot}, and there is no signed module of MPU"), fix),
    }
}

/// The module that `mpu up` loads without a build.
fn ready_made(host: &Host, release: &str) -> Option<Built> {
    plan::ready_made(host, release, modules(host)).file.map(|(_, built)| built)
}

fn modules(host: &Host) -> Modules {
    Config::of(host).unwrap_or_default().modules
}

/// Which module file is used or would be, and why.
fn module_file(host: &Host) -> CheckResult {
    let Ok(release) = host.release() else { return CheckResult::skipped("the kernel's release is not known") };
    let ready = plan::ready_made(host, &release, modules(host));
    let loaded = Record::read(host).filter(|_| state::is_loaded(host));
    let in_words = |path: &Path, origin: Origin| format!("{} ({})", path.display(), origin.in_words());
    let used = match (&loaded, &ready.file) {
        (Some(record), _) => record.origin.map_or(record.module.display().to_string(), |o| in_words(&record.module, o)),
        (None, Some((origin, built))) => format!("`mpu up` takes {}", in_words(&built.path, *origin)),
        (None, None) if modules(host) == Modules::Prebuilt => "none, and `mpu up` builds none here".to_string(),
        (None, None) => "none yet: `mpu up` builds one".to_string(),
    };
    let recorded = loaded.map(|record| record.passed_over).unwrap_or_default();
    let over = if recorded.is_empty() { ready.passed_over } else { recorded };
    if over.is_empty() {
        return CheckResult::ok(used);
    }
    let is_elsewhere = |over: &PassedOver| !over.path.starts_with(host.at("/lib/modules"));
    let fix = match over.iter().any(is_elsewhere) {
        true => format!("# {}", prebuilt::advice(&release, signing::demanded(host))),
        false => {
            "# mend the file as described, or remove it: `mpu up` builds a module where none is at hand".to_string()
        }
    };
    CheckResult::attention(format!("{used}; passed over: {}", sources::in_words(&over)), fix)
}

fn headers(host: &Host) -> CheckResult {
    let Ok(release) = host.release() else { return CheckResult::skipped("the kernel's release is not known") };
    if let Some(built) = ready_made(host, &release) {
        return CheckResult::ok(format!("not needed: {} is there", built.path.display()));
    }
    match checks::toolchain(host, &release) {
        Ok(_) => CheckResult::ok(format!("those of {release}")),
        Err(Unfit::NoHeaders { .. }) if is_unreadable(&makefile(host, &release)) => {
            CheckResult::skipped("only root can read the kernel's headers")
        }
        Err(unfit) if host.at(STORE).join(&release).join("mpu.ko").is_file() => {
            CheckResult::from_error(Level::Attention, &unfit)
        }
        Err(unfit) if state::is_loaded(host) => CheckResult::from_error(Level::Attention, &unfit),
        Err(unfit) => CheckResult::from_error(Level::Broken, &unfit),
    }
}

fn next_kernel(host: &Host) -> CheckResult {
    let Ok(running) = host.release() else { return CheckResult::skipped("the kernel's release is not known") };
    let mut releases = host.names("/lib/modules");
    releases.sort_by_cached_key(|release| (kernel_release::numbers(release), release.clone()));
    let is_newer = |release: &String| kernel_release::numbers(release) > kernel_release::numbers(&running);
    let Some(newest) = releases.pop().filter(is_newer) else {
        return CheckResult::ok("the running kernel is the newest");
    };
    let built = ready_made(host, &newest).is_some();
    let makefile = makefile(host, &newest);
    if !built && is_unreadable(&makefile) {
        return CheckResult::skipped(format!("only root can read the headers of {newest}"));
    }
    match built || makefile.is_file() {
        true => CheckResult::ok(format!(
            "{newest}: {}",
            if built { "its module is there" } else { "its headers are there" }
        )),
        false => CheckResult::attention(
            format!("kernel {newest} is installed without its headers: after a boot of that kernel there is no module"),
            super::check::shell_safe(host.headers_hint(&newest)),
        ),
    }
}

/// A file that every kernel's headers have.
fn makefile(host: &Host, release: &str) -> PathBuf {
    host.at("/lib/modules").join(release).join("build/Makefile")
}

/// Whether this process may not see whether a file exists.
fn is_unreadable(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Whether DKMS, if it has the module's sources, has built the module for the running kernel.
pub fn dkms(host: &Host) -> CheckResult {
    let version = env!("CARGO_PKG_VERSION");
    let tree = Path::new("/var/lib/dkms/mpu");
    if !host.at(tree).is_dir() {
        return CheckResult::skipped("DKMS does not manage the module here");
    }
    let Ok(release) = host.release() else { return CheckResult::skipped("the kernel's release is not known") };
    let found = prebuilt::find_installed(host, &release);
    if found.usable.is_some() {
        return CheckResult::ok(format!("mpu/{version} for {release}"));
    }
    let log = tree.join(version).join("build/make.log");
    let failed = host.at(&log).is_file();
    let fix = if failed {
        format!("tail {}   # says why; then sudo dkms install mpu/{version}", log.display())
    } else {
        format!("sudo dkms install mpu/{version} -k {release}")
    };
    let text = match found.passed_over.as_slice() {
        [] => format!("DKMS has no module of MPU {version} for {release}"),
        over => format!("no module of DKMS for {release} can be used: {}", sources::in_words(over)),
    };
    CheckResult::attention(text, fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::{FakeHost, RELEASE};
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn headers_without_permission_are_skipped() {
        let fake = FakeHost::in_order();
        let newer = RELEASE.replace("6.1.0", "6.2.0");
        fake.write(&format!("/lib/modules/{newer}/build/Makefile"), "# a kernel's\n");
        let folders = [RELEASE, newer.as_str()].map(|release| fake.host().at(format!("/lib/modules/{release}/build")));
        let set_mode =
            |mode| folders.iter().for_each(|f| fs::set_permissions(f, Permissions::from_mode(mode)).expect("set"));
        let check_all = |host: &Host| [headers, next_kernel].map(|check| check(host).level);
        assert_eq!(check_all(&fake.host()), [Level::Ok; 2]);
        set_mode(0o000);
        let host = fake.host();
        // Root without capabilities is stopped by a folder's mode, too.
        let levels = std::thread::spawn(move || {
            let sets = CapabilitySets { effective: CapabilitySet::empty(), ..capabilities(None).expect("read") };
            set_capabilities(None, sets).expect("dropped");
            check_all(&host)
        });
        let levels = levels.join().expect("no panic");
        set_mode(0o755);
        assert_eq!(levels, [Level::Skipped; 2]);
    }
}
