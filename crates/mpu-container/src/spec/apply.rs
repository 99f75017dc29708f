//! Applies edits to a specification's tree.
//!
//! Source: CDI 1.1.0, "OCI edits", and the order of its library. Deliberate difference: that library's newest release adds `idmap` to
//! mounts of containers with a user namespace. Current runtimes refuse it, and the driver's files need no mapping: all users may
//! read them.

use super::error::EditError;
use crate::cdi::validate;
use crate::edits::{ContainerEdits, DeviceNode, Hook, Mount};
use serde_json::{Map, Value, json};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

pub fn apply(tree: &mut Value, edits: &ContainerEdits) -> Result<(), EditError> {
    validate::edits("containerEdits", edits)?;
    for text in &edits.env {
        env(tree, text)?;
    }
    for node in &edits.device_nodes {
        device(tree, node)?;
    }
    for net in &edits.net_devices {
        net_device(tree, net)?;
    }
    for one in &edits.mounts {
        mount(tree, one)?;
    }
    if !edits.mounts.is_empty() {
        sort_mounts(tree)?;
    }
    for one in &edits.hooks {
        hook(tree, one)?;
    }
    if let Some(rdt) = &edits.intel_rdt {
        object(tree, &["linux"])?.insert("intelRdt".into(), rdt.clone());
    }
    // CDI skips group 0: it means "not set".
    for gid in edits.additional_gids.iter().filter(|gid| **gid != 0) {
        let gids = list(tree, &["process", "user", "additionalGids"])?;
        if !gids.iter().any(|existing| existing.as_u64() == Some((*gid).into())) {
            gids.push(json!(gid));
        }
    }
    Ok(())
}

fn env(tree: &mut Value, text: &str) -> Result<(), EditError> {
    let name = text.split_once('=').map(|(name, _)| name);
    let all = list(tree, &["process", "env"])?;
    let same = |existing: &Value| {
        existing.as_str().and_then(|existing| existing.split_once('=')).is_some_and(|(n, _)| Some(n) == name)
    };
    // The last variable of a name counts.
    match all.iter_mut().rev().find(|existing| same(existing)) {
        Some(existing) => *existing = json!(text),
        None => all.push(json!(text)),
    }
    Ok(())
}

fn device(tree: &mut Value, node: &DeviceNode) -> Result<(), EditError> {
    let access = match node.permissions.as_deref() {
        None | Some("") => "rwm",
        Some("none") => "",
        Some(access) => access,
    };
    let filled = fill(node)?;
    let owner = |own: Option<u32>, key: &str, tree: &Value| -> Option<u64> {
        let of_process = || tree.pointer("/process/user")?.get(key)?.as_u64().filter(|id| *id > 0);
        own.map(u64::from).or_else(of_process)
    };
    let (uid, gid) = (owner(node.uid, "uid", tree), owner(node.gid, "gid", tree));
    let (major, minor) = filled.numbers.unzip();
    let devices = list(tree, &["linux", "devices"])?;
    devices.retain(|existing| existing.get("path").and_then(Value::as_str) != Some(&node.path));
    devices.push(without_unset(json!({
        "path": node.path, "type": filled.kind, "major": major, "minor": minor, "fileMode": filled.mode, "uid": uid,
        "gid": gid,
    })));
    if let (Some((major, minor)), "c" | "b") = (filled.numbers, filled.kind) {
        let rule = json!({"allow": true, "type": filled.kind, "major": major, "minor": minor, "access": access});
        // Always append: an equal earlier rule may be followed by a denying one.
        list(tree, &["linux", "resources", "devices"])?.push(rule);
    }
    Ok(())
}

fn net_device(tree: &mut Value, net: &Value) -> Result<(), EditError> {
    let text = |key| net.get(key).and_then(Value::as_str).unwrap_or_default();
    let all = object(tree, &["linux", "netDevices"])?;
    all.insert(text("hostInterfaceName").into(), json!({ "name": text("name") }));
    Ok(())
}

fn mount(tree: &mut Value, one: &Mount) -> Result<(), EditError> {
    let mounts = list(tree, &["mounts"])?;
    mounts.retain(|existing| existing.get("destination").and_then(Value::as_str) != Some(&one.container_path));
    mounts.push(without_unset(json!({
        "destination": one.container_path, "type": one.kind, "source": one.host_path, "options": one.options,
    })));
    Ok(())
}

/// Sorts mounts by the depth of their destination, so that a mount does not hide an earlier one. The sort is stable.
fn sort_mounts(tree: &mut Value) -> Result<(), EditError> {
    let mounts = list(tree, &["mounts"])?;
    mounts.sort_by_cached_key(|mount| depth(mount.get("destination").and_then(Value::as_str).unwrap_or_default()));
    Ok(())
}

/// The number of slashes in a path after removing `.`, `..`, and double or trailing slashes.
fn depth(path: &str) -> usize {
    let mut parts = 0usize;
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => parts = parts.saturating_sub(1),
            _ => parts += 1,
        }
    }
    // "/" has one slash, and a path that does not begin with one has one less.
    if path.starts_with('/') { parts.max(1) } else { parts.saturating_sub(1) }
}

fn hook(tree: &mut Value, one: &Hook) -> Result<(), EditError> {
    let entry = json!({"path": one.path, "args": one.args, "env": one.env, "timeout": one.timeout});
    list(tree, &["hooks", &one.hook_name])?.push(without_unset(entry));
    Ok(())
}

/// Removes the fields that are null, an empty text or an empty list.
fn without_unset(mut entry: Value) -> Value {
    let is_unset = |value: &Value| {
        value.is_null() || value.as_str().is_some_and(str::is_empty) || value.as_array().is_some_and(Vec::is_empty)
    };
    if let Value::Object(fields) = &mut entry {
        fields.retain(|_, value| !is_unset(value));
    }
    entry
}

/// The object at a path. Created if it is missing or null.
fn object<'a>(tree: &'a mut Value, keys: &[&str]) -> Result<&'a mut Map<String, Value>, EditError> {
    let mut here = as_object(tree, &[])?;
    for (depth, key) in keys.iter().enumerate() {
        let next = here.entry(*key).or_insert(Value::Null);
        if next.is_null() {
            *next = json!({});
        }
        here = as_object(next, &keys[..=depth])?;
    }
    Ok(here)
}

fn as_object<'a>(value: &'a mut Value, keys: &[&str]) -> Result<&'a mut Map<String, Value>, EditError> {
    value.as_object_mut().ok_or_else(|| EditError::Malformed { at: keys.join("."), expected: "an object" })
}

/// The list at a path. Created if it is missing or null. (Go writes an empty list as null.)
fn list<'a>(tree: &'a mut Value, keys: &[&str]) -> Result<&'a mut Vec<Value>, EditError> {
    let (last, parents) = keys.split_last().expect("a list has a name");
    let here = object(tree, parents)?.entry(*last).or_insert(Value::Null);
    if here.is_null() {
        *here = json!([]);
    }
    here.as_array_mut().ok_or_else(|| EditError::Malformed { at: keys.join("."), expected: "a list" })
}

struct Device<'a> {
    kind: &'a str,
    /// Major and minor number.
    numbers: Option<(i64, i64)>,
    mode: Option<u32>,
}

/// Fills in missing properties from the host's node. A device with a type and numbers need not exist on the host.
fn fill(node: &DeviceNode) -> Result<Device<'_>, EditError> {
    let kind = node.kind.as_deref().filter(|kind| !kind.is_empty());
    // Major number 0 means "not set": CDI's programs write it so.
    let numbers = node.major.filter(|major| *major != 0).map(|major| (major, node.minor.unwrap_or(0)));
    let path = node.host_path.as_deref().filter(|path| !path.is_empty()).unwrap_or(&node.path);
    let found = stat_device(Path::new(path));
    // Use the host's mode: runtimes would open a node without a mode to all users.
    let mode = node.file_mode.or(found.as_ref().ok().and_then(|found| found.mode));
    let (kind, numbers) = match (kind, numbers) {
        (Some("p"), _) => ("p", None),
        (Some(kind), Some(numbers)) => (kind, Some(numbers)),
        (kind, numbers) => {
            let found = found?;
            // OCI's "u" is also a character device.
            if kind.is_some_and(|kind| kind != found.kind && !(kind == "u" && found.kind == "c")) {
                let expected = format!("of type '{}'", kind.unwrap_or_default());
                return Err(EditError::WrongDevice { path: path.into(), found: kind_name(found.kind), expected });
            }
            (kind.unwrap_or(found.kind), numbers.or(found.numbers).filter(|_| found.kind != "p"))
        }
    };
    Ok(Device { kind, numbers, mode })
}

fn stat_device(path: &Path) -> Result<Device<'static>, EditError> {
    let meta = path.symlink_metadata().map_err(|error| EditError::Node(path.into(), error))?;
    let kind = meta.file_type();
    let numbers = (rustix::fs::major(meta.rdev()).into(), rustix::fs::minor(meta.rdev()).into());
    let other = |found| EditError::WrongDevice { path: PathBuf::from(path), found, expected: "a device".into() };
    let (kind, numbers) = match () {
        () if kind.is_char_device() => ("c", Some(numbers)),
        () if kind.is_block_device() => ("b", Some(numbers)),
        () if kind.is_fifo() => ("p", None),
        () if kind.is_dir() => return Err(other("a directory")),
        () if kind.is_symlink() => return Err(other("a symbolic link")),
        () => return Err(other("a file")),
    };
    Ok(Device { kind, numbers, mode: Some(meta.mode() & 0o777) })
}

fn kind_name(kind: &str) -> &'static str {
    match kind {
        "c" => "a character device",
        "b" => "a block device",
        _ => "a named pipe",
    }
}
