//! Why a container that asks for devices is refused, and what to do about it.

/// Why a container that asks is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The specification is not as OCI says.
    #[error("could not decode OCI spec: {place} is not {wanted}")]
    Shape {
        /// The field.
        place: String,
        /// What it must be.
        wanted: &'static str,
    },
    /// It wants parts of the driver that it cannot have.
    #[error("unsupported capabilities found in '{asked}' (allowed '{allowed}')")]
    Capabilities {
        /// What it wants.
        asked: String,
        /// What of that there is.
        allowed: String,
    },
    /// It wants what only privileged containers can have.
    #[error("cannot set {what} in non privileged container")]
    Unprivileged {
        /// The variable, without `NVIDIA_`.
        what: &'static str,
    },
    /// An old image's version, which is its condition, cannot be read.
    #[error(
        "failed to get requirements failed to get version: invalid CUDA version {0}: it does not begin with a number"
    )]
    CudaVersion(String),
}

impl RequestError {
    /// What to do about it.
    pub fn fix(&self) -> &'static str {
        match self {
            RequestError::Shape { .. } => {
                "the engine wrote a config.json that breaks the OCI specification: report it there"
            }
            RequestError::Capabilities { .. } => {
                "correct NVIDIA_DRIVER_CAPABILITIES; `supported-driver-capabilities` in config.toml may leave some out"
            }
            RequestError::Unprivileged { .. } => "give the container CAP_SYS_ADMIN, or take the variable away",
            RequestError::CudaVersion(_) => {
                "correct CUDA_VERSION, or set NVIDIA_REQUIRE_CUDA or NVIDIA_DISABLE_REQUIRE=1"
            }
        }
    }
}
