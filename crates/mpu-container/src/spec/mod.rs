//! Reads, edits and atomically replaces a bundle's `config.json`.
//!
//! Source: OCI runtime specification 1.2, `config.md`.

mod apply;
mod error;
mod fields;
mod lossy;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use mpu_os::file;
use serde_json::Value;
use thiserror::Error;

use crate::edits::ContainerEdits;
use crate::text_file;

pub use apply::apply as edit;
pub use error::EditError;

/// Limit of a `config.json`. Engines write some ten kilobytes. The kernel limits an environment to a few megabytes.
pub const MAX_BYTES: u64 = 16 << 20;

#[derive(Debug)]
pub struct Spec {
    path: PathBuf,
    /// The file's mode and owner, which are kept.
    meta: fs::Metadata,
    tree: Value,
    /// Why the tree differs from the file. Such a tree must not be stored.
    lossy: Option<serde_json::Error>,
}

#[derive(Debug, Error)]
pub enum SpecError {
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("{} is larger than {} MiB, which no container's configuration is", .0.display(), MAX_BYTES >> 20)]
    TooLarge(PathBuf),
    #[error("{} is not JSON", .0.display())]
    NotJson(PathBuf, #[source] serde_json::Error),
    #[error("{} cannot be written again as it was", .0.display())]
    Lossy(PathBuf, #[source] serde_json::Error),
    #[error("{} is not a JSON object", .0.display())]
    NotAnObject(PathBuf),
    #[error("cannot replace {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
}

impl Spec {
    /// Reads a bundle's specification. If we cannot represent it (invalid UTF-8, too deep nesting, text after its end), it can be read for
    /// the container's request, but must reach the runtime unchanged.
    pub fn load(bundle: &Path) -> Result<Spec, SpecError> {
        let named = bundle.join("config.json");
        let read = |error| SpecError::Read(named.clone(), error);
        // Resolve a link here, so that the rename replaces the file and not the link.
        let path = fs::canonicalize(&named).map_err(read)?;
        let file = text_file::open_regular(&path).map_err(read)?;
        let meta = file.metadata().map_err(read)?;
        let text = file::read_all(file, MAX_BYTES).map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => SpecError::TooLarge(path.clone()),
            _ => read(error),
        })?;
        let (mut tree, lossy) = match serde_json::from_slice::<Value>(&text) {
            Ok(tree) => (tree, None),
            Err(error) => match lossy::read(&text) {
                Some(tree) => (tree, Some(error)),
                None => return Err(SpecError::NotJson(path, error)),
            },
        };
        if !tree.is_object() {
            return Err(SpecError::NotAnObject(path));
        }
        fields::normalize_names(&mut tree);
        Ok(Spec { path, meta, tree, lossy })
    }

    pub fn tree(&self) -> &Value {
        &self.tree
    }

    pub fn tree_mut(&mut self) -> &mut Value {
        &mut self.tree
    }

    pub fn apply(&mut self, edits: &ContainerEdits) -> Result<(), EditError> {
        edit(&mut self.tree, edits)
    }

    pub fn remove_prestart_hooks(&mut self, names: &[&str]) -> bool {
        let Some(Value::Array(hooks)) = self.tree.pointer_mut("/hooks/prestart") else { return false };
        let before = hooks.len();
        hooks.retain(|hook| !has_program_name(hook, names));
        hooks.len() != before
    }

    pub fn has_prestart_hook(&self, names: &[&str]) -> bool {
        let hooks = self.tree.pointer("/hooks/prestart").and_then(Value::as_array);
        hooks.is_some_and(|hooks| hooks.iter().any(|hook| has_program_name(hook, names)))
    }

    /// Replaces the file atomically, with the same mode and owner. Without fsync: a bundle lives no longer than its container.
    pub fn store(self) -> Result<(), SpecError> {
        if let Some(error) = self.lossy {
            return Err(SpecError::Lossy(self.path, error));
        }
        let write = |error| SpecError::Write(self.path.clone(), error);
        let text = serde_json::to_vec(&self.tree).map_err(|error| write(error.into()))?;
        let stored = || {
            let folder = self.path.parent().unwrap_or(Path::new("/"));
            let mut file = tempfile::Builder::new().prefix(".config.json.").tempfile_in(folder)?;
            let (new, old) = (file.as_file().metadata()?, &self.meta);
            if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
                std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()))?;
            }
            file.as_file().set_permissions(fs::Permissions::from_mode(old.mode() & 0o7777))?;
            file.write_all(&text)?;
            file.persist(&self.path).map(drop).map_err(|error| error.error)
        };
        stored().map_err(write)
    }
}

/// Whether a hook's path or first argument has one of these file names.
fn has_program_name(hook: &Value, names: &[&str]) -> bool {
    let words = [hook.get("path"), hook.pointer("/args/0")].into_iter().flatten().filter_map(Value::as_str);
    words.filter_map(|word| Path::new(word).file_name()).any(|program| names.iter().any(|name| program == *name))
}
