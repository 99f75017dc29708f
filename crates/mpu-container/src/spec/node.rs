//! What a device edit leaves out, taken from the node on the host.
//!
//! Outside truth: CDI 1.1.0, "deviceNodes": type and numbers that are missing are the host's. Links are not followed: a
//! device is the node, and what a link leads to is nobody's promise.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::error::EditError;
use crate::edits::DeviceNode;

/// Major and minor.
type Numbers = (i64, i64);

/// A device's type and, but for pipes, its numbers.
pub(super) struct Filled {
    pub(super) kind: String,
    pub(super) numbers: Option<Numbers>,
}

/// Fills in what an edit leaves out. The host is asked only when something is missing.
pub(super) fn fill(node: &DeviceNode) -> Result<Filled, EditError> {
    let kind = node.kind.as_deref().filter(|kind| !kind.is_empty());
    // A major number of zero is no device's: CDI's own programs write it for "not said".
    let major = node.major.filter(|major| *major != 0);
    match (kind, major) {
        (Some("p"), _) => return Ok(Filled { kind: "p".into(), numbers: None }),
        (Some(kind), Some(major)) => {
            return Ok(Filled { kind: kind.into(), numbers: Some((major, node.minor.unwrap_or(0))) })
        }
        _ => {}
    }
    let path = node.host_path.as_deref().filter(|path| !path.is_empty()).unwrap_or(&node.path);
    let (found, numbers) = look(Path::new(path))?;
    // OCI's "u" is a character device, too.
    if kind.is_some_and(|kind| kind != found && !(kind == "u" && found == "c")) {
        let expected = format!("of type '{}'", kind.unwrap_or_default());
        return Err(EditError::NotThatDevice { path: path.into(), found: name(found), expected });
    }
    let numbers = match major {
        Some(major) => Some((major, node.minor.unwrap_or(0))),
        None => numbers,
    };
    Ok(Filled { kind: kind.unwrap_or(found).into(), numbers: numbers.filter(|_| found != "p") })
}

fn look(path: &Path) -> Result<(&'static str, Option<Numbers>), EditError> {
    let meta = path.symlink_metadata().map_err(|error| EditError::Node(path.into(), error))?;
    let kind = meta.file_type();
    let numbers = (rustix::fs::major(meta.rdev()).into(), rustix::fs::minor(meta.rdev()).into());
    let other = |found| EditError::NotThatDevice { path: PathBuf::from(path), found, expected: "a device".into() };
    match () {
        () if kind.is_char_device() => Ok(("c", Some(numbers))),
        () if kind.is_block_device() => Ok(("b", Some(numbers))),
        () if kind.is_fifo() => Ok(("p", None)),
        () if kind.is_dir() => Err(other("a directory")),
        () if kind.is_symlink() => Err(other("a symbolic link")),
        () => Err(other("a file")),
    }
}

fn name(kind: &str) -> &'static str {
    match kind {
        "c" => "a character device",
        "b" => "a block device",
        _ => "a named pipe",
    }
}
