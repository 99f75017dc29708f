//! Errors of the plugin and of its connection.

use std::io;
use std::path::PathBuf;

use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, Facts};

use super::mux::MuxError;

/// Why the plugin ends.
#[derive(Debug, thiserror::Error)]
pub enum NriError {
    /// Permission denied.
    #[error("cannot connect to {}", .0.display())]
    Forbidden(PathBuf, #[source] io::Error),
    /// Too long for a socket's path, which the error names.
    #[error(transparent)]
    NoPath(io::Error),
    /// The signals that end it.
    #[error("cannot install signal handlers")]
    Signals(#[source] io::Error),
}

impl Explain for NriError {
    fn facts(&self) -> Facts {
        let (code, exit, fix) = match self {
            NriError::Forbidden(..) => (
                "nri_forbidden",
                Exit::Refused,
                "run it as root; if it is root, a security module forbids it: ausearch -m avc -ts recent",
            ),
            NriError::NoPath(..) => {
                ("nri_no_path", Exit::Usage, "name the engine's socket, as in --socket /var/run/nri/nri.sock")
            }
            NriError::Signals(_) => ("no_signals", Exit::Failed, "raise the limit of open files: ulimit -n"),
        };
        (code, exit, fix.into())
    }
}

/// Why a connection ends. The plugin then opens another one.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The connection failed.
    #[error(transparent)]
    Mux(#[from] MuxError),
    /// The engine refused the plugin.
    #[error("the container engine refused the plugin: {0}")]
    Refused(String),
    /// Not a message of this protocol.
    #[error("the container engine sent something that is not an NRI message")]
    Malformed(#[from] prost::DecodeError),
}
