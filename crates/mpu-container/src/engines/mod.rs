//! Adds our runtime wrapper to the configuration of Docker, containerd, CRI-O and Podman, and removes it.
//!
//! Comments, order and unknown keys in the files stay (JSON may get other line breaks). A change is checked against the effective
//! configuration ([`effective`]) before a file is written, and again afterwards ([`plan`]). Starts and stops no engine.

pub mod command;
mod containerd;
mod crio;
mod docker;
pub mod effective;
pub mod files;
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

pub use request::{FormatError, RuntimeRequest};

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
    /// The first configuration file that the engine reads, at the path that its packages use.
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

    /// Adds the runtime to the text. Copies the keys of `template` that the runtime does not have.
    fn add_runtime(self, layer: &Layer, request: &RuntimeRequest, template: &Table) -> Result<String, EngineError> {
        let new = match self {
            Engine::Docker => docker::add_runtime(&layer.text, request),
            Engine::Containerd => containerd::add_runtime(&layer.text, request, template, layer.version),
            Engine::Crio => crio::add_runtime(&layer.text, request, template),
            Engine::Podman => podman::add_runtime(&layer.text, request),
        };
        new.map_err(malformed(&layer.path))
    }

    fn unset_default(self, layer: &Layer, name: &str) -> Result<String, EngineError> {
        let new = match self {
            Engine::Docker => docker::unset_default(&layer.text, name),
            Engine::Containerd => containerd::unset_default(&layer.text, name, layer.version),
            Engine::Crio => tables::unset_default(&layer.text, &crio::RUNTIME, "default_runtime", name),
            Engine::Podman => tables::unset_default(&layer.text, &podman::ENGINE, "runtime", name),
        };
        new.map_err(malformed(&layer.path))
    }

    fn remove_runtime(self, layer: &Layer, name: &str) -> Result<Option<String>, EngineError> {
        let left = match self {
            Engine::Docker => docker::remove_runtime(&layer.text, name).map(Some),
            Engine::Containerd => containerd::remove_runtime(&layer.text, name, layer.version),
            Engine::Crio => {
                tables::remove_runtime(&layer.text, &crio::RUNTIMES, &crio::RUNTIME, "default_runtime", name)
            }
            Engine::Podman => tables::remove_runtime(&layer.text, &podman::RUNTIMES, &podman::ENGINE, "runtime", name),
        };
        left.map_err(malformed(&layer.path))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("nothing was changed: {} would overrule it, where {conflict}; change or remove that first", file.display())]
    Overruled { conflict: String, file: PathBuf },
    #[error("the files were written, but something else is in force now: {found}")]
    NotEffective { found: String },
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
    /// The file cannot be written, and some earlier changes cannot be undone.
    #[error("cannot write {}, and not all that was done before could be taken back: {kept}", path.display())]
    PartlyUndone { path: PathBuf, source: io::Error, kept: String },
    #[error(transparent)]
    Locked(#[from] LockError),
    /// The file cannot be parsed, so a change could lose something.
    #[error("{} is left as it is: {reason}", path.display())]
    Malformed { path: PathBuf, reason: FormatError },
}

fn malformed(path: &Path) -> impl FnOnce(FormatError) -> EngineError + '_ {
    |reason| EngineError::Malformed { path: path.to_path_buf(), reason }
}

const PATH: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The text of an OCI hook file that runs the program as a prestart hook in every container.
pub fn hook_file_text(program: &Path) -> String {
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
