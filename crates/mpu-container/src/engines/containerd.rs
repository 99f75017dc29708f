//! containerd's `config.toml`, versions 1, 2 and 3.
//!
//! The runtime gets the options of the default one (such as `SystemdCgroup`), since it stands in for it.
//!
//! Outside truth: containerd's `docs/cri/config.md` (1.7 and 2.0) for the plugin's names and keys.

use super::tables::{edit, find, forget, prune, remove, set, table};
use super::wish::{Malformed, Wish};
use toml_edit::{value, Array, Item, Table};

/// Where a version keeps the plugin that runs containers.
fn plugin(version: i64) -> Result<&'static str, Malformed> {
    match version {
        1 => Ok("cri"),
        2 => Ok("io.containerd.grpc.v1.cri"),
        3 => Ok("io.containerd.cri.v1.runtime"),
        other => Err(Malformed::Version(other)),
    }
}

/// A file that says no version is of version 1; one that says nothing at all can be of any.
fn version(root: &Table, fresh: i64) -> i64 {
    let said = root.get("version").and_then(Item::as_integer);
    said.unwrap_or(if root.is_empty() { fresh } else { 1 })
}

pub(super) fn with(text: &str, wish: &Wish) -> Result<String, Malformed> {
    edit(text, |root| {
        let version = version(root, wish.containerd_version);
        if root.is_empty() && version > 1 {
            root.insert("version", value(version));
        }
        let plugin = plugin(version)?;
        let containerd = ["plugins", plugin, "containerd"];
        let pattern = find(root, &containerd).map(pattern).unwrap_or_default();
        let at = [&containerd[..], &["runtimes", &wish.name]].concat();
        let there = find(root, &at).is_some();
        let runtime = table(root, &at)?;
        if !there {
            for (key, item) in pattern.iter().filter(|(key, _)| *key != "options") {
                runtime.insert(key, item.clone());
            }
        }
        if runtime.get("runtime_type").and_then(Item::as_str).is_none_or(str::is_empty) {
            set(runtime, "runtime_type", "io.containerd.runc.v2");
        }
        annotations(runtime);
        let options = table(root, &[&at[..], &["options"]].concat())?;
        if !there {
            for (key, item) in pattern.get("options").and_then(Item::as_table).into_iter().flatten() {
                options.insert(key, item.clone());
            }
        }
        set(options, "BinaryName", &wish.path);
        if wish.default {
            set(table(root, &containerd)?, "default_runtime_name", &wish.name);
        }
        if wish.cdi {
            let cri = table(root, &["plugins", plugin])?;
            if cri.get("enable_cdi").and_then(Item::as_bool) != Some(true) {
                cri.insert("enable_cdi", value(true));
            }
        }
        Ok(())
    })
}

pub(super) fn without(text: &str, name: &str) -> Result<Option<String>, Malformed> {
    let text = edit(text, |root| {
        let version = version(root, 1);
        let containerd = ["plugins", plugin(version)?, "containerd"];
        let runtimes = [&containerd[..], &["runtimes"]].concat();
        remove(root, &runtimes, name);
        forget(root, &containerd, "default_runtime_name", name);
        prune(root, &runtimes);
        Ok(())
    })?;
    let only_the_version = text.lines().all(|line| line.trim().is_empty() || line.starts_with("version"));
    Ok(if only_the_version { None } else { Some(text) })
}

/// The runtime that ours stands in for.
fn pattern(containerd: &Table) -> Table {
    let named = containerd.get("default_runtime_name").and_then(Item::as_str).unwrap_or("runc");
    [named, "runc", "crun"].iter().find_map(|name| find(containerd, &["runtimes", name])).cloned().unwrap_or_default()
}

/// Lets a pod's CDI annotations reach the wrapper.
fn annotations(runtime: &mut Table) {
    const OURS: &str = "cdi.k8s.io/*";
    let there = runtime.get("container_annotations").and_then(Item::as_array).cloned().unwrap_or_default();
    if !there.iter().any(|pattern| pattern.as_str() == Some(OURS)) {
        let mut all: Array = there;
        all.push(OURS);
        runtime.insert("container_annotations", value(all));
    }
}
