//! Plain data about a driver: its roots, GPUs and MIG devices.

use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverRoot {
    /// The directory below which its libraries and programs lie: `/`, or where a driver container keeps them.
    pub files: PathBuf,
    /// The directory below which its device nodes lie (`dev/nvidia0` …): `/`, or the driver container's.
    pub devices: PathBuf,
    /// The directory below which `proc/driver/nvidia`, `proc/devices` and `sys` lie: `/`.
    pub facts: PathBuf,
}

impl DriverRoot {
    pub fn host() -> DriverRoot {
        DriverRoot { files: "/".into(), devices: "/".into(), facts: "/".into() }
    }

    /// A driver with its files below `files`, and its device nodes below `devices`. Without `devices`, they are below `files` if that has a
    /// `dev/nvidiactl`, else below `/`. Facts are read below `files` if it has a `proc/driver/nvidia` (as in a driver container and in
    /// tests), else below `/`.
    pub fn at(files: &Path, devices: Option<&Path>) -> DriverRoot {
        let here_if = |what: &str| if files.join(what).exists() { files } else { Path::new("/") };
        DriverRoot {
            files: files.to_path_buf(),
            devices: devices.unwrap_or_else(|| here_if("dev/nvidiactl")).to_path_buf(),
            facts: here_if("proc/driver/nvidia").to_path_buf(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// NVML's number: its place among the GPUs by PCI address.
    pub index: u32,
    /// N of `/dev/nvidiaN`.
    pub minor: u32,
    /// `GPU-` and 32 hexadecimal digits in five groups. Question marks instead of digits if the driver could not start the GPU;
    /// then it cannot be selected by UUID.
    pub uuid: String,
    /// The PCI address as NVML writes it: `00000000:1B:00.0`.
    pub bus: String,
    /// The model's name, as in `NVIDIA H200`.
    pub model: String,
    /// Whether the GPU is divided: then its MIG devices are selected, not the GPU.
    pub mig_enabled: bool,
    pub mig: Vec<Mig>,
}

/// One MIG device: a compute instance within a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mig {
    /// NVML's number within the GPU.
    pub index: u32,
    /// `MIG-` and a UUID; empty if the driver did not report it.
    pub uuid: String,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// Selected devices, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection<'a> {
    /// The GPUs whose nodes the container needs, in the order of the words: selected GPUs, and GPUs of selected MIG devices.
    pub gpus: Vec<&'a Gpu>,
    pub migs: Vec<(&'a Gpu, &'a Mig)>,
}

impl<'a> Selection<'a> {
    pub(super) fn add_gpu(&mut self, gpu: &'a Gpu) {
        if !self.gpus.iter().any(|known| known.index == gpu.index) {
            self.gpus.push(gpu);
        }
    }

    pub(super) fn add_mig(&mut self, gpu: &'a Gpu, mig: &'a Mig) {
        let same = |known: &(&Gpu, &Mig)| known.0.index == gpu.index && known.1.index == mig.index;
        if !self.migs.iter().any(same) {
            self.migs.push((gpu, mig));
        }
        self.add_gpu(gpu);
    }
}
