//! What the kernel and its owner allow, and what is there to build a module with.

use super::{Group, Level, Row, Seen};
use crate::engine::module::build::STORE;
use crate::engine::module::{checks, installed, state};
use crate::host::{Host, Lockdown, CAP_SYS_MODULE};
use std::path::Path;

/// The variable by which the firmware says whether Secure Boot is on (UEFI specification, section 3.3): four bytes of
/// attributes, then 0 or 1.
const SECURE_BOOT: &str = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// Where the field keeps a machine owner's key: DKMS from 3.0 on, DKMS on Ubuntu, and ours.
const OWNER_KEYS: [&str; 3] = ["/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der", "/etc/mpu/signing.der"];

pub const CHECKS: &[Row] = &[
    ("root", Group::Kernel, "whether this runs as root: without, some checks cannot look", root),
    ("kernel", Group::Kernel, "the kernel's version and configuration: direct calls, kprobes, modules", kernel),
    ("modules_allowed", Group::Kernel, "whether modules can be loaded at all until the next boot", modules_allowed),
    (
        "function_tracing",
        Group::Kernel,
        "whether function tracing is on: the module's redirects are made by it",
        tracing,
    ),
    (
        "signatures",
        Group::Kernel,
        "Secure Boot, lockdown and signature enforcement, and whether the module at hand is signed",
        signatures,
    ),
    (
        "headers",
        Group::Kernel,
        "headers and compiler of the running kernel, or a module that is built already",
        headers,
    ),
    (
        "next_kernel",
        Group::Kernel,
        "whether the newest installed kernel can have its module, too: the next boot may be into it",
        next_kernel,
    ),
];

fn root(host: &Host) -> Seen {
    match host.has_capability(CAP_SYS_MODULE) {
        true => Seen::fine("yes"),
        false => Seen::attention("not root: what only root may read was not looked at", "sudo mpu doctor"),
    }
}

fn kernel(host: &Host) -> Seen {
    match checks::kernel(host) {
        Ok(release) => Seen::fine(release),
        Err(unfit) => Seen::of(Level::Broken, &unfit),
    }
}

fn modules_allowed(host: &Host) -> Seen {
    match (host.modules_disabled(), state::is_loaded(host)) {
        (false, _) => Seen::fine("yes"),
        (true, true) => Seen::attention(
            "module loading is shut off: the engine that is up works, and cannot be replaced before a reboot",
            "systemctl enable mpu.service   # so that the next boot starts it before the setting is made",
        ),
        (true, false) => Seen::of(Level::Broken, &checks::Unfit::ModulesDisabled),
    }
}

fn tracing(host: &Host) -> Seen {
    match host.ftrace_disabled() {
        false => Seen::fine("on"),
        true => Seen::of(Level::Broken, &checks::Unfit::FtraceDisabled),
    }
}

fn signatures(host: &Host) -> Seen {
    let secure_boot = std::fs::read(host.at(SECURE_BOOT)).is_ok_and(|bytes| bytes.get(4) == Some(&1));
    let locked = host.lockdown() != Lockdown::None;
    let said = match (secure_boot, locked, host.enforces_signatures()) {
        (_, false, false) => {
            return Seen::fine(if secure_boot { "Secure Boot; any module is taken" } else { "any module is taken" })
        }
        (true, ..) => "Secure Boot: signed modules only",
        (_, true, _) => "the kernel is locked down: signed modules only",
        _ => "the kernel takes signed modules only",
    };
    if state::is_loaded(host) {
        return Seen::fine(format!("{said}; the module is loaded"));
    }
    let release = host.release().unwrap_or_default();
    if installed::find(host, &release).is_some_and(|built| built.signed) {
        return Seen::fine(format!("{said}; the installed module is signed"));
    }
    let key = OWNER_KEYS.iter().find(|key| host.at(key).is_file());
    let fix = match key {
        Some(key) => format!(
            "mokutil --import {key}   # and reboot; then let DKMS sign: dkms install mpu/{} --force",
            env!("CARGO_PKG_VERSION")
        ),
        None => "dkms generate_mok && mokutil --import /var/lib/dkms/mok.pub   # and reboot".to_string(),
    };
    Seen::broken(format!("{said}, and there is no signed module of MPU"), fix)
}

fn headers(host: &Host) -> Seen {
    let Ok(release) = host.release() else { return Seen::skipped("the kernel's release is not known") };
    if let Some(built) = installed::find(host, &release) {
        return Seen::fine(format!("not needed: {} is installed", built.path.display()));
    }
    match checks::toolchain(host, &release) {
        Ok(_) => Seen::fine(format!("those of {release}")),
        Err(unfit) if host.at(STORE).join(&release).join("mpu.ko").is_file() => Seen::of(Level::Attention, &unfit),
        Err(unfit) if state::is_loaded(host) => Seen::of(Level::Attention, &unfit),
        Err(unfit) => Seen::of(Level::Broken, &unfit),
    }
}

fn next_kernel(host: &Host) -> Seen {
    let Ok(running) = host.release() else { return Seen::skipped("the kernel's release is not known") };
    let names = std::fs::read_dir(host.at("/lib/modules")).into_iter().flatten().flatten();
    let mut releases: Vec<String> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    releases.sort_by_key(|release| checks::version_numbers(release));
    let Some(newest) = releases.pop().filter(|newest| *newest != running) else {
        return Seen::fine("the running kernel is the newest");
    };
    let built = installed::find(host, &newest).is_some();
    let buildable = host.at("/lib/modules").join(&newest).join("build").join("Makefile").is_file();
    match built || buildable {
        true => {
            Seen::fine(format!("{newest}: {}", if built { "its module is there" } else { "its headers are there" }))
        }
        false => Seen::attention(
            format!("kernel {newest} is installed without its headers: after a boot into it there is no module"),
            host.headers_hint(&newest),
        ),
    }
}

/// Whether DKMS, if it has the module's sources, has built the module for the running kernel.
pub fn dkms(host: &Host) -> Seen {
    let version = env!("CARGO_PKG_VERSION");
    let tree = Path::new("/var/lib/dkms/mpu");
    if !host.at(tree).is_dir() {
        return Seen::skipped("the module is not DKMS's here");
    }
    let Ok(release) = host.release() else { return Seen::skipped("the kernel's release is not known") };
    if installed::find(host, &release).is_some() {
        return Seen::fine(format!("mpu/{version} for {release}"));
    }
    let log = tree.join(version).join("build/make.log");
    let failed = host.at(&log).is_file();
    let fix = if failed {
        format!("tail {}   # says why; then dkms install mpu/{version}", log.display())
    } else {
        format!("dkms install mpu/{version} -k {release}")
    };
    Seen::attention(format!("DKMS has no module of MPU {version} for {release}"), fix)
}
