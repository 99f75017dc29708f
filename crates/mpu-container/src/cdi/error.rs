//! Why no CDI spec can be generated.

use super::validate::Invalid;
use crate::driver::{DriverError, LAST_IMEX_CHANNEL, UnknownDevice};

#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Unknown(#[from] UnknownDevice),
    #[error("empty device edits: there is no {0} on this host, and a CDI spec must have a device")]
    Nothing(&'static str),
    #[error("the driver reports no UUID of device {}: use --device-name-strategy=index", .0.join(", "))]
    NoUuid(Vec<String>),
    #[error("empty device edits: device '{0}' has no node, {1} is not there")]
    NoNode(String, String),
    #[error("'{0}' is no IMEX channel; a number from 0 to {LAST_IMEX_CHANNEL}, channelN or all is")]
    Channel(String),
    #[error("the spec would be invalid: {0}")]
    Invalid(#[from] Invalid),
}
