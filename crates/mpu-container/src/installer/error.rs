//! Errors of an installation.

use super::restart::RestartError;
use crate::config::edit::EditError;
use crate::ctk::NodeError;
use crate::engines::EngineError;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("{0}")]
    Usage(String),
    #[error("another installer holds {}", .0.display())]
    Busy(PathBuf),
    #[error("cannot change {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("config.toml: {0}")]
    Config(#[from] EditError),
    #[error(transparent)]
    Nodes(#[from] NodeError),
    #[error("the CDI file for management containers cannot be made")]
    Cdi(#[source] Box<dyn std::error::Error>),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Restart(#[from] RestartError),
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
}
