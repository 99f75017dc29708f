//! Why GPU processes cannot be seen.

use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use nvml_wrapper::error::NvmlError;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it, and the fields are what they name
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
    #[error("there is no GPU {asked}: this host has {has}")]
    NoSuchGpu { asked: String, has: String },
    #[error("NVIDIA's management library failed at {at}")]
    Nvml { at: &'static str, source: NvmlError },
}

impl ProcessError {
    /// Sorts a failure of NVML by what can be done about it.
    pub fn sorted(at: &'static str, source: NvmlError) -> ProcessError {
        match source {
            NvmlError::DriverNotLoaded => ProcessError::NoDriver { source },
            NvmlError::LibRmVersionMismatch => ProcessError::Mismatch { source },
            NvmlError::NoPermission => ProcessError::NotPermitted { source },
            _ => ProcessError::Nvml { at, source },
        }
    }
}

impl Explain for ProcessError {
    fn code(&self) -> &'static str {
        match self {
            ProcessError::NotOnHost => "not_on_host",
            ProcessError::NoLibrary { .. } => "no_nvml",
            ProcessError::NoDriver { .. } => "no_driver",
            ProcessError::Mismatch { .. } => "nvml_mismatch",
            ProcessError::NotPermitted { .. } => "not_permitted",
            ProcessError::NoSuchGpu { .. } => "no_such_gpu",
            ProcessError::Nvml { .. } => "nvml_failed",
        }
    }

    fn exit(&self) -> Exit {
        match self {
            ProcessError::NotOnHost | ProcessError::NoLibrary { .. } | ProcessError::NoDriver { .. } => Exit::NotReady,
            ProcessError::NotPermitted { .. } => Exit::Refused,
            ProcessError::NoSuchGpu { .. } => Exit::Usage,
            ProcessError::Mismatch { .. } | ProcessError::Nvml { .. } => Exit::Failed,
        }
    }

    fn fix(&self) -> String {
        match self {
            ProcessError::NotOnHost => {
                "run it on the host, or in a container with the host's PID namespace (docker run --pid=host, hostPID: true)"
            }
            ProcessError::NoLibrary { .. } => {
                "install the driver's libnvidia-ml.so.1 (Debian: apt-get install libnvidia-ml1), or name its directory in LD_LIBRARY_PATH"
            }
            ProcessError::NoDriver { .. } => "load it (`modprobe nvidia`), and check that nvidia-smi works",
            ProcessError::Mismatch { .. } => {
                "the driver was updated and not reloaded: end its users and reload it, or reboot"
            }
            ProcessError::NotPermitted { .. } => "run it as root, or check the permissions of /dev/nvidiactl",
            ProcessError::NoSuchGpu { .. } => {
                "name a GPU by its index, its UUID or its bus address, as nvidia-smi lists them (`nvidia-smi -L`)"
            }
            ProcessError::Nvml { .. } => "check whether nvidia-smi works on this host; `dmesg | tail` shows the driver's messages",
        }
        .to_string()
    }
}
