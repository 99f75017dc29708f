//! The NVIDIA driver of this host, as a container needs to know it.
//!
//! Owns the facts: release, GPUs, MIG devices, device nodes, the files of each capability. Changes nothing, and loads
//! no library of the driver: facts come from `/proc/driver/nvidia`, from the files, and from the resource manager's own
//! ioctls.

pub mod files;

use std::path::PathBuf;

/// Where a driver lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverRoot {
    /// The directory below which its libraries and programs lie: `/`, or where a driver container keeps them.
    pub files: PathBuf,
    /// The directory below which its device nodes lie (`dev/nvidia0` …): `/`, or the driver container's.
    pub devices: PathBuf,
    /// The directory below which `proc/driver/nvidia` lies: `/`.
    pub facts: PathBuf,
}

/// A driver and its GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// Where it lies.
    pub root: DriverRoot,
    /// The kernel module's release, as in `580.159.04`.
    pub version: String,
    /// The GPUs, in the order of their PCI addresses, which is NVML's order.
    pub gpus: Vec<Gpu>,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// NVML's number: its place among the GPUs by PCI address.
    pub index: u32,
    /// N of `/dev/nvidiaN`.
    pub minor: u32,
    /// `GPU-` and 32 hexadecimal digits in five groups.
    pub uuid: String,
    /// The PCI address as NVML writes it: `00000000:1B:00.0`.
    pub bus: String,
    /// The model's name, as in `NVIDIA H200`.
    pub model: String,
    /// Whether the GPU is divided: then it is asked for by its MIG devices, not as a whole.
    pub mig_enabled: bool,
    /// Its MIG devices.
    pub mig: Vec<Mig>,
}

/// One MIG device: a compute instance within a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mig {
    /// NVML's number within the GPU.
    pub index: u32,
    /// `MIG-` and a UUID.
    pub uuid: String,
    /// The GPU instance's number.
    pub gpu_instance: u32,
    /// The compute instance's number.
    pub compute_instance: u32,
}
