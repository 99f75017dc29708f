//! What a device edit leaves out, taken from the node on the host.
//!
//! Source: CDI 1.1.0, "deviceNodes": type, numbers and mode that are missing are the host's. Links are not followed: a
//! device is the node, and what a link leads to is nobody's promise.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::error::EditError;
use crate::edits::DeviceNode;

type Numbers = (i64, i64);

pub(super) struct Filled {
    pub(super) kind: String,
    pub(super) numbers: Option<Numbers>,
    pub(super) mode: Option<u32>,
}

/// Fills in what an edit leaves out. A device that names its type and numbers need not be on the host.
pub(super) fn fill(node: &DeviceNode) -> Result<Filled, EditError> {
    let kind = node.kind.as_deref().filter(|kind| !kind.is_empty());
    // A major number of zero is no device's: CDI's own programs write it for "not said".
    let numbers = node.major.filter(|major| *major != 0).map(|major| (major, node.minor.unwrap_or(0)));
    let path = node.host_path.as_deref().filter(|path| !path.is_empty()).unwrap_or(&node.path);
    let found = look(Path::new(path));
    // Runtimes open a node without a mode to everybody, whatever the host's is.
    let mode = node.file_mode.or(found.as_ref().ok().map(|found| found.mode));
    let (kind, numbers) = match (kind, numbers) {
        (Some("p"), _) => ("p", None),
        (Some(kind), Some(numbers)) => (kind, Some(numbers)),
        (kind, numbers) => {
            let found = found?;
            // OCI's "u" is a character device, too.
            if kind.is_some_and(|kind| kind != found.kind && !(kind == "u" && found.kind == "c")) {
                let expected = format!("of type '{}'", kind.unwrap_or_default());
                return Err(EditError::NotThatDevice { path: path.into(), found: name(found.kind), expected });
            }
            (kind.unwrap_or(found.kind), numbers.or(found.numbers).filter(|_| found.kind != "p"))
        }
    };
    Ok(Filled { kind: kind.into(), numbers, mode })
}

struct Found {
    kind: &'static str,
    numbers: Option<Numbers>,
    mode: u32,
}

fn look(path: &Path) -> Result<Found, EditError> {
    let meta = path.symlink_metadata().map_err(|error| EditError::Node(path.into(), error))?;
    let kind = meta.file_type();
    let numbers = (rustix::fs::major(meta.rdev()).into(), rustix::fs::minor(meta.rdev()).into());
    let other = |found| EditError::NotThatDevice { path: PathBuf::from(path), found, expected: "a device".into() };
    let (kind, numbers) = match () {
        () if kind.is_char_device() => ("c", Some(numbers)),
        () if kind.is_block_device() => ("b", Some(numbers)),
        () if kind.is_fifo() => ("p", None),
        () if kind.is_dir() => return Err(other("a directory")),
        () if kind.is_symlink() => return Err(other("a symbolic link")),
        () => return Err(other("a file")),
    };
    Ok(Found { kind, numbers, mode: meta.mode() & 0o777 })
}

fn name(kind: &str) -> &'static str {
    match kind {
        "c" => "a character device",
        "b" => "a block device",
        _ => "a named pipe",
    }
}
