//! Container engines' configuration: makes our runtime wrapper known to Docker, containerd, CRI-O and Podman, and undoes it.
//!
//! Comments, order and unknown keys in the files stay (JSON may get other line breaks). A change is checked against the effective
//! configuration ([`force`]) before a file is written, and again afterwards ([`plan`]). Starts and stops no engine.

pub mod command;
mod containerd;
mod crio;
mod docker;
pub mod files;
pub mod force;
pub mod leave;
pub mod plan;
mod podman;
mod request;
pub mod source;
mod tables;

use crate::lock::LockError;
use files::Layer;
use request::Settings;
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};
use toml_edit::Table;

pub use request::{Malformed, RuntimeRequest};

/// An engine whose configuration can hold a runtime.
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
    /// The file that it starts with, where its packages have it.
    pub fn top(self) -> &'static str {
        match self {
            Engine::Docker => "/etc/docker/daemon.json",
            Engine::Containerd => "/etc/containerd/config.toml",
            Engine::Crio => "/etc/crio/crio.conf",
            Engine::Podman => "/etc/containers/containers.conf",
        }
    }

    fn settings(self, layer: &Layer) -> Result<Settings, EngineError> {
        let settings = match self {
            Engine::Docker => docker::settings(&layer.text),
            Engine::Containerd => containerd::settings(&layer.text, layer.version),
            Engine::Crio => crio::settings(&layer.text),
            Engine::Podman => podman::settings(&layer.text),
        };
        settings.map_err(malformed(&layer.path))
    }

    /// The text with the runtime, which gets the pattern's keys where it has none.
    fn with(self, layer: &Layer, request: &RuntimeRequest, pattern: &Table) -> Result<String, EngineError> {
        let new = match self {
            Engine::Docker => docker::with(&layer.text, request),
            Engine::Containerd => containerd::with(&layer.text, request, pattern, layer.version),
            Engine::Crio => crio::with(&layer.text, request, pattern),
            Engine::Podman => podman::with(&layer.text, request),
        };
        new.map_err(malformed(&layer.path))
    }

    fn not_default(self, layer: &Layer, name: &str) -> Result<String, EngineError> {
        let new = match self {
            Engine::Docker => docker::not_default(&layer.text, name),
            Engine::Containerd => containerd::not_default(&layer.text, name, layer.version),
            Engine::Crio => tables::not_default(&layer.text, &crio::RUNTIME, "default_runtime", name),
            Engine::Podman => tables::not_default(&layer.text, &podman::ENGINE, "runtime", name),
        };
        new.map_err(malformed(&layer.path))
    }

    fn without(self, layer: &Layer, name: &str) -> Result<Option<String>, EngineError> {
        let left = match self {
            Engine::Docker => docker::without(&layer.text, name).map(Some),
            Engine::Containerd => containerd::without(&layer.text, name, layer.version),
            Engine::Crio => tables::without(&layer.text, &crio::RUNTIMES, &crio::RUNTIME, "default_runtime", name),
            Engine::Podman => tables::without(&layer.text, &podman::RUNTIMES, &podman::ENGINE, "runtime", name),
        };
        left.map_err(malformed(&layer.path))
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    Write(String),
    Delete,
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("nothing was changed: {} would overrule it, where {what}; change or remove that first", by.display())]
    Overruled { what: String, by: PathBuf },
    #[error("the files were written, but something else is in force now: {found}")]
    NotInForce { found: String },
    #[error(
        "{command} does not print the engine's configuration: {reason}; --config-source=file reads the files instead"
    )]
    Command { command: String, reason: String },
    #[error("{0}")]
    Usage(String),
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// It cannot be written, and earlier changes cannot be undone.
    #[error("cannot write {}, and not all that was done before could be taken back: {kept}", path.display())]
    Half { path: PathBuf, source: io::Error, kept: String },
    #[error(transparent)]
    Locked(#[from] LockError),
    /// It cannot be parsed, so a change could lose something.
    #[error("{} is left as it is: {reason}", path.display())]
    Malformed { path: PathBuf, reason: Malformed },
}

fn malformed(path: &Path) -> impl FnOnce(Malformed) -> EngineError + '_ {
    |reason| EngineError::Malformed { path: path.to_path_buf(), reason }
}

const PATH: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

pub fn hook(program: &Path) -> String {
    let folder = program.parent().and_then(Path::to_str).filter(|folder| !PATH.contains(folder));
    let path = PATH.into_iter().chain(folder).collect::<Vec<_>>().join(":");
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let hook = json!({
        "version": "1.0.0",
        "hook": {"path": program.display().to_string(), "args": [name, "prestart"], "env": [format!("PATH={path}")]},
        "when": {"always": true, "commands": [".*"]},
        "stages": ["prestart"],
    });
    format!("{hook:#}\n")
}

#[cfg(test)]
mod tests;
