//! Errors of calls to the driver.

use std::io;
use std::path::PathBuf;

/// Why a call to the driver failed.
#[derive(Debug, thiserror::Error)]
pub enum RmError {
    /// A device node is missing or cannot be opened.
    #[error("cannot open {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// The driver's ioctl returned an error.
    #[error("the driver's ioctl for {what} failed")]
    Ioctl { what: &'static str, source: io::Error },
    /// The resource manager answered with a status other than 0.
    #[error("the driver answered {what} with status {status:#x}")]
    Status { what: &'static str, status: u32 },
}
