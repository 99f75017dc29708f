//! `/etc/nvidia-container-runtime/config.toml`.
//!
//! Missing keys, and a missing file, mean the defaults. An unknown key is a [`Note`] and no error: NVIDIA adds keys with every
//! release. An invalid value is an error before any other value is used.
//!
//! Source: NVIDIA Container Toolkit 1.20, `api/config/v1` (keys, defaults, which file).

pub mod edit;
pub mod keys;
mod settings;
mod values;

use crate::text_file;
use keys::{Field, KEYS};
pub use settings::{Cli, Config, Features, Hook, Runtime};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use toml_edit::{Item, TableLike};
pub use values::{CompatMode, LogLevel, Mode};

/// A larger file is refused. All keys with long values need about a hundredth of it.
pub const MAX_FILE_SIZE: u64 = 1 << 20;

/// A part of the file that has no effect, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub line: usize,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    pub config: Config,
    /// The file; `None` if it does not exist.
    pub path: Option<PathBuf>,
    pub notes: Vec<Note>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file exists but cannot be read, or is required but missing.
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{}, line {line}: {message}", path.display())]
    Malformed { path: PathBuf, line: usize, message: String },
}

impl ConfigError {
    pub fn fix(&self) -> &'static str {
        match self {
            ConfigError::Unreadable { .. } => "check that the file is there and that root may read it",
            ConfigError::Malformed { .. } => "correct the line; `nvidia-ctk config default` shows every key",
        }
    }
}

/// The path of an installer's configuration, relative to the directory of the executable.
pub const ADJACENT_CONFIG: &str = ".config/nvidia-container-runtime/config.toml";

/// The file to read, and whether it must exist. `variable` reads our own environment (never the container's). A file beside the
/// executable takes precedence over the host's.
pub fn path(variable: impl Fn(&str) -> Option<OsString>) -> (PathBuf, bool) {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    let adjacent =
        || Some(crate::executable::path().ok()?.parent()?.join(ADJACENT_CONFIG)).filter(|path| path.exists());
    match set("NVIDIA_CTK_CONFIG_FILE_PATH") {
        Some(path) => (path.into(), true),
        None if adjacent().is_some() => (adjacent().unwrap_or_default(), false),
        None => {
            let folder = set("XDG_CONFIG_HOME").map_or("/etc".into(), PathBuf::from);
            (folder.join("nvidia-container-runtime/config.toml"), false)
        }
    }
}

impl Config {
    pub fn load() -> Result<Loaded, ConfigError> {
        Config::at_or_default(&path(|name| std::env::var_os(name)).0)
    }

    pub fn at_or_default(path: &Path) -> Result<Loaded, ConfigError> {
        match Config::at(path) {
            Err(ConfigError::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(Loaded { config: Config::of_host(Path::new("/")), path: None, notes: Vec::new() })
            }
            other => other,
        }
    }

    /// Reads a file that must exist.
    pub fn at(path: &Path) -> Result<Loaded, ConfigError> {
        let text = read(path)?;
        let (config, notes) = Config::parse(&text, Config::of_host(Path::new("/")))
            .map_err(|(line, message)| ConfigError::Malformed { path: path.to_path_buf(), line, message })?;
        Ok(Loaded { config, path: Some(path.to_path_buf()), notes })
    }

    /// The defaults on a host. On SUSE, the device nodes belong to the group `video`.
    pub fn of_host(root: &Path) -> Config {
        let mut config = Config::default();
        let release = std::fs::read_to_string(root.join("etc/os-release")).unwrap_or_default();
        let like = release.lines().find_map(|line| line.strip_prefix("ID_LIKE=")).unwrap_or_default();
        if like.trim_matches('"').split(' ').any(|id| id == "suse" || id == "opensuse") {
            config.cli.user = "root:video".to_string();
        }
        config
    }

    pub fn parse(text: &str, defaults: Config) -> Result<(Config, Vec<Note>), (usize, String)> {
        let document = toml_edit::Document::parse(text).map_err(|error| {
            let at = error.span().map_or(text.len(), |span| span.start);
            (line_of(text, at), error.message().replace('\n', "; "))
        })?;
        let mut reader = Reader { text, config: defaults, notes: Vec::new() };
        reader.table(document.as_table(), "")?;
        let Reader { config, notes, .. } = reader;
        let ldconfig = &config.cli.ldconfig;
        if !ldconfig.starts_with('@') && !config.features.allow_ldconfig_from_container {
            let message = format!(
                "nvidia-container-cli.ldconfig value {ldconfig:?} is not host-relative (does not start with a '@'): \
                 only features.allow-ldconfig-from-container lets a container's own be run"
            );
            let item = document.get("nvidia-container-cli").and_then(|table| table.get("ldconfig"));
            return Err((line_of(text, item.and_then(Item::span).map_or(0, |span| span.start)), message));
        }
        Ok((config, notes))
    }

    /// The argument of the container CLI's `--ldconfig`; `None` if the setting is empty. Ubuntu's `ldconfig` is a script, so the program
    /// `ldconfig.real` beside it is used.
    pub fn ldconfig(&self, host: &Path) -> Option<String> {
        let Some(path) = self.cli.ldconfig.strip_prefix('@') else {
            return (!self.cli.ldconfig.is_empty()).then(|| self.cli.ldconfig.clone());
        };
        let path = path.strip_suffix(".real").unwrap_or(path);
        let real = format!("{path}.real");
        let there = host.join(real.trim_start_matches('/')).exists();
        Some(format!("@{}", if there { &real } else { path }))
    }
}

struct Reader<'a> {
    text: &'a str,
    config: Config,
    notes: Vec<Note>,
}

impl Reader<'_> {
    fn table(&mut self, table: &dyn TableLike, prefix: &str) -> Result<(), (usize, String)> {
        for (word, item) in table.iter() {
            let name = if prefix.is_empty() { word.to_string() } else { format!("{prefix}.{word}") };
            let within = table.key(word).and_then(toml_edit::Key::span).or_else(|| item.span());
            let line = line_of(self.text, within.map_or(0, |span| span.start));
            if let Some(key) = keys::find(&name) {
                self.value(key, item).map_err(|message| (line, format!("{name}: {message}")))?;
                continue;
            }
            let is_table_of_keys =
                KEYS.iter().any(|key| key.name.strip_prefix(&name).is_some_and(|l| l.starts_with('.')));
            match item.as_table_like() {
                Some(inner) if is_table_of_keys => self.table(inner, &name)?,
                None if is_table_of_keys => return Err((line, format!("{name} is a table, not a value"))),
                _ => self.notes.push(Note { line, message: format!("unknown key {name}") }),
            }
        }
        Ok(())
    }

    fn value(&mut self, key: &keys::Key, item: &Item) -> Result<(), String> {
        let text = || item.as_str().ok_or("wants a text, in quotes");
        match key.field {
            Field::Bool(field) => *field(&mut self.config) = item.as_bool().ok_or("wants true or false")?,
            Field::Text(field) => *field(&mut self.config) = text()?.to_string(),
            Field::Path(field) => {
                *field(&mut self.config) = Some(text()?).filter(|path| !path.is_empty()).map(PathBuf::from);
            }
            Field::Parsed(parse) => parse(&mut self.config, text()?)?,
            Field::Texts(field) => *field(&mut self.config) = list(item)?,
            Field::Paths(field) => *field(&mut self.config) = list(item)?.into_iter().map(PathBuf::from).collect(),
        }
        Ok(())
    }
}

fn list(item: &Item) -> Result<Vec<String>, String> {
    let texts = item.as_array().and_then(|array| array.iter().map(|v| v.as_str().map(str::to_string)).collect());
    texts.ok_or_else(|| "wants a list of texts, as [\"a\", \"b\"]".to_string())
}

fn read(path: &Path) -> Result<String, ConfigError> {
    text_file::read(path, MAX_FILE_SIZE).map_err(|source| ConfigError::Unreadable { path: path.to_path_buf(), source })
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    let last = before.last() == Some(&b'\n') && at >= text.len() && !text.is_empty();
    before.iter().filter(|&&byte| byte == b'\n').count() + 1 - usize::from(last)
}

#[cfg(test)]
mod tests;
