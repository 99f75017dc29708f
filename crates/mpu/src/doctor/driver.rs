//! Checks of the NVIDIA driver: loaded, known, complete, and its answers to containers.

use super::check::{CheckResult, CheckRow, Level};
use super::engine_in_use::uses_notify;
use crate::container_engines::{self, GpuSupport};
use crate::probe::compare;
use mpu_engine::Engine;
use mpu_host::config::{Config, Drivers};
use mpu_host::driver::Driver;
use mpu_host::host::{CAP_SYS_ADMIN, Host};
use std::path::{Component, Path, PathBuf};

const LIBRARIES: [&str; 8] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu",
];

pub const CHECKS: &[CheckRow] = &[
    ("driver", "whether a driver is loaded, and is a release that this MPU was checked against", driver),
    (
        "driver_library",
        "whether libnvidia-ml has the loaded driver's version: if not, every NVML tool fails, everywhere",
        library,
    ),
    ("device_nodes", "the driver's device files: without them no program reaches the driver", nodes),
];

pub const CONTAINERS: &[CheckRow] = &[
    ("containers", "what a process in a fresh PID namespace sees on this host right now", containers),
    ("container_gpus", "whether the container engines of this host can put GPUs into containers", container_gpus),
];

fn driver(host: &Host) -> CheckResult {
    let Some(driver) = Driver::loaded(host) else {
        return match has_module(host) {
            false => CheckResult::attention(
                "no NVIDIA driver is installed for the running kernel; MPU waits for one",
                "# install NVIDIA's driver; MPU takes no part in that",
            ),
            true => CheckResult::attention("no NVIDIA driver is loaded; MPU waits for one", "sudo modprobe nvidia"),
        };
    };
    let Some(why) = driver.unknown_because() else { return CheckResult::ok(driver.version) };
    let what = format!("{}: {why}; MPU translates what it finds there", driver.version);
    match Config::of(host).is_ok_and(|config| config.drivers == Drivers::Known) {
        false => CheckResult::attention(
            what,
            "sudo mpu probe   # says whether containers get right answers; a newer MPU may know the release",
        ),
        true => CheckResult::broken(
            format!("{}: {why}, and /etc/mpu/config.toml has drivers = \"known\": `mpu up` refuses it", driver.version),
            "# update MPU, or remove `drivers` from /etc/mpu/config.toml",
        ),
    }
}

/// Whether `modprobe nvidia` would find the module. True if depmod's list cannot be read.
fn has_module(host: &Host) -> bool {
    let release = host.release().unwrap_or_default();
    let list = host.beginning(Path::new("/lib/modules").join(release).join("modules.dep"), 16 << 20);
    let names = [b"/nvidia.ko".as_slice(), b"/nvidia-current.ko"];
    list.is_none_or(|list| names.iter().any(|name| list.windows(name.len()).any(|window| window == *name)))
}

fn library(host: &Host) -> CheckResult {
    let Some(driver) = Driver::loaded(host) else { return CheckResult::skipped("no driver is loaded") };
    let found: Vec<String> = LIBRARIES.iter().filter_map(|dir| version_of(host, dir)).collect();
    // With several libraries, the loader decides which one a program gets.
    match found.iter().find(|version| **version == driver.version).or(found.first()) {
        None => CheckResult::skipped("there is no libnvidia-ml.so.1 with a version in the usual places"),
        Some(version) if *version == driver.version => CheckResult::ok(version),
        Some(version) => CheckResult::broken(
            format!(
                "libnvidia-ml is {version}, and the loaded driver is {}: programs get \"Driver/library version mismatch\"",
                driver.version
            ),
            "# the driver was updated and not reloaded: reboot, or end its users, unload it (nvidia_uvm, \
                nvidia_drm, nvidia_modeset, nvidia) \
             and `modprobe nvidia`",
        ),
    }
}

/// The version in the name of the file to which `libnvidia-ml.so.1` links. Some hosts have two links
/// (`.so.1` → `.so.580` → `.so.580.159.04`). None if the name has no full version.
fn version_of(host: &Host, dir: &str) -> Option<String> {
    let mut path = Path::new(dir).join("libnvidia-ml.so.1");
    // The kernel follows at most 40 links (path_resolution(7)).
    for _ in 0..40 {
        let Ok(target) = std::fs::read_link(host.at(&path)) else { break };
        path = normalize(&path.parent()?.join(target));
    }
    let version = path.file_name()?.to_str()?.strip_prefix("libnvidia-ml.so.")?;
    let is_whole = host.at(&path).is_file() && version.contains('.');
    is_whole.then(|| version.to_string())
}

/// Resolves `..` in a path textually, because library folders are not links.
fn normalize(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            other => path.push(other),
        }
        path
    })
}

fn nodes(host: &Host) -> CheckResult {
    if Driver::loaded(host).is_none() {
        return CheckResult::skipped("no driver is loaded");
    }
    if !host.at("/dev/nvidiactl").exists() {
        return CheckResult::attention("there is no /dev/nvidiactl", "sudo nvidia-modprobe -c 0");
    }
    let numbered = std::fs::read_dir(host.at("/dev")).into_iter().flatten().flatten().filter(|entry| {
        entry.file_name().to_str().and_then(|name| name.strip_prefix("nvidia")?.parse::<u32>().ok()).is_some()
    });
    match numbered.count() {
        0 => CheckResult::attention("/dev/nvidiactl exists, but there is no /dev/nvidia0", "sudo nvidia-modprobe -c 0"),
        count => CheckResult::ok(format!("/dev/nvidiactl and {count} GPUs")),
    }
}

fn container_gpus(host: &Host) -> CheckResult {
    if uses_notify(host) {
        return CheckResult::skipped("`notify_wrapper` looks at this where the notify engine is used");
    }
    match container_engines::find_gpu_support(host, Engine::Module) {
        GpuSupport::NoEngine => CheckResult::skipped("there is no container engine that this mpu knows"),
        GpuSupport::Wired { engine, .. } => CheckResult::ok(format!("{engine} does")),
        GpuSupport::Missing { engine, fix } => CheckResult::attention(
            format!("{engine} is installed, and not configured to put GPUs into containers"),
            fix,
        ),
    }
}

fn containers(host: &Host) -> CheckResult {
    if !host.is_this() {
        return CheckResult::skipped("--host-root names another host, whose kernel is not the running one");
    }
    if Driver::loaded(host).is_none() {
        return CheckResult::skipped("no driver is loaded");
    }
    if !host.has_capability(CAP_SYS_ADMIN) {
        return CheckResult::skipped("only root can make a PID namespace");
    }
    match compare::probe(host) {
        Err(error) => CheckResult::from_error(Level::Attention, &error),
        Ok(found) if found.shows_host() => CheckResult::ok("the host's processes, as configured"),
        Ok(found) if found.right => CheckResult::ok("its own processes, by its own numbers"),
        Ok(found) => {
            let faults: Vec<&str> = found.faults.iter().map(|fault| fault.explanation).collect();
            let fix = if found.engine_up {
                "sudo mpu probe --json   # report its output: the engine is up"
            } else {
                "sudo mpu up"
            };
            CheckResult::broken(faults.join("; "), fix)
        }
    }
}
