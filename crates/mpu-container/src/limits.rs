//! Applies a container's requested limits of GPU memory to its cgroup before it starts.
//!
//! Source: NVIDIA Container Toolkit 1.20.1, `apply-cuda-memory-limits`; Linux, cgroups(7), `/proc/PID/cgroup`.

use crate::cgroups;
use crate::config::Config;
use crate::driver::{Driver, DriverRoot, LimitError, MemoryLimits};
use rustix::process::Pid;
use std::fs;
use std::path::PathBuf;

/// Limits the GPU memory of a container's process and its descendants.
pub fn apply(
    limits: MemoryLimits,
    process: Pid,
    root: &DriverRoot,
    gpus: &[String],
    config: &Config,
) -> Result<(), LimitError> {
    let driver = Driver::find(root)?;
    let selection = driver.select(gpus)?;
    if !selection.migs.is_empty() || selection.gpus.iter().any(|gpu| gpu.mig_enabled) {
        return Err(LimitError::Mig);
    }
    if selection.gpus.is_empty() {
        return Ok(());
    }
    let read = |file: String| fs::read_to_string(file).map_err(LimitError::Process);
    let cgroup_of = |process: &str| read(format!("/proc/{process}/cgroup"));
    let cgroup = container_cgroup(
        &cgroup_of(&process.as_raw_nonzero().to_string())?,
        &cgroup_of("self")?,
        &read("/proc/self/mountinfo".into())?,
    )?;
    selection.gpus.iter().try_for_each(|gpu| driver.limit_memory(gpu, &cgroup, limits, config.raise_memory_requests))
}

fn container_cgroup(process: &str, own: &str, mounts: &str) -> Result<PathBuf, LimitError> {
    if !cgroups::has_unified(mounts) {
        return Err(LimitError::CgroupV1);
    }
    let folder = cgroups::unified_cgroup(process, mounts).ok_or(LimitError::NoCgroup)?;
    match cgroups::unified_cgroup(own, mounts).as_ref() == Some(&folder) {
        true => Err(LimitError::Shared(folder)),
        false => Ok(folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_needs_own_cgroup() {
        const MOUNTS: &str = "30 1 0:20 / /proc rw - proc proc rw\n26 24 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        let own = "1:net:/x\n0::/user.slice/a\n";
        let at =
            |process: &str, mounts: &str| container_cgroup(process, own, mounts).map_err(|error| error.to_string());
        let find = |process: &str| at(process, MOUNTS);
        assert_eq!(find("0::/docker/ab:c\n"), Ok("/sys/fs/cgroup/docker/ab:c".into()));
        assert_eq!(find("7:misc:/z\n0::/user.slice/a/b\n"), Ok("/sys/fs/cgroup/user.slice/a/b".into()));
        for nowhere in ["", "7:misc:/z\n", "0::/../up\n", "0::relative\n"] {
            assert!(find(nowhere).unwrap_err().contains("in no cgroup that is mounted"), "{nowhere}");
        }
        let shared = find("0::/user.slice/a\n").unwrap_err();
        assert!(shared.contains("no cgroup of its own") && shared.contains("/sys/fs/cgroup/user.slice/a"), "{shared}");
        // Other mount points, or a part of the hierarchy.
        assert_eq!(
            at("0::/a\n", &MOUNTS.replace("/cgroup rw", "/cgroup/unified rw")),
            Ok("/sys/fs/cgroup/unified/a".into())
        );
        assert_eq!(at("0::/docker/a\n", &MOUNTS.replace("0:23 / ", "0:23 /docker ")), Ok("/sys/fs/cgroup/a".into()));
        assert!(at("0::/a\n", "30 1 0:20 / /proc rw - proc proc rw").unwrap_err().contains("version 1"));
    }
}
