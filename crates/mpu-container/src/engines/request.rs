//! A requested runtime, the settings of one configuration file, and its format errors.

use toml_edit::Table;

#[derive(Debug, Clone)]
pub struct RuntimeRequest {
    pub name: String,
    pub path: String,
    /// Whether containers that name no runtime get this one; `None` does not change the default.
    pub default: Option<bool>,
    pub cdi: bool,
    /// The version of a new containerd configuration.
    pub containerd_version: i64,
    /// containerd's `runtime_type`.
    pub runtime_type: String,
    pub annotations: Vec<String>,
}

impl RuntimeRequest {
    pub fn new(name: &str, path: &str) -> RuntimeRequest {
        RuntimeRequest {
            name: name.into(),
            path: path.into(),
            default: None,
            cdi: false,
            containerd_version: 2,
            runtime_type: "io.containerd.runc.v2".into(),
            annotations: vec!["cdi.k8s.io/*".into()],
        }
    }
}

#[derive(Debug, Default)]
pub struct Settings {
    /// Whether the file has a section that can replace the whole section of earlier files.
    pub section: bool,
    pub default: Option<String>,
    pub runtimes: Vec<(String, Runtime)>,
    pub cdi: Option<bool>,
}

#[derive(Debug, Clone, Default)]
pub struct Runtime {
    pub program: Option<String>,
    pub keys: Table,
}

#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("not TOML: {0}")]
    Toml(String),
    #[error("{0} is no table")]
    NoTable(String),
    #[error("the import {0:?} has a bracket or a backslash too few or too many")]
    Pattern(String),
    /// A rewrite would keep only the last value of this key.
    #[error("the key '{0}' is there twice; an engine takes the last one, so remove the other one")]
    DuplicateKey(String),
    #[error("containerd's configuration version {0} is not known (1, 2 and 3 are)")]
    Version(i64),
}

impl From<toml_edit::TomlError> for FormatError {
    /// The error's place and message: its whole text is a drawing of several lines.
    fn from(error: toml_edit::TomlError) -> FormatError {
        let text = error.to_string();
        let place = text.lines().next().and_then(|line| line.strip_prefix("TOML parse error at "));
        let message = error.message().replace('\n', "; ");
        FormatError::Toml(place.map_or(message.clone(), |place| format!("{place}: {message}")))
    }
}
