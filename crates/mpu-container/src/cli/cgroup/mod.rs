//! Allows a container's GPU nodes in its device cgroup.
//!
//! Source: Linux, `Documentation/admin-guide/cgroup-v1/devices.rst` and `cgroup-v2.rst`, cgroups(7) for
//! `/proc/PID/cgroup`, proc(5) for `mountinfo`.

pub mod program;
mod sys;
mod v1;
mod v2;

use crate::cgroups::{self, DevicesCgroup, NoCgroup};
use crate::cli::process::Process;
use program::DeviceNumber;
use std::path::{Path, PathBuf};
use thiserror::Error;

#[derive(Debug, Error)]
pub enum CgroupError {
    #[error("cannot read {file} of the container's process")]
    Process { file: &'static str, source: std::io::Error },
    #[error(transparent)]
    NoCgroup(#[from] NoCgroup),
    #[error("{}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("cannot {action} the device program of {}", cgroup.display())]
    Program { action: &'static str, cgroup: PathBuf, source: std::io::Error },
    #[error("the kernel does not show the device program of {} (net.core.bpf_jit_harden is 2?)", .0.display())]
    Hidden(PathBuf),
    #[error("{0} devices are more than a device program can name")]
    TooMany(usize),
}

#[derive(Debug)]
pub struct DeviceCgroup {
    place: DevicesCgroup,
}

impl DeviceCgroup {
    /// Finds a process's device cgroup. Call it before another mount namespace is entered: it uses this process's own mounts.
    pub fn of(process: &Process) -> Result<DeviceCgroup, CgroupError> {
        let cgroups = process.read("cgroup").map_err(|source| CgroupError::Process { file: "cgroup", source })?;
        let path = Path::new("/proc/self/mountinfo");
        let mounts = std::fs::read_to_string(path).map_err(|source| CgroupError::File { path: path.into(), source })?;
        Ok(DeviceCgroup { place: cgroups::devices_cgroup(&cgroups, &mounts)? })
    }

    pub fn path(&self) -> &Path {
        match &self.place {
            DevicesCgroup::V1(path) | DevicesCgroup::V2(path) => path,
        }
    }

    /// Allows reads and writes of these devices in the cgroup. On an error, nothing has changed. Returns the number of device programs
    /// that are hidden from us and may still forbid access.
    pub fn allow(&self, devices: &[DeviceNumber]) -> Result<usize, CgroupError> {
        let mut devices = devices.to_vec();
        devices.sort();
        devices.dedup();
        match &self.place {
            DevicesCgroup::V1(path) => v1::open(path, &devices).map(|_| 0),
            DevicesCgroup::V2(path) => v2::open(path, &devices).map(|opened| opened.hidden),
        }
    }
}
