//! CRI-O's and Podman's files, and what all TOML has in common.
//!
//! Both engines merge the files of a directory key by key, so ours has nothing but the runtime.
//!
//! Outside truth: `crio.conf(5)`, `[crio.runtime.runtimes]`; `containers.conf(5)`, `[engine.runtimes]`.

use super::wish::{Malformed, Wish};
use toml_edit::{value, Array, DocumentMut, Item, Table};

pub(super) fn crio(text: &str, wish: &Wish) -> Result<String, Malformed> {
    edit(text, |root| {
        let runtime = table(root, &["crio", "runtime", "runtimes", &wish.name])?;
        set(runtime, "runtime_path", &wish.path);
        set(runtime, "runtime_type", "oci");
        if wish.default {
            set(table(root, &["crio", "runtime"])?, "default_runtime", &wish.name);
        }
        Ok(())
    })
}

pub(super) fn without_crio(text: &str, name: &str) -> Result<Option<String>, Malformed> {
    cleared(edit(text, |root| {
        remove(root, &["crio", "runtime", "runtimes"], name);
        forget(root, &["crio", "runtime"], "default_runtime", name);
        prune(root, &["crio", "runtime", "runtimes"]);
        Ok(())
    })?)
}

pub(super) fn podman(text: &str, wish: &Wish) -> Result<String, Malformed> {
    edit(text, |root| {
        let runtimes = table(root, &["engine", "runtimes"])?;
        let paths = Array::from_iter([wish.path.as_str()]);
        if runtimes.get(&wish.name).and_then(Item::as_array).map(Array::to_string) != Some(paths.to_string()) {
            runtimes.insert(&wish.name, value(paths));
        }
        if wish.default {
            set(table(root, &["engine"])?, "runtime", &wish.name);
        }
        Ok(())
    })
}

pub(super) fn without_podman(text: &str, name: &str) -> Result<Option<String>, Malformed> {
    cleared(edit(text, |root| {
        remove(root, &["engine", "runtimes"], name);
        forget(root, &["engine"], "runtime", name);
        prune(root, &["engine", "runtimes"]);
        Ok(())
    })?)
}

/// A file in which no key is left is none of the administrator's.
fn cleared(text: String) -> Result<Option<String>, Malformed> {
    let empty = text.lines().all(|line| line.trim().is_empty());
    Ok(if empty { None } else { Some(text) })
}

pub(super) fn edit(text: &str, change: impl FnOnce(&mut Table) -> Result<(), Malformed>) -> Result<String, Malformed> {
    let mut document: DocumentMut = text.parse()?;
    change(document.as_table_mut())?;
    Ok(document.to_string())
}

/// The table at a path, made where it is missing.
pub(super) fn table<'a>(root: &'a mut Table, path: &[&str]) -> Result<&'a mut Table, Malformed> {
    let mut at = root;
    for (depth, key) in path.iter().enumerate() {
        let fresh = || {
            let mut table = Table::new();
            // Only the last one shows a heading, unless it gets keys of its own.
            table.set_implicit(depth + 1 < path.len());
            Item::Table(table)
        };
        let item = at.entry(key).or_insert_with(fresh);
        if item.is_inline_table() {
            let inline = std::mem::take(item);
            *item = inline.into_table().map_or(Item::None, Item::Table);
        }
        at = item.as_table_mut().ok_or_else(|| Malformed::NoTable(path[..=depth].join(".")))?;
    }
    Ok(at)
}

/// The table at a path that is there.
pub(super) fn find<'a>(root: &'a Table, path: &[&str]) -> Option<&'a Table> {
    path.iter().try_fold(root, |at, key| at.get(key)?.as_table())
}

/// Sets a string, and keeps the line as it stands where it says so already.
pub(super) fn set(table: &mut Table, key: &str, text: &str) {
    if table.get(key).and_then(Item::as_str) != Some(text) {
        table.insert(key, value(text));
    }
}

/// Takes a key out of the table at a path.
pub(super) fn remove(root: &mut Table, path: &[&str], key: &str) {
    if let Some(at) = find_mut(root, path) {
        at.remove(key);
    }
}

/// Takes a key out if it has this value, and the heading above it if that was there for the key's sake.
pub(super) fn forget(root: &mut Table, path: &[&str], key: &str, text: &str) {
    let Some(at) = find_mut(root, path) else { return };
    if at.get(key).and_then(Item::as_str) == Some(text) {
        at.remove(key);
        let commented = at.decor().prefix().and_then(|prefix| prefix.as_str()).is_some_and(|text| text.contains('#'));
        at.set_implicit(!commented && at.iter().all(|(_, item)| item.is_table()));
    }
}

/// Takes out the tables of a path that hold nothing, the innermost first.
pub(super) fn prune(root: &mut Table, path: &[&str]) {
    for depth in (0..path.len()).rev() {
        if find(root, &path[..=depth]).is_some_and(Table::is_empty) {
            remove(root, &path[..depth], path[depth]);
        }
    }
}

fn find_mut<'a>(root: &'a mut Table, path: &[&str]) -> Option<&'a mut Table> {
    path.iter().try_fold(root, |at, key| at.get_mut(key)?.as_table_mut())
}
