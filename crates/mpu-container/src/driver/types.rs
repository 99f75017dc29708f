//! Types for a driver's roots, GPUs and MIG devices.

use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverRoot {
    /// The root of its libraries and programs: `/`, or that of a driver container.
    pub files: PathBuf,
    /// The root of its device nodes (`dev/nvidia0` …): `/`, or that of a driver container.
    pub devices: PathBuf,
    /// The root of `proc/driver/nvidia`, `proc/devices` and `sys`: mostly `/`.
    pub kernel_files: PathBuf,
}

impl DriverRoot {
    pub fn host() -> DriverRoot {
        DriverRoot { files: "/".into(), devices: "/".into(), kernel_files: "/".into() }
    }

    /// Without `devices`, device nodes are below `files` if that has a `dev/nvidiactl`, else below `/`. The kernel's files are read below
    /// `files` if that has a `proc/driver/nvidia` (as in a driver container and in tests), else below `/`.
    pub fn at(files: &Path, devices: Option<&Path>) -> DriverRoot {
        let root_with = |path: &str| if files.join(path).exists() { files } else { Path::new("/") };
        DriverRoot {
            files: files.to_path_buf(),
            devices: devices.unwrap_or_else(|| root_with("dev/nvidiactl")).to_path_buf(),
            kernel_files: root_with("proc/driver/nvidia").to_path_buf(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// NVML's index: the position by PCI address.
    pub index: u32,
    /// N of `/dev/nvidiaN`.
    pub minor: u32,
    /// `GPU-` and 32 hexadecimal digits in five groups. If the driver could not initialize the GPU, question marks instead of digits: it
    /// cannot be selected by UUID.
    pub uuid: String,
    /// The PCI address as NVML writes it: `00000000:1B:00.0`.
    pub bus: String,
    /// The model's name, as in `NVIDIA H200`.
    pub model: String,
    /// Whether the GPU has MIG devices.
    pub mig_enabled: bool,
    pub mig: Vec<Mig>,
}

/// One MIG device: a compute instance within a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mig {
    /// NVML's index within the GPU.
    pub index: u32,
    /// `MIG-` and a UUID; empty if the driver did not report it.
    pub uuid: String,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// Selected devices, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection<'a> {
    /// Selected GPUs and GPUs of selected MIG devices, in the requested order. The container needs their nodes.
    pub gpus: Vec<&'a Gpu>,
    pub migs: Vec<(&'a Gpu, &'a Mig)>,
}

impl<'a> Selection<'a> {
    pub(super) fn add_gpu(&mut self, gpu: &'a Gpu) {
        if !self.gpus.iter().any(|selected| selected.index == gpu.index) {
            self.gpus.push(gpu);
        }
    }

    pub(super) fn add_mig(&mut self, gpu: &'a Gpu, mig: &'a Mig) {
        let same = |selected: &(&Gpu, &Mig)| selected.0.index == gpu.index && selected.1.index == mig.index;
        if !self.migs.iter().any(same) {
            self.migs.push((gpu, mig));
        }
        self.add_gpu(gpu);
    }
}
