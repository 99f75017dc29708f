//! What is asked of an engine's configuration, and what can be wrong with its text.

/// What an engine shall know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// What users call the runtime: `nvidia`.
    pub name: String,
    /// The program.
    pub path: String,
    /// Whether containers that name no runtime get this one.
    pub default: bool,
    /// Whether the engine shall read CDI files.
    pub cdi: bool,
    /// The version that a containerd configuration gets which is not there yet.
    pub containerd_version: i64,
}

/// What is wrong with a configuration's text.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// Not JSON.
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Not TOML.
    #[error("not TOML: {0}")]
    Toml(#[from] toml_edit::TomlError),
    /// A key has another kind of value than the engine's documentation says.
    #[error("{0} is no table")]
    NoTable(String),
    /// A version of containerd's configuration that we do not know.
    #[error("containerd's configuration version {0} is not known (1, 2 and 3 are)")]
    Version(i64),
}
