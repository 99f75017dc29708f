//! Reads a process's limit of GPU memory from the kernel's cgroup controller `dmem`: the lowest limit of its cgroup and
//! all cgroups above. A limit that the driver enforces itself, on kernels without this controller, is not read.
//!
//! Source: Linux, `Documentation/admin-guide/cgroup-v2.rst`, "DMEM"; open kernel modules 615, `os.c` (the region's name).

use super::facts::ScanContext;
use mpu_core::HostPid;
use mpu_host::containers;
use mpu_host::host::Host;
use std::collections::HashMap;
use std::path::{Component, Path};

/// The mount points of cgroup v2: alone, or beside v1.
const CGROUP_MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// The size of each region. Exists only in the root cgroup, and only if the kernel has the controller.
const CAPACITY_FILE: &str = "dmem.capacity";
const LIMIT_FILE: &str = "dmem.max";
/// The files have one line for each memory region of the host.
const FILE_LIMIT: usize = 64 * 1024;

/// The limits of one scan. Each cgroup is read once for all of its processes.
#[derive(Default)]
pub struct Limits {
    mount: Option<&'static str>,
    /// The text of its file, by cgroup.
    texts: HashMap<String, String>,
}

impl Limits {
    pub fn of(host: &Host) -> Limits {
        let mount = CGROUP_MOUNTS.into_iter().find(|mount| host.at(format!("{mount}/{CAPACITY_FILE}")).exists());
        Limits { mount, texts: HashMap::new() }
    }

    /// The most bytes that the process that started at `ticks` may use of the GPU with this bus address
    /// (`00000000:65:00.0`). None if it has ended.
    pub fn of_process(&mut self, context: &ScanContext, pid: HostPid, ticks: u64, bus: Option<&str>) -> Option<u64> {
        let (host, mount, bus) = (context.host, self.mount?, bus?);
        let cgroups = containers::cgroups_of(host, pid)?;
        // The file may belong to the next process with this PID.
        if !context.is_same_process(pid, ticks) {
            return None;
        }
        let path = Path::new(cgroups.lines().find_map(|line| line.strip_prefix("0::/"))?);
        // A path begins with `..` if the cgroup is outside the reader's cgroup namespace.
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return None;
        }
        let region = format!("nvidia/{bus}/vidmem");
        let folders = path.ancestors().filter_map(|folder| folder.to_str()).filter(|folder| !folder.is_empty());
        let limits = folders.filter_map(|folder| {
            let text = self.texts.entry(folder.to_string()).or_insert_with(|| {
                let bytes = host.bounded(format!("{mount}/{folder}/{LIMIT_FILE}"), FILE_LIMIT).unwrap_or_default();
                String::from_utf8_lossy(&bytes).into_owned()
            });
            limit_in(text, &region)
        });
        limits.min()
    }
}

/// The limit of a region; none for `max`. The hexadecimal digits of its address may have either case.
fn limit_in(text: &str, region: &str) -> Option<u64> {
    let lines = || text.lines().filter_map(|line| line.split_once(' '));
    lines().find(|(name, _)| name.eq_ignore_ascii_case(region))?.1.trim().parse().ok()
}
