//! containerd's `config.toml`, versions 1, 2 and 3.
//!
//! The runtime gets the options of the default one (such as `SystemdCgroup`), since it stands in for it.
//!
//! Source: containerd's `docs/cri/config.md` (1.7 and 2.0) for the plugin's names and keys.

use super::request::{Malformed, Runtime, RuntimeRequest, Settings};
use super::tables::{self, complete, edit, find, forget, lay, prune, remove, set, table, text, within};
use toml_edit::{Array, DocumentMut, Item, RawString, Table, Value, value};

pub(super) fn plugin(version: i64) -> Result<&'static str, Malformed> {
    match version {
        1 => Ok("cri"),
        2 => Ok("io.containerd.grpc.v1.cri"),
        3 => Ok("io.containerd.cri.v1.runtime"),
        other => Err(Malformed::Version(other)),
    }
}

/// A file's version. Without one it is the importing file's, and 1 for the top file. An empty file can have any version.
pub(super) fn version(of: &str, otherwise: i64, fresh: i64) -> Result<i64, Malformed> {
    let root: DocumentMut = of.parse()?;
    let version = root.get("version").and_then(Item::as_integer);
    Ok(version.unwrap_or(if root.is_empty() { fresh } else { otherwise }))
}

pub(super) fn imports(of: &str) -> Result<Vec<String>, Malformed> {
    let root: DocumentMut = of.parse()?;
    let named = root.get("imports").and_then(Item::as_array).into_iter().flatten();
    Ok(named.filter_map(Value::as_str).map(str::to_string).collect())
}

pub(super) fn section(of: &str, version: i64) -> Result<Option<Table>, Malformed> {
    let root: DocumentMut = of.parse()?;
    Ok(find(&root, &["plugins", plugin(version)?]).map(tables::bare))
}

pub(super) fn settings(of: &str, version: i64) -> Result<Settings, Malformed> {
    let Some(section) = section(of, version)? else { return Ok(Settings::default()) };
    let runtimes = within(&section, &["containerd", "runtimes"]).map(|(name, keys)| {
        let keys = tables::bare(keys);
        let program = ["BinaryName", "Runtime"].iter().find_map(|key| text(&keys, &["options"], key));
        (name.to_string(), Runtime { program, keys })
    });
    Ok(Settings {
        section: true,
        default: text(&section, &["containerd"], "default_runtime_name"),
        runtimes: runtimes.collect(),
        cdi: section.get("enable_cdi").and_then(Item::as_bool),
    })
}

pub(super) fn with(of: &str, request: &RuntimeRequest, pattern: &Table, version: i64) -> Result<String, Malformed> {
    edit(of, |root| {
        if root.is_empty() && version > 1 {
            begin(root, of, version);
        }
        let plugin = plugin(version)?;
        let containerd = ["plugins", plugin, "containerd"];
        let at = [&containerd[..], &["runtimes", &request.name]].concat();
        let runtime = table(root, &at)?;
        complete(runtime, pattern);
        // An entry of years ago can name a shim that containerd 2 does not have any more.
        let kind = pattern.get("runtime_type").and_then(Item::as_str).filter(|kind| !kind.is_empty());
        set(runtime, "runtime_type", kind.unwrap_or(&request.runtime_type));
        annotations(runtime, &request.annotations);
        let options = table(root, &[&at[..], &["options"]].concat())?;
        set(options, "BinaryName", request.path.as_str());
        if version == 1 {
            // What runtimes of the kind before runc.v2 read, which only such a file can have.
            set(options, "Runtime", request.path.as_str());
        }
        match request.default {
            Some(true) => set(table(root, &containerd)?, "default_runtime_name", request.name.as_str()),
            Some(false) => forget(root, &containerd, "default_runtime_name", &request.name),
            None => {}
        }
        if request.cdi {
            let cri = table(root, &["plugins", plugin])?;
            set(cri, "enable_cdi", true);
        }
        Ok(())
    })
}

/// Comment above the entry for runc that we add.
const NAMED: &str = "# containerd's own, which a release before 2.1 forgets as soon as a runtime is named.\n";

/// The text with an entry for runc, if it names no runtime but ours. Otherwise containerd 1.7 starts no pod: it loses its default runtime.
pub(super) fn with_runc(of: &str, comment: &[String], version: i64) -> Result<String, Malformed> {
    let at = ["plugins", plugin(version)?, "containerd", "runtimes"];
    edit(of, |root| {
        if within(root, &at).any(|(name, _)| !comment.iter().any(|our| our == name)) {
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

pub(super) fn not_default(of: &str, name: &str, version: i64) -> Result<String, Malformed> {
    tables::not_default(of, &["plugins", plugin(version)?, "containerd"], "default_runtime_name", name)
}

pub(super) fn without(of: &str, name: &str, version: i64) -> Result<Option<String>, Malformed> {
    let left = edit(of, |root| {
        let containerd = ["plugins", plugin(version)?, "containerd"];
        let runtimes = [&containerd[..], &["runtimes"]].concat();
        remove(root, &runtimes, name);
        let left: Vec<_> = within(root, &runtimes).map(|(name, _)| name.to_string()).collect();
        if left == ["runc"] && of.replace("\r\n", "\n").contains(NAMED) {
            let above = table(root, &[&runtimes[..], &["runc"]].concat())?.decor_mut();
            let others = above.prefix().and_then(RawString::as_str).unwrap_or_default().replace(NAMED, "");
            above.set_prefix(others);
            remove(root, &runtimes, "runc");
        }
        forget(root, &containerd, "default_runtime_name", name);
        prune(root, &runtimes);
        Ok(())
    })?;
    Ok((!bare(&left)).then_some(left))
}

/// First line of a top file that we made.
const MADE: &str = "# Made by nvidia-ctk, which removes this file once nothing else is in it.\n";
const COPY: &str = "# Written by nvidia-ctk. containerd before 2.1 takes the whole section from the last file that has it:\n\
                    # this is a copy of config.toml's, with the runtime. Run nvidia-ctk again after changes there.\n";
/// Comment above imports, followed by the pattern that we added.
const IMPORTS: &str = "# For nvidia-ctk's file: ";

/// Whether a file has only a version, and no comment of the administrator's.
pub(super) fn bare(text: &str) -> bool {
    let root = text.parse::<DocumentMut>();
    root.is_ok_and(|root| root.iter().all(|(key, _)| key == "version")) && !has_comments(text)
}

pub(super) fn emptied(of: &str) -> Result<String, Malformed> {
    edit(of, |root| {
        root.retain(|key, _| key == "version");
        Ok(())
    })
}

pub(super) fn made(text: &str) -> bool {
    text.starts_with(MADE.trim_end())
}

/// Whether a file may have comments of the administrator's.
pub(super) fn has_comments(text: &str) -> bool {
    let text = text.replace("\r\n", "\n");
    [MADE, COPY].iter().fold(text, |text, comment| text.replace(comment, "")).contains('#')
}

fn begin(root: &mut DocumentMut, of: &str, version: i64) {
    root.insert("version", value(version));
    if of.trim().is_empty()
        && let Some(mut key) = root.key_mut("version")
    {
        key.leaf_decor_mut().set_prefix(MADE);
    }
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
    .map(|text| if section.is_empty() { text } else { format!("{COPY}{text}") })
}

pub(super) fn importing(of: &str, pattern: &str, version: i64) -> Result<String, Malformed> {
    edit(of, |root| {
        if root.is_empty() {
            begin(root, of, version);
        }
        let all = root.entry("imports").or_insert_with(|| value(Array::new()));
        all.as_array_mut().ok_or_else(|| Malformed::NoTable("imports (a list)".into()))?.push(pattern);
        if let Some(mut key) = root.key_mut("imports") {
            let above = key.leaf_decor_mut();
            let old = above.prefix().and_then(RawString::as_str).unwrap_or_default();
            let new = format!("{IMPORTS}{pattern}\n{old}");
            above.set_prefix(new);
        }
        Ok(())
    })
}

/// The text without some imports. A pattern is removed only if we made it: it may match other files.
pub(super) fn not_importing(of: &str, gone: impl Fn(&str, bool) -> bool) -> Result<String, Malformed> {
    edit(of, |root| {
        let above = root.key("imports").and_then(|key| key.leaf_decor().prefix()?.as_str());
        let mut above = above.unwrap_or_default().to_string();
        let Some(all) = root.get_mut("imports").and_then(Item::as_array_mut) else { return Ok(()) };
        let before = all.len();
        for at in (0..before).rev() {
            let Some(import) = all.get(at).and_then(Value::as_str).map(str::to_string) else { continue };
            let comment = format!("{IMPORTS}{import}\n");
            if gone(&import, above.contains(&comment)) {
                all.remove(at);
                above = above.replacen(&comment, "", 1);
            }
        }
        // One that was empty before is the administrator's.
        let none = all.is_empty() && before > 0;
        if let Some(mut key) = root.key_mut("imports") {
            key.leaf_decor_mut().set_prefix(above);
        }
        if none {
            remove(root, &[], "imports");
        }
        Ok(())
    })
}

fn annotations(runtime: &mut Table, wanted: &[String]) {
    let mut all = runtime.get("container_annotations").and_then(Item::as_array).cloned().unwrap_or_default();
    let there = all.len();
    for pattern in wanted {
        if !all.iter().any(|other| other.as_str() == Some(pattern)) {
            all.push(pattern);
        }
    }
    if all.len() > there {
        set(runtime, "container_annotations", all);
    }
}
