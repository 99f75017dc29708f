//! Whether a CDI file names what is not on the host any more.
//!
//! Source: CDI specification 1.0.0, `containerEdits`; OCI runtime specification, `config.md`, "Mounts".

use std::path::{Path, PathBuf};

use crate::edits::{ContainerEdits, DeviceNode, Mount};

pub(super) fn missing(edits: &ContainerEdits) -> Option<PathBuf> {
    let nodes = edits.device_nodes.iter().filter(|node| !is_complete(node)).map(host_of);
    let mounts = edits.mounts.iter().filter(|mount| is_bind(mount)).map(|mount| mount.host_path.as_str());
    let hooks = edits.hooks.iter().map(|hook| hook.path.as_str());
    let there = |path: &str| Path::new(path).symlink_metadata().is_ok();
    nodes.chain(mounts).chain(hooks).find(|path| !there(path)).map(PathBuf::from)
}

/// Whether the runtime makes the node from the file's words alone.
fn is_complete(node: &DeviceNode) -> bool {
    match node.kind.as_deref() {
        None | Some("") => false,
        Some("p") => true,
        Some(_) => node.major.is_some_and(|major| major != 0),
    }
}

/// Whether a file or directory of the host is mounted, and no file system in memory.
fn is_bind(mount: &Mount) -> bool {
    matches!(mount.kind.as_deref(), None | Some("" | "bind" | "none"))
}

fn host_of(node: &DeviceNode) -> &str {
    node.host_path.as_deref().filter(|path| !path.is_empty()).unwrap_or(&node.path)
}
