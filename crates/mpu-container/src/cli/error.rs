//! Why a command of `nvidia-container-cli` failed, in the words that NVIDIA's says, and what to do about it.

use super::configure::ConfigureError;
use super::log::NAME;
use super::mig::NotAll;
use super::user::UserError;
use crate::driver::{DriverError, UnknownDevice};
use crate::require::RequireError;
use thiserror::Error;

/// Why a command failed. The message is the part between the program's name and the cause.
#[derive(Debug, Error)]
pub enum CliError {
    /// The driver is not there.
    #[error("initialization error")]
    Driver(#[source] DriverError),
    /// Its files cannot be found.
    #[error("detection error")]
    Files(#[source] DriverError),
    /// Another user than this process can be was named.
    #[error("initialization error")]
    User(#[source] UserError),
    /// A device was asked for that is not there.
    #[error("device error")]
    Device(#[source] UnknownDevice),
    /// MIG's configuration was asked for and cannot be given.
    #[error("{option} error")]
    Mig {
        /// `mig-config` or `mig-monitor`.
        option: &'static str,
        /// Why.
        source: NotAll,
    },
    /// The image needs another host.
    #[error("requirement error")]
    Require(#[source] RequireError),
    /// The container could not be configured.
    #[error(transparent)]
    Configure(ConfigureError),
    /// The log cannot be written.
    #[error("cannot write the log {}", path.display())]
    Log {
        /// Where.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The result cannot be written.
    #[error("cannot write to standard output")]
    Output(#[source] std::io::Error),
}

impl CliError {
    /// What to do about it, where that is not said already.
    pub(super) fn fix(&self) -> Option<String> {
        Some(match self {
            CliError::Device(_) => format!("{NAME} info names the devices of this host"),
            CliError::Require(error) => error.fix(),
            CliError::Configure(error) => error.fix()?.into(),
            _ => return None,
        })
    }
}
