//! Errors of requests for devices, with their fixes.

use crate::driver::LAST_IMEX_CHANNEL;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("could not decode OCI spec: {place} is not {wanted}")]
    Shape { place: String, wanted: &'static str },
    #[error("unsupported capabilities found in '{requested}' (allowed '{allowed}')")]
    Capabilities { requested: String, allowed: String },
    #[error("cannot set {what} in non privileged container")]
    Unprivileged {
        /// The variable, without `NVIDIA_`.
        what: &'static str,
    },
    #[error(
        "NVIDIA_IMEX_CHANNELS or a mount asks for {0:?}, which is no IMEX channel: their numbers are 0 to {LAST_IMEX_CHANNEL}"
    )]
    Imex(String),
    /// A limit of GPU memory is not a number, or the request exceeds the limit.
    #[error("{name}={value:?} is no limit of GPU memory: {why}")]
    Memory { name: &'static str, value: String, why: &'static str },
    #[error(
        "failed to get requirements failed to get version: invalid CUDA version {0}: it does not begin with a number"
    )]
    CudaVersion(String),
}

impl RequestError {
    pub fn fix(&self) -> &'static str {
        match self {
            RequestError::Shape { .. } => {
                "the engine wrote a config.json that breaks the OCI specification: report it there"
            }
            RequestError::Capabilities { .. } => {
                "correct NVIDIA_DRIVER_CAPABILITIES; `supported-driver-capabilities` in config.toml may leave some out"
            }
            RequestError::Unprivileged { .. } => "give the container CAP_SYS_ADMIN, or take the variable away",
            RequestError::Imex(_) => {
                "name channels by number, with commas; features.ignore-imex-channel-requests in config.toml passes them over"
            }
            RequestError::Memory { .. } => {
                "write it as a whole number of MiB, as 4096, the request no larger than the limit"
            }
            RequestError::CudaVersion(_) => {
                "correct CUDA_VERSION, or set NVIDIA_REQUIRE_CUDA or NVIDIA_DISABLE_REQUIRE=1"
            }
        }
    }
}
