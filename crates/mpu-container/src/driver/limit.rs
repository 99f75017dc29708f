//! What a limit of GPU memory is, and why one does not hold.

use mpu_rm::RmError;
use std::io;
use std::path::PathBuf;

/// What a cgroup may use of a GPU's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// As much is safe from others who need memory.
    pub soft: u64,
    /// More cannot be had; [`MemoryLimits::NONE`] is as much as there is.
    pub hard: u64,
}

impl MemoryLimits {
    /// The number that stands for no limit.
    pub const NONE: u64 = u64::MAX;
}

/// What becomes of the cgroups above one that keeps memory safe. It is only safe as far as they keep as much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Above {
    Stay,
    /// They keep what those in them keep, unless the administrator has said how much they keep.
    Raise,
}

#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    #[error("GPU {0} is divided by MIG: the memory of a MIG device is what its profile says and cannot be limited")]
    Mig(String),
    #[error("the driver does not answer for GPU {0}: its device nodes are missing or may not be opened")]
    Silent(String),
    #[error("driver {0} cannot limit GPU memory: releases from 615 on can")]
    Release(String),
    #[error("the driver does not count memory: RmMemacctMode=0 is set, or the kernel has neither cgroup controller dmem nor misc")]
    Off,
    #[error("the cgroup {} has no controller {controller}: add +{controller} to cgroup.subtree_control of every cgroup above it", cgroup.display())]
    Controller { cgroup: PathBuf, controller: &'static str },
    #[error("cannot use {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("another container's start has held {} for too long: find it with `fuser -v {}`", .0.display(), .0.display())]
    Busy(PathBuf),
    #[error("{asked} bytes are asked for, and the GPU has {capacity}")]
    TooMuch { asked: u64, capacity: u64 },
    #[error("the driver refuses the limit")]
    Refused(#[source] RmError),
    #[error("the driver accepted the limit and enforces another one")]
    NotHeld,
}
