//! A bundle's `config.json`: read, edited as a tree, and put back whole.
//!
//! Source: OCI runtime specification 1.2, `config.md`.

mod apply;
mod error;
mod fields;
mod hooks;
mod node;
#[cfg(test)]
mod tests;
mod tolerant;

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::Value;
use thiserror::Error;

use crate::edits::ContainerEdits;

pub use error::EditError;

/// The largest `config.json` that is read. Engines write some ten kilobytes; the kernel limits what an environment can be
/// to a few megabytes.
pub const LIMIT: u64 = 16 << 20;

#[derive(Debug)]
pub struct Spec {
    path: PathBuf,
    kept: Kept,
    tree: Value,
    /// Why the tree is not what the file holds: it can be asked questions, and never be stored.
    lossy: Option<serde_json::Error>,
}

/// What of the file survives that is not its text.
#[derive(Debug)]
struct Kept {
    mode: u32,
    uid: u32,
    gid: u32,
}

#[derive(Debug, Error)]
pub enum SpecError {
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("{} is larger than {} MiB, which no container's configuration is", .0.display(), LIMIT >> 20)]
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

pub fn edit(tree: &mut Value, edits: &ContainerEdits) -> Result<(), EditError> {
    apply::apply(tree, edits)
}

impl Spec {
    /// Reads the specification of the bundle in a directory. Of one that we cannot hold as it is (letters that are no
    /// UTF-8, too deep a nesting, more behind its end) it can only be asked what the container wants: it must reach the runtime untouched.
    pub fn load(bundle: &Path) -> Result<Spec, SpecError> {
        let named = bundle.join("config.json");
        let read = |error| SpecError::Read(named.clone(), error);
        // A link is followed here and once, so that the rename replaces the file and not the link.
        let path = fs::canonicalize(&named).map_err(read)?;
        // Opening a FIFO waits for somebody who writes.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).map_err(read)?;
        let meta = file.metadata().map_err(read)?;
        if !meta.is_file() {
            return Err(read(io::Error::other("it is not a regular file")));
        }
        let mut text = Vec::with_capacity(meta.len().min(LIMIT) as usize + 1);
        file.take(LIMIT + 1).read_to_end(&mut text).map_err(read)?;
        if text.len() as u64 > LIMIT {
            return Err(SpecError::TooLarge(path));
        }
        let (mut tree, lossy) = match serde_json::from_slice::<Value>(&text) {
            Ok(tree) => (tree, None),
            Err(error) => match tolerant::read(&text) {
                Some(tree) => (tree, Some(error)),
                None => return Err(SpecError::NotJson(path, error)),
            },
        };
        if !tree.is_object() {
            return Err(SpecError::NotAnObject(path));
        }
        fields::rename(&mut tree);
        let kept = Kept { mode: meta.permissions().mode() & 0o7777, uid: meta.uid(), gid: meta.gid() };
        Ok(Spec { path, kept, tree, lossy })
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
        hooks::remove(&mut self.tree, names)
    }

    pub fn has_prestart_hook(&self, names: &[&str]) -> bool {
        hooks::has(&self.tree, names)
    }

    /// Replaces the file, with the same mode and owner. Whoever opens it sees the old text or the new one.
    ///
    /// Nothing is forced to the disk: a bundle lives no longer than the container does.
    pub fn store(self) -> Result<(), SpecError> {
        if let Some(error) = self.lossy {
            return Err(SpecError::Lossy(self.path, error));
        }
        let write = |error| SpecError::Write(self.path.clone(), error);
        let text = serde_json::to_vec(&self.tree).map_err(|error| write(error.into()))?;
        let beside = self.path.with_file_name(format!(".config.json.{}", std::process::id()));
        let stored = self.write_beside(&beside, &text).and_then(|()| fs::rename(&beside, &self.path));
        if stored.is_err() {
            // It is ours, by its name and because it was created here; if it is not there, nothing is left to undo.
            let _ = fs::remove_file(&beside);
        }
        stored.map_err(write)
    }

    fn write_beside(&self, path: &Path, text: &[u8]) -> io::Result<()> {
        let new = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut file = match new() {
            // A process with our number died here before us.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(path)?;
                new()?
            }
            other => other?,
        };
        let meta = file.metadata()?;
        if (meta.uid(), meta.gid()) != (self.kept.uid, self.kept.gid) {
            std::os::unix::fs::fchown(&file, Some(self.kept.uid), Some(self.kept.gid))?;
        }
        file.set_permissions(fs::Permissions::from_mode(self.kept.mode))?;
        file.write_all(text)
    }
}
