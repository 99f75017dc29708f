//! Why GPU processes cannot be listed.

use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, Facts};
use nvml_wrapper::error::NvmlError;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("this process is in a PID namespace of its own, where the host's processes have no PIDs")]
    NotOnHost,
    #[error("NVIDIA's management library cannot be loaded: {why}")]
    NoLibrary { why: String },
    #[error("no NVIDIA driver is loaded")]
    NoDriver { source: NvmlError },
    #[error("NVIDIA's management library (NVML) and the loaded driver have different releases")]
    Mismatch { source: NvmlError },
    #[error("the driver denies this user access")]
    NotPermitted { source: NvmlError },
    #[error("there is no GPU {requested}: this host has {has}")]
    NoSuchGpu { requested: String, has: String },
    #[error("NVIDIA's management library failed at {at}")]
    Nvml { at: &'static str, source: NvmlError },
}

impl ProcessError {
    /// Sorts a failure of NVML by its fix.
    pub fn from_nvml(at: &'static str, source: NvmlError) -> ProcessError {
        match source {
            NvmlError::DriverNotLoaded => ProcessError::NoDriver { source },
            NvmlError::LibRmVersionMismatch => ProcessError::Mismatch { source },
            NvmlError::NoPermission => ProcessError::NotPermitted { source },
            _ => ProcessError::Nvml { at, source },
        }
    }
}

impl Explain for ProcessError {
    fn facts(&self) -> Facts {
        use ProcessError as E;
        let (code, exit, fix) = match self {
            E::NotOnHost => (
                "not_on_host",
                Exit::NotReady,
                "run it on the host, or in a container with the host's PID namespace (docker run --pid=host, hostPID: true)",
            ),
            E::NoLibrary { .. } => (
                "no_nvml",
                Exit::NotReady,
                "install the driver's libnvidia-ml.so.1 (Debian: apt-get install libnvidia-ml1), or name its directory in LD_LIBRARY_PATH",
            ),
            E::NoDriver { .. } => {
                ("no_driver", Exit::NotReady, "load it (`modprobe nvidia`), and check that nvidia-smi works")
            }
            E::Mismatch { .. } => (
                "nvml_mismatch",
                Exit::Failed,
                "the driver was updated and not reloaded: end its users and reload it, or reboot",
            ),
            E::NotPermitted { .. } => {
                ("not_permitted", Exit::Refused, "run it as root, or check the permissions of /dev/nvidiactl")
            }
            E::NoSuchGpu { .. } => (
                "no_such_gpu",
                Exit::Usage,
                "name a GPU by its index, its UUID or its bus address, as nvidia-smi lists them (`nvidia-smi -L`)",
            ),
            E::Nvml { .. } => (
                "nvml_failed",
                Exit::Failed,
                "check whether nvidia-smi works on this host; `dmesg | tail` shows the driver's messages",
            ),
        };
        (code, exit, fix.to_string())
    }
}
