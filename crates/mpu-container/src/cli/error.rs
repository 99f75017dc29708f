//! Errors of `nvidia-container-cli`, in NVIDIA's wording, and their fixes.

use super::configure::ConfigureError;
use super::log::NAME;
use super::mig::MigOptionError;
use super::user::UserError;
use crate::driver::{DriverError, UnknownDevice};
use crate::require::RequireError;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum CliError {
    #[error("initialization error")]
    Driver(#[source] DriverError),
    #[error("detection error")]
    Files(#[source] DriverError),
    #[error("initialization error")]
    User(#[source] UserError),
    #[error("device error")]
    Device(#[source] UnknownDevice),
    #[error("{option} error")]
    Mig {
        /// `mig-config` or `mig-monitor`.
        option: &'static str,
        source: MigOptionError,
    },
    #[error("requirement error")]
    Require(#[source] RequireError),
    #[error(transparent)]
    Configure(ConfigureError),
    #[error("cannot write the log {}", path.display())]
    Log { path: std::path::PathBuf, source: std::io::Error },
    #[error("cannot write to standard output")]
    Output(#[source] std::io::Error),
}

impl CliError {
    pub(super) fn fix(&self) -> Option<String> {
        Some(match self {
            CliError::Device(_) => format!("{NAME} info names the devices of this host"),
            CliError::Require(error) => error.fix(),
            CliError::Configure(error) => error.fix()?.into(),
            _ => return None,
        })
    }
}
