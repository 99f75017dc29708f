//! The NVIDIA driver: there, known, whole, and what it shows containers.

use super::{Group, Level, Row, Seen};
use crate::commands::probe;
use crate::driver::Driver;
use crate::engine::module::checks;
use crate::host::{Host, CAP_SYS_ADMIN};
use std::path::Path;

/// Where distributions and NVIDIA's installer put libraries.
const LIBRARIES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
];

pub const CHECKS: &[Row] = &[
    ("driver", Group::Driver, "whether a driver is loaded, and is a release that this MPU was checked against", driver),
    (
        "driver_library",
        Group::Driver,
        "whether libnvidia-ml is of the loaded driver's version: else every NVML tool fails, everywhere",
        library,
    ),
    ("device_nodes", Group::Driver, "the driver's device files: without them no program reaches it", nodes),
    (
        "containers",
        Group::Containers,
        "what a process in a fresh PID namespace sees on this host right now",
        containers,
    ),
];

fn driver(host: &Host) -> Seen {
    let Some(driver) = Driver::loaded(host) else {
        return Seen::attention("no NVIDIA driver is loaded; MPU waits for one", "modprobe nvidia");
    };
    match checks::known_driver(Some(&driver)) {
        Ok(()) => Seen::fine(driver.version),
        Err(unfit) => Seen::of(Level::Broken, &unfit),
    }
}

fn library(host: &Host) -> Seen {
    let Some(driver) = Driver::loaded(host) else { return Seen::skipped("no driver is loaded") };
    let found = LIBRARIES.iter().find_map(|dir| version_of(&host.at(dir)));
    match found {
        None => Seen::skipped("no libnvidia-ml.so.1 in the usual places"),
        Some(version) if version == driver.version => Seen::fine(version),
        Some(version) => Seen::broken(
            format!("libnvidia-ml is {version}, and the loaded driver is {}: programs get \"Driver/library version mismatch\"", driver.version),
            "reboot, or unload the driver (rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia) and load the installed one (modprobe nvidia)",
        ),
    }
}

/// The version in the name that `libnvidia-ml.so.1` points to.
fn version_of(dir: &Path) -> Option<String> {
    let target = std::fs::read_link(dir.join("libnvidia-ml.so.1")).ok()?;
    Some(target.file_name()?.to_str()?.strip_prefix("libnvidia-ml.so.")?.to_string())
}

fn nodes(host: &Host) -> Seen {
    if Driver::loaded(host).is_none() {
        return Seen::skipped("no driver is loaded");
    }
    if !host.at("/dev/nvidiactl").exists() {
        return Seen::attention("there is no /dev/nvidiactl", "nvidia-modprobe -c 0");
    }
    let numbered = std::fs::read_dir(host.at("/dev")).into_iter().flatten().flatten().filter(|entry| {
        entry.file_name().to_str().and_then(|name| name.strip_prefix("nvidia")?.parse::<u32>().ok()).is_some()
    });
    match numbered.count() {
        0 => Seen::attention("/dev/nvidiactl is there, and no /dev/nvidia0", "nvidia-modprobe -c 0"),
        count => Seen::fine(format!("/dev/nvidiactl and {count} GPUs")),
    }
}

fn containers(host: &Host) -> Seen {
    if !host.is_this() {
        return Seen::skipped("another host's root was given: the running kernel is not its");
    }
    if Driver::loaded(host).is_none() {
        return Seen::skipped("no driver is loaded");
    }
    if !host.has_capability(CAP_SYS_ADMIN) {
        return Seen::skipped("making a PID namespace takes root");
    }
    match probe::probe(host) {
        Err(error) => Seen::of(Level::Attention, &error),
        Ok(probed) if probed.right => Seen::fine("its own processes, by its own numbers"),
        Ok(probed) => {
            let faults: Vec<&str> = probed.faults.iter().map(|fault| fault.explanation).collect();
            let fix =
                if probed.engine_up { "mpu probe --json   # and report it: the engine is up" } else { "sudo mpu up" };
            Seen::broken(faults.join("; "), fix)
        }
    }
}
