//! Errors of editing a specification.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

#[derive(Debug, Error)]
pub enum EditError {
    #[error("{at} of the container's config.json is not {expected}")]
    Malformed {
        /// Where, as in `process.env`.
        at: String,
        expected: &'static str,
    },
    #[error("{subject} is no valid edit: {why}")]
    Invalid { subject: String, why: &'static str },
    /// The node on the host that a device is to be like cannot be looked at.
    #[error("cannot look at the device {}", .0.display())]
    Node(PathBuf, #[source] io::Error),
    #[error("{} is {found}, not {expected}", path.display())]
    NotThatDevice { path: PathBuf, found: &'static str, expected: String },
}
