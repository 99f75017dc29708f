//! containerd's `config.toml`, versions 1, 2 and 3.
//!
//! The runtime gets the options of the default one (such as `SystemdCgroup`), since it stands in for it.
//!
//! Outside truth: containerd's `docs/cri/config.md` (1.7 and 2.0) for the plugin's names and keys.

use super::tables::{bare, complete, edit, find, forget, lay, prune, remove, set, table, text, within};
use super::wish::{Malformed, Runtime, Says, Wish};
use toml_edit::{value, Array, DocumentMut, Item, Table, Value};

/// Where a version keeps the plugin that runs containers.
pub(super) fn plugin(version: i64) -> Result<&'static str, Malformed> {
    match version {
        1 => Ok("cri"),
        2 => Ok("io.containerd.grpc.v1.cri"),
        3 => Ok("io.containerd.cri.v1.runtime"),
        other => Err(Malformed::Version(other)),
    }
}

/// The version that a file says, or else the one that a file without has: the importing file's, and 1 at the top. A file
/// that says nothing at all can be of any.
pub(super) fn version(of: &str, otherwise: i64, fresh: i64) -> Result<i64, Malformed> {
    let root: DocumentMut = of.parse()?;
    let said = root.get("version").and_then(Item::as_integer);
    Ok(said.unwrap_or(if root.is_empty() { fresh } else { otherwise }))
}

/// The files that a file imports, as it names them.
pub(super) fn imports(of: &str) -> Result<Vec<String>, Malformed> {
    let root: DocumentMut = of.parse()?;
    let named = root.get("imports").and_then(Item::as_array).into_iter().flatten();
    Ok(named.filter_map(Value::as_str).map(str::to_string).collect())
}

/// The plugin's section of a file, if it has one.
pub(super) fn section(of: &str, version: i64) -> Result<Option<Table>, Malformed> {
    let root: DocumentMut = of.parse()?;
    Ok(find(&root, &["plugins", plugin(version)?]).map(bare))
}

pub(super) fn says(of: &str, version: i64) -> Result<Says, Malformed> {
    let Some(section) = section(of, version)? else { return Ok(Says::default()) };
    let runtimes = within(&section, &["containerd", "runtimes"]).map(|(name, keys)| {
        let keys = bare(keys);
        let program = ["BinaryName", "Runtime"].iter().find_map(|key| text(&keys, &["options"], key));
        (name.to_string(), Runtime { program, keys })
    });
    Ok(Says {
        section: true,
        default: text(&section, &["containerd"], "default_runtime_name"),
        runtimes: runtimes.collect(),
        cdi: section.get("enable_cdi").and_then(Item::as_bool),
    })
}

pub(super) fn with(of: &str, wish: &Wish, pattern: &Table, version: i64) -> Result<String, Malformed> {
    edit(of, |root| {
        if root.is_empty() && version > 1 {
            root.insert("version", value(version));
        }
        let plugin = plugin(version)?;
        let containerd = ["plugins", plugin, "containerd"];
        let at = [&containerd[..], &["runtimes", &wish.name]].concat();
        let runtime = table(root, &at)?;
        complete(runtime, pattern);
        if runtime.get("runtime_type").and_then(Item::as_str).is_none_or(str::is_empty) {
            set(runtime, "runtime_type", &wish.runtime_type);
        }
        annotations(runtime, &wish.annotations);
        let options = table(root, &[&at[..], &["options"]].concat())?;
        set(options, "BinaryName", &wish.path);
        if version == 1 {
            // What runtimes of the kind before runc.v2 read, which only such a file can have.
            set(options, "Runtime", &wish.path);
        }
        match wish.default {
            Some(true) => set(table(root, &containerd)?, "default_runtime_name", &wish.name),
            Some(false) => forget(root, &containerd, "default_runtime_name", &wish.name),
            None => {}
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

/// What stands above the entry for runc that is there for ours' sake.
const NAMED: &str = "# containerd's own, which a release before 2.1 forgets as soon as a runtime is named.\n";

/// The text with runc, where no runtime but ours is named: containerd 1.7 starts no pod then, for lack of its own default.
pub(super) fn with_runc(of: &str, ours: &[String], version: i64) -> Result<String, Malformed> {
    let at = ["plugins", plugin(version)?, "containerd", "runtimes"];
    edit(of, |root| {
        if within(root, &at).any(|(name, _)| !ours.iter().any(|our| our == name)) {
            return Ok(());
        }
        let runc = table(root, &[&at[..], &["runc"]].concat())?;
        runc.insert("runtime_type", value("io.containerd.runc.v2"));
        runc.decor_mut().set_prefix(format!("\n{NAMED}"));
        Ok(())
    })
}

/// Whether this is what containerd has anyway.
pub(super) fn plain_runc(name: &str, keys: &Table) -> bool {
    name == "runc" && keys.len() == 1 && text(keys, &[], "runtime_type").as_deref() == Some("io.containerd.runc.v2")
}

/// The text without this runtime as the default one.
pub(super) fn not_default(of: &str, name: &str, version: i64) -> Result<String, Malformed> {
    edit(of, |root| {
        forget(root, &["plugins", plugin(version)?, "containerd"], "default_runtime_name", name);
        Ok(())
    })
}

pub(super) fn without(of: &str, name: &str, version: i64) -> Result<Option<String>, Malformed> {
    let left = edit(of, |root| {
        let containerd = ["plugins", plugin(version)?, "containerd"];
        let runtimes = [&containerd[..], &["runtimes"]].concat();
        remove(root, &runtimes, name);
        let left: Vec<_> = within(root, &runtimes).map(|(name, _)| name.to_string()).collect();
        if left == ["runc"] && of.contains(NAMED) {
            remove(root, &runtimes, "runc");
        }
        forget(root, &containerd, "default_runtime_name", name);
        prune(root, &runtimes);
        Ok(())
    })?;
    let only_the_version = left.lines().all(|line| line.trim().is_empty() || line.starts_with("version"));
    Ok((!only_the_version).then_some(left))
}

/// A file of our own for others to import, with the plugin's section of those others.
pub(super) fn drop_in(version: i64, section: &Table) -> Result<String, Malformed> {
    edit("", |root| {
        root.insert("version", value(version));
        if !section.is_empty() {
            lay(section, table(root, &["plugins", plugin(version)?])?);
        }
        Ok(())
    })
    .map(|text| {
        let why =
            "# Written by nvidia-ctk. containerd before 2.1 takes the whole section from the last file that has it:\n\
                   # this is a copy of config.toml's, with the runtime. Run nvidia-ctk again after changes there.\n";
        if section.is_empty() {
            text
        } else {
            format!("{why}{text}")
        }
    })
}

/// The text with one import more.
pub(super) fn importing(of: &str, pattern: &str, version: i64) -> Result<String, Malformed> {
    edit(of, |root| {
        if root.is_empty() {
            root.insert("version", value(version));
        }
        let all = root.entry("imports").or_insert_with(|| value(Array::new()));
        all.as_array_mut().ok_or_else(|| Malformed::NoTable("imports (a list)".into()))?.push(pattern);
        Ok(())
    })
}

/// The text without an import, if nothing but that and a version is in it: such a file is none of the administrator's.
pub(super) fn only_imports(of: &str, pattern: &str) -> Result<bool, Malformed> {
    let root: DocumentMut = of.parse()?;
    let plain = root.iter().all(|(key, _)| matches!(key, "version" | "imports"));
    Ok(plain && imports(of)? == [pattern] && !of.contains('#'))
}

/// Lets a pod's annotations reach the wrapper.
fn annotations(runtime: &mut Table, wanted: &[String]) {
    let mut all = runtime.get("container_annotations").and_then(Item::as_array).cloned().unwrap_or_default();
    let there = all.len();
    for pattern in wanted {
        if !all.iter().any(|other| other.as_str() == Some(pattern)) {
            all.push(pattern);
        }
    }
    if all.len() > there {
        runtime.insert("container_annotations", value(all));
    }
}
