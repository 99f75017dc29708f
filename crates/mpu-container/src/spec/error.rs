//! Errors of editing a specification.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::cdi::validate::Invalid;

#[derive(Debug, Error)]
pub enum EditError {
    #[error("{at} of the container's config.json is not {expected}")]
    Malformed {
        /// Where, as in `process.env`.
        at: String,
        expected: &'static str,
    },
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Cannot stat the device's node on the host.
    #[error("cannot look at the device {}", .0.display())]
    Node(PathBuf, #[source] io::Error),
    #[error("{} is {found}, not {expected}", path.display())]
    WrongDevice { path: PathBuf, found: &'static str, expected: String },
}
