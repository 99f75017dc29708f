//! containerd's `config.toml`, versions 1, 2 and 3.
//!
//! Our runtime copies the options of the default runtime (such as `SystemdCgroup`), because it replaces that runtime.
//!
//! Source: containerd's `docs/cri/config.md` (1.7 and 2.0) for the plugin's names and keys.

use super::request::{FormatError, Runtime, RuntimeRequest, Settings};
use super::tables::{
    self, edit, fill_missing, find, merge_over, prune, remove, remove_if_equal, set, string_at, sub_tables, table,
};
use toml_edit::{Array, DocumentMut, Item, RawString, Table, Value, value};

pub(super) fn plugin(version: i64) -> Result<&'static str, FormatError> {
    match version {
        1 => Ok("cri"),
        2 => Ok("io.containerd.grpc.v1.cri"),
        3 => Ok("io.containerd.cri.v1.runtime"),
        other => Err(FormatError::Version(other)),
    }
}

/// A file's version. Without a key it is `inherited` (the importing file's version, and 1 for the top file). An empty file gets
/// `fresh`.
pub(super) fn version(text: &str, inherited: i64, fresh: i64) -> Result<i64, FormatError> {
    let root: DocumentMut = text.parse()?;
    let version = root.get("version").and_then(Item::as_integer);
    Ok(version.unwrap_or(if root.is_empty() { fresh } else { inherited }))
}

pub(super) fn imports(text: &str) -> Result<Vec<String>, FormatError> {
    let root: DocumentMut = text.parse()?;
    let named = root.get("imports").and_then(Item::as_array).into_iter().flatten();
    Ok(named.filter_map(Value::as_str).map(str::to_string).collect())
}

pub(super) fn section(text: &str, version: i64) -> Result<Option<Table>, FormatError> {
    let root: DocumentMut = text.parse()?;
    Ok(find(&root, &["plugins", plugin(version)?]).map(tables::strip_layout))
}

pub(super) fn settings(text: &str, version: i64) -> Result<Settings, FormatError> {
    let Some(section) = section(text, version)? else { return Ok(Settings::default()) };
    let runtimes = sub_tables(&section, &["containerd", "runtimes"]).map(|(name, keys)| {
        let keys = tables::strip_layout(keys);
        let program = ["BinaryName", "Runtime"].iter().find_map(|key| string_at(&keys, &["options"], key));
        (name.to_string(), Runtime { program, keys })
    });
    Ok(Settings {
        section: true,
        default: string_at(&section, &["containerd"], "default_runtime_name"),
        runtimes: runtimes.collect(),
        cdi: section.get("enable_cdi").and_then(Item::as_bool),
    })
}

pub(super) fn add_runtime(
    text: &str,
    request: &RuntimeRequest,
    template: &Table,
    version: i64,
) -> Result<String, FormatError> {
    edit(text, |root| {
        if root.is_empty() && version > 1 {
            insert_version(root, text, version);
        }
        let plugin = plugin(version)?;
        let containerd = ["plugins", plugin, "containerd"];
        let at = [&containerd[..], &["runtimes", &request.name]].concat();
        let runtime = table(root, &at)?;
        fill_missing(runtime, template);
        // An old entry can name a shim that containerd 2 has no longer.
        let kind = template.get("runtime_type").and_then(Item::as_str).filter(|kind| !kind.is_empty());
        set(runtime, "runtime_type", kind.unwrap_or(&request.runtime_type));
        annotations(runtime, &request.annotations);
        let options = table(root, &[&at[..], &["options"]].concat())?;
        set(options, "BinaryName", request.path.as_str());
        if version == 1 {
            // The key of runtime types before runc.v2, which only files of version 1 can have.
            set(options, "Runtime", request.path.as_str());
        }
        match request.default {
            Some(true) => set(table(root, &containerd)?, "default_runtime_name", request.name.as_str()),
            Some(false) => remove_if_equal(root, &containerd, "default_runtime_name", &request.name),
            None => {}
        }
        if request.cdi {
            let cri = table(root, &["plugins", plugin])?;
            set(cri, "enable_cdi", true);
        }
        Ok(())
    })
}

/// Comment above a runc entry that we added.
const RUNC_ADDED: &str = "# containerd's own, which a release before 2.1 forgets as soon as a runtime is named.\n";

/// Adds an entry for runc if the file has no runtimes but ours. Without it, containerd 1.7 loses its default runtime and starts no pod.
pub(super) fn add_runc(text: &str, our_names: &[String], version: i64) -> Result<String, FormatError> {
    let at = ["plugins", plugin(version)?, "containerd", "runtimes"];
    edit(text, |root| {
        if sub_tables(root, &at).any(|(name, _)| !our_names.iter().any(|our| our == name)) {
            return Ok(());
        }
        let runc = table(root, &[&at[..], &["runc"]].concat())?;
        runc.insert("runtime_type", value("io.containerd.runc.v2"));
        runc.decor_mut().set_prefix(format!("\n{RUNC_ADDED}"));
        Ok(())
    })
}

/// Whether an entry is the same as containerd's built-in one.
pub(super) fn is_default_runc(name: &str, keys: &Table) -> bool {
    name == "runc"
        && keys.len() == 1
        && string_at(keys, &[], "runtime_type").as_deref() == Some("io.containerd.runc.v2")
}

pub(super) fn unset_default(text: &str, name: &str, version: i64) -> Result<String, FormatError> {
    tables::unset_default(text, &["plugins", plugin(version)?, "containerd"], "default_runtime_name", name)
}

pub(super) fn remove_runtime(text: &str, name: &str, version: i64) -> Result<Option<String>, FormatError> {
    let left = edit(text, |root| {
        let containerd = ["plugins", plugin(version)?, "containerd"];
        let runtimes = [&containerd[..], &["runtimes"]].concat();
        remove(root, &runtimes, name);
        let left: Vec<_> = sub_tables(root, &runtimes).map(|(name, _)| name.to_string()).collect();
        if left == ["runc"] && text.replace("\r\n", "\n").contains(RUNC_ADDED) {
            let above = table(root, &[&runtimes[..], &["runc"]].concat())?.decor_mut();
            let others = above.prefix().and_then(RawString::as_str).unwrap_or_default().replace(RUNC_ADDED, "");
            above.set_prefix(others);
            remove(root, &runtimes, "runc");
        }
        remove_if_equal(root, &containerd, "default_runtime_name", name);
        prune(root, &runtimes);
        Ok(())
    })?;
    Ok((!has_only_version(&left)).then_some(left))
}

/// First line of a top file that we created.
const CREATED: &str = "# Made by nvidia-ctk, which removes this file once nothing else is in it.\n";
const COPIED: &str = "# Written by nvidia-ctk. containerd before 2.1 takes the whole section from the last file that has it:\n\
                    # this is a copy of config.toml's, with the runtime. Run nvidia-ctk again after changes there.\n";
/// Comment above `imports`, followed by the pattern that we added.
const IMPORT_ADDED: &str = "# For nvidia-ctk's file: ";

/// Whether a file has only a version, and no comments of the administrator.
pub(super) fn has_only_version(text: &str) -> bool {
    let root = text.parse::<DocumentMut>();
    root.is_ok_and(|root| root.iter().all(|(key, _)| key == "version")) && !has_comments(text)
}

pub(super) fn keep_only_version(text: &str) -> Result<String, FormatError> {
    edit(text, |root| {
        root.retain(|key, _| key == "version");
        Ok(())
    })
}

pub(super) fn is_created_by_us(text: &str) -> bool {
    text.starts_with(CREATED.trim_end())
}

/// Whether a file may have comments of the administrator. A `#` in a string counts, too.
pub(super) fn has_comments(text: &str) -> bool {
    let text = text.replace("\r\n", "\n");
    [CREATED, COPIED].iter().fold(text, |text, comment| text.replace(comment, "")).contains('#')
}

fn insert_version(root: &mut DocumentMut, text: &str, version: i64) {
    root.insert("version", value(version));
    if text.trim().is_empty()
        && let Some(mut key) = root.key_mut("version")
    {
        key.leaf_decor_mut().set_prefix(CREATED);
    }
}

/// The text of a new drop-in file with a copy of the plugin's section.
pub(super) fn drop_in_text(version: i64, section: &Table) -> Result<String, FormatError> {
    edit("", |root| {
        root.insert("version", value(version));
        if !section.is_empty() {
            merge_over(section, table(root, &["plugins", plugin(version)?])?);
        }
        Ok(())
    })
    .map(|text| if section.is_empty() { text } else { format!("{COPIED}{text}") })
}

pub(super) fn add_import(text: &str, pattern: &str, version: i64) -> Result<String, FormatError> {
    edit(text, |root| {
        if root.is_empty() {
            insert_version(root, text, version);
        }
        let all = root.entry("imports").or_insert_with(|| value(Array::new()));
        all.as_array_mut().ok_or_else(|| FormatError::NoTable("imports (a list)".into()))?.push(pattern);
        if let Some(mut key) = root.key_mut("imports") {
            let above = key.leaf_decor_mut();
            let old = above.prefix().and_then(RawString::as_str).unwrap_or_default();
            let new = format!("{IMPORT_ADDED}{pattern}\n{old}");
            above.set_prefix(new);
        }
        Ok(())
    })
}

/// Removes the imports for which `gone(import, whether we added it)` is true.
pub(super) fn remove_imports(text: &str, gone: impl Fn(&str, bool) -> bool) -> Result<String, FormatError> {
    edit(text, |root| {
        let above = root.key("imports").and_then(|key| key.leaf_decor().prefix()?.as_str());
        let mut above = above.unwrap_or_default().to_string();
        let Some(all) = root.get_mut("imports").and_then(Item::as_array_mut) else { return Ok(()) };
        let before = all.len();
        for at in (0..before).rev() {
            let Some(import) = all.get(at).and_then(Value::as_str).map(str::to_string) else { continue };
            let comment = format!("{IMPORT_ADDED}{import}\n");
            if gone(&import, above.contains(&comment)) {
                all.remove(at);
                above = above.replacen(&comment, "", 1);
            }
        }
        // A list that was empty before is the administrator's, and stays.
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

fn annotations(runtime: &mut Table, patterns: &[String]) {
    let mut all = runtime.get("container_annotations").and_then(Item::as_array).cloned().unwrap_or_default();
    let old_count = all.len();
    for pattern in patterns {
        if !all.iter().any(|other| other.as_str() == Some(pattern)) {
            all.push(pattern);
        }
    }
    if all.len() > old_count {
        set(runtime, "container_annotations", all);
    }
}
