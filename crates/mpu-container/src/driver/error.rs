//! Errors of finding a driver and its devices.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error(
        "the nvidia driver is not loaded: there is no {}; load it (modprobe nvidia), and see that /proc is the host's",
        path.display()
    )]
    NotLoaded { path: PathBuf },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file of the driver lacks a field that every known release has.
    #[error("{} does not name {missing}; this driver's release is not supported", path.display())]
    Unreadable { path: PathBuf, missing: &'static str },
    #[error(
        "there is no library of driver release {version} below {}: the libraries are not installed, or are another \
         release's than the kernel module; install them, or reload the module",
        root.display()
    )]
    NoLibraries { root: PathBuf, version: String },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{word}: unknown device")]
pub struct UnknownDevice {
    pub word: String,
}
