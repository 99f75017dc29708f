//! What can go wrong between us and the driver.

use std::io;
use std::path::PathBuf;

/// What can go wrong between us and the driver.
#[derive(Debug, thiserror::Error)]
pub enum RmError {
    /// A device node is missing or shut.
    #[error("cannot open {}", path.display())]
    Open {
        /// The node.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The driver's ioctl returned an error.
    #[error("the driver's ioctl for {what} failed")]
    Ioctl {
        /// What was asked.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The resource manager answered with a status other than 0.
    #[error("the driver answered {what} with status {status:#x}")]
    Status {
        /// What was asked.
        what: &'static str,
        /// RM's status.
        status: u32,
    },
}
