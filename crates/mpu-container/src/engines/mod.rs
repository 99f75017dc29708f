//! Container engines' configuration: makes our runtime wrapper known to Docker, containerd, CRI-O and Podman, and undoes it.
//!
//! Owns which file an engine reads and which keys name a runtime in it. Everything else in such a file is the
//! administrator's: comments, order and unknown keys stay (JSON may get other line breaks). Starts and stops no engine.
//!
//! Files are edited in place. Containerd's imports would spare its own file, but releases before 2.0 replace a plugin's
//! whole section by that of an imported file.

pub mod command;
mod containerd;
mod docker;
mod tables;
mod wish;

pub use wish::{Malformed, Wish};

use crate::config::edit;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A configuration larger than this is none.
const LIMIT: u64 = 4 << 20;

/// An engine that can be told of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// Docker: `daemon.json`.
    Docker,
    /// containerd, configuration versions 1 to 3.
    Containerd,
    /// CRI-O: a file of our own.
    Crio,
    /// Podman: a file of our own.
    Podman,
}

impl Engine {
    /// The file that is changed unless another is named.
    pub fn file(self) -> &'static Path {
        Path::new(match self {
            Engine::Docker => "/etc/docker/daemon.json",
            Engine::Containerd => "/etc/containerd/config.toml",
            Engine::Crio => "/etc/crio/crio.conf.d/99-nvidia.conf",
            Engine::Podman => "/etc/containers/containers.conf.d/99-nvidia.conf",
        })
    }

    /// What makes a running engine read its file again; none where each start reads it.
    pub fn restart(self) -> Option<&'static str> {
        match self {
            Engine::Docker => Some("systemctl restart docker"),
            Engine::Containerd => Some("systemctl restart containerd"),
            Engine::Crio => Some("systemctl restart crio"),
            Engine::Podman => None,
        }
    }

    fn with(self, text: &str, wish: &Wish) -> Result<String, Malformed> {
        match self {
            Engine::Docker => docker::with(text, wish),
            Engine::Containerd => containerd::with(text, wish),
            Engine::Crio => tables::crio(text, wish),
            Engine::Podman => tables::podman(text, wish),
        }
    }

    /// The text without the runtime; none when nothing else is in it.
    fn without(self, text: &str, name: &str) -> Result<Option<String>, Malformed> {
        match self {
            Engine::Docker => docker::without(text, name),
            Engine::Containerd => containerd::without(text, name),
            Engine::Crio => tables::without_crio(text, name),
            Engine::Podman => tables::without_podman(text, name),
        }
    }
}

/// What comes of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// It is right as it is.
    None,
    /// It gets this text.
    Write(String),
    /// Nothing would be left in it.
    Delete,
}

/// Why a file is not changed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What is in it cannot be understood, so that changing it could lose something.
    #[error("{} is left as it is: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: Malformed,
    },
}

/// What adding the runtime would do to a file.
pub fn adding(engine: Engine, path: &Path, wish: &Wish) -> Result<Change, EngineError> {
    let old = read(path)?;
    let new = engine.with(old.as_deref().unwrap_or_default(), wish).map_err(malformed(path))?;
    Ok(if old.as_ref() == Some(&new) { Change::None } else { Change::Write(new) })
}

/// What removing it would.
pub fn removing(engine: Engine, path: &Path, name: &str) -> Result<Change, EngineError> {
    let Some(old) = read(path)? else { return Ok(Change::None) };
    Ok(match engine.without(&old, name).map_err(malformed(path))? {
        None => Change::Delete,
        Some(new) if new == old => Change::None,
        Some(new) => Change::Write(new),
    })
}

/// Makes the change: the file is replaced as a whole, with its owner and mode, or not at all.
pub fn make(change: &Change, path: &Path) -> Result<(), EngineError> {
    let done = match change {
        Change::None => Ok(()),
        Change::Write(text) => edit::save(path, text),
        Change::Delete => fs::remove_file(path),
    };
    done.map_err(|source| EngineError::Write { path: path.to_path_buf(), source })
}

fn malformed(path: &Path) -> impl FnOnce(Malformed) -> EngineError + '_ {
    |reason| EngineError::Malformed { path: path.to_path_buf(), reason }
}

fn read(path: &Path) -> Result<Option<String>, EngineError> {
    let at = |source| EngineError::Read { path: path.to_path_buf(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(at)?,
    };
    let mut text = String::new();
    file.take(LIMIT + 1).read_to_string(&mut text).map_err(at)?;
    if text.len() as u64 > LIMIT {
        return Err(at(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 4 MiB")));
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests;
