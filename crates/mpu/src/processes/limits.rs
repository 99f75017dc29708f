//! Reads the limit of GPU memory of a process: the least of its cgroup's and of those above it, by the kernel's controller `dmem`.
//! A limit of the driver itself, on kernels without this controller, is not known here.
//!
//! Source: Linux, `Documentation/admin-guide/cgroup-v2.rst`, "DMEM"; open kernel modules 615, `os.c` (the region's name).

use mpu_core::HostPid;
use mpu_host::containers;
use mpu_host::host::Host;
use std::collections::HashMap;
use std::path::{Component, Path};

/// Where version 2 is mounted: alone, or beside version 1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// The size of each region; in the topmost cgroup alone, if the kernel has the controller.
const CAPACITY: &str = "dmem.capacity";
const MOST: &str = "dmem.max";
/// One line for each region of the host.
const FILE_LIMIT: usize = 64 * 1024;

/// The present limits. Each cgroup is read once for all of its processes.
#[derive(Default)]
pub struct Limits {
    mount: Option<&'static str>,
    /// The text of its file, by cgroup.
    known: HashMap<String, String>,
}

impl Limits {
    pub fn of(host: &Host) -> Limits {
        let mount = MOUNTS.into_iter().find(|mount| host.at(format!("{mount}/{CAPACITY}")).exists());
        Limits { mount, known: HashMap::new() }
    }

    /// The most bytes that a process may use of the GPU with this bus address (`00000000:65:00.0`).
    pub fn of_process(&mut self, host: &Host, pid: HostPid, bus: Option<&str>) -> Option<u64> {
        let (mount, bus) = (self.mount?, bus?);
        let cgroups = containers::cgroups_of(host, pid)?;
        let path = Path::new(cgroups.lines().find_map(|line| line.strip_prefix("0::/"))?);
        // In another cgroup namespace a path can begin with `..`.
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return None;
        }
        let region = format!("nvidia/{bus}/vidmem");
        let folders = path.ancestors().filter_map(|folder| folder.to_str()).filter(|folder| !folder.is_empty());
        let limits = folders.filter_map(|folder| {
            let text = self.known.entry(folder.to_string()).or_insert_with(|| {
                let bytes = host.bounded(format!("{mount}/{folder}/{MOST}"), FILE_LIMIT).unwrap_or_default();
                String::from_utf8_lossy(&bytes).into_owned()
            });
            in_region(text, &region)
        });
        limits.min()
    }
}

/// The number behind a region's name; none for `max`. Hexadecimal digits of an address may have either case.
fn in_region(text: &str, region: &str) -> Option<u64> {
    let lines = || text.lines().filter_map(|line| line.split_once(' '));
    lines().find(|(name, _)| name.eq_ignore_ascii_case(region))?.1.trim().parse().ok()
}
