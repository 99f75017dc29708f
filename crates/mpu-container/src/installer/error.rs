//! Why an installation is not what was asked for.

use super::restart::RestartError;
use crate::config::edit::EditError;
use crate::ctk::NodeError;
use crate::engines::EngineError;
use std::io;
use std::path::PathBuf;

/// Why nothing, or not all, is installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Asked(String),
    /// Another instance runs.
    #[error("another installer holds {}", .0.display())]
    Busy(PathBuf),
    /// A file or folder cannot be made or removed.
    #[error("cannot change {}", path.display())]
    Place {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A key of config.toml cannot have that value.
    #[error("config.toml: {0}")]
    Config(#[from] EditError),
    /// The driver's nodes cannot be made.
    #[error(transparent)]
    Nodes(#[from] NodeError),
    /// The CDI file cannot be written.
    #[error("the CDI file for management containers cannot be made")]
    Cdi(#[source] Box<dyn std::error::Error>),
    /// The engine's files stay as they are.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine does not read them.
    #[error(transparent)]
    Restart(#[from] RestartError),
    /// Signals cannot be waited for.
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
}
