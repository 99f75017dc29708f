//! The limits of GPU memory that a container asks for, applied to its cgroup before it starts.
//!
//! Owns the order: read what is asked for, find the container's cgroup, set the limit on each of its GPUs. A limit that
//! cannot hold refuses the container: whoever set it counts on the memory that others leave alone. Refuses to know how
//! a limit is set (`driver`) and how it is asked for (`request`).
//!
//! Outside truth: NVIDIA Container Toolkit 1.20.1, `apply-cuda-memory-limits`; Linux, cgroups(7), `/proc/PID/cgroup`.

use crate::driver::{Driver, DriverError, DriverRoot, LimitError, MemoryLimits, UnknownDevice};
use rustix::fs::FsWord;
use rustix::process::Pid;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Where every host has its cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";
/// How statfs(2) names the second version of their file system.
const CGROUP2: FsWord = 0x6367_7270;

/// Why a limit does not hold.
#[derive(Debug, thiserror::Error)]
pub enum LimitsError {
    /// The driver cannot be described.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// There is no such GPU.
    #[error(transparent)]
    Unknown(#[from] UnknownDevice),
    /// The limit cannot be set.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// It has MIG devices.
    #[error("a MIG device's memory is what its profile says and cannot be limited")]
    Mig,
    /// The host has the old cgroups.
    #[error("this host has cgroups of version 1, and only those of version 2 can limit GPU memory")]
    Old,
    /// The process's cgroup is not known.
    #[error("cannot read the cgroup of the container's process")]
    Process(#[source] io::Error),
    /// It is in no cgroup that we see.
    #[error("the container's process is in no cgroup below {CGROUPS}")]
    Nowhere,
    /// It shares its cgroup with whoever started it.
    #[error("the container has no cgroup of its own: a limit would hold for {} and all else in it", .0.display())]
    Shared(PathBuf),
}

/// Limits the memory that a container's process, and all that it will start, may use of these GPUs.
pub fn apply(limits: MemoryLimits, process: Pid, root: &DriverRoot, gpus: &[String]) -> Result<(), LimitsError> {
    let driver = Driver::find(root)?;
    let selection = driver.select(gpus)?;
    if !selection.migs.is_empty() {
        return Err(LimitsError::Mig);
    }
    if selection.gpus.is_empty() {
        return Ok(());
    }
    if rustix::fs::statfs(CGROUPS).map_or(true, |found| found.f_type != CGROUP2) {
        return Err(LimitsError::Old);
    }
    let of = |process: &str| fs::read_to_string(format!("/proc/{process}/cgroup")).map_err(LimitsError::Process);
    let own = of("self")?;
    let cgroup = place(&of(&process.as_raw_nonzero().to_string())?, &own)?;
    selection.gpus.iter().try_for_each(|gpu| driver.limit_memory(gpu, &cgroup, limits)).map_err(LimitsError::from)
}

/// The directory of a process's cgroup, by what `/proc` says of it and of us.
fn place(process: &str, own: &str) -> Result<PathBuf, LimitsError> {
    let unified = |text: &str| text.lines().find_map(|line| line.strip_prefix("0::/").map(PathBuf::from));
    let below = unified(process).ok_or(LimitsError::Nowhere)?;
    if !below.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(LimitsError::Nowhere);
    }
    let folder = Path::new(CGROUPS).join(&below);
    match unified(own) == Some(below) {
        true => Err(LimitsError::Shared(folder)),
        false => Ok(folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_for_a_cgroup_of_the_containers_own() {
        let place = |process: &str| place(process, "1:net:/x\n0::/user.slice/a\n").map_err(|error| error.to_string());
        assert_eq!(place("0::/docker/ab:c\n"), Ok("/sys/fs/cgroup/docker/ab:c".into()));
        assert_eq!(place("7:misc:/z\n0::/user.slice/a/b\n"), Ok("/sys/fs/cgroup/user.slice/a/b".into()));
        for nowhere in ["", "7:misc:/z\n", "0::/../up\n", "0::relative\n"] {
            assert!(place(nowhere).unwrap_err().contains("in no cgroup below"), "{nowhere}");
        }
        let shared = place("0::/user.slice/a\n").unwrap_err();
        assert!(shared.contains("no cgroup of its own") && shared.contains("/sys/fs/cgroup/user.slice/a"), "{shared}");
    }
}
