//! Edits of TOML tables that keep comments and layout.

use super::request::FormatError;
use std::collections::BTreeMap;
use toml_edit::{Decor, DocumentMut, Item, RawString, Table, TableLike, Value, value};

/// Applies a change to a text. Unchanged parts stay byte for byte, and line endings stay.
pub(super) fn edit(
    text: &str,
    change: impl FnOnce(&mut DocumentMut) -> Result<(), FormatError>,
) -> Result<String, FormatError> {
    let mut document: DocumentMut = text.replace("\r\n", "\n").parse()?;
    let before = document.to_string();
    change(&mut document)?;
    let after = document.to_string();
    Ok(if after == before { text.to_string() } else { with_line_endings_of(text, after) })
}

/// Gives the text the line endings of `like`.
pub(super) fn with_line_endings_of(like: &str, text: String) -> String {
    match like.contains("\r\n") {
        true => text.replace("\r\n", "\n").replace('\n', "\r\n"),
        false => text,
    }
}

/// Returns `None` if only blank lines are left.
pub(super) fn none_if_empty(text: String) -> Option<String> {
    let empty = text.lines().all(|line| line.trim().is_empty());
    (!empty).then_some(text)
}

pub(super) fn table<'a>(root: &'a mut Table, path: &[&str]) -> Result<&'a mut Table, FormatError> {
    let mut table = root;
    for (depth, key) in path.iter().enumerate() {
        let fresh = || {
            let mut table = Table::new();
            // Only the last table of the path gets a heading.
            table.set_implicit(depth + 1 < path.len());
            Item::Table(table)
        };
        let item = table.entry(key).or_insert_with(fresh);
        if item.is_inline_table() {
            let inline = std::mem::take(item);
            *item = inline.into_table().map_or(Item::None, Item::Table);
        }
        table = item.as_table_mut().ok_or_else(|| FormatError::NoTable(path[..=depth].join(".")))?;
    }
    Ok(table)
}

/// The existing table at a path, in any TOML notation.
pub(super) fn find<'a>(root: &'a Table, path: &[&str]) -> Option<&'a dyn TableLike> {
    path.iter().try_fold(root as &dyn TableLike, |table, key| table.get(key)?.as_table_like())
}

pub(super) fn string_at(root: &Table, path: &[&str], key: &str) -> Option<String> {
    find(root, path)?.get(key)?.as_str().map(str::to_string)
}

pub(super) fn sub_tables<'a>(root: &'a Table, path: &[&str]) -> impl Iterator<Item = (&'a str, &'a dyn TableLike)> {
    let entries = find(root, path).into_iter().flat_map(|table| table.iter());
    entries.filter_map(|(name, item)| Some((name, item.as_table_like()?)))
}

/// Copies keys and values without comments and without positions in the file.
pub(super) fn strip_layout(table: &dyn TableLike) -> Table {
    let mut all = Table::new();
    for (key, item) in table.iter() {
        let item = match (item.as_table_like(), item.as_value()) {
            (Some(inner), _) => Item::Table(strip_layout(inner)),
            (None, Some(value)) => Item::Value(strip_value(value)),
            // An array of tables. No engine uses one for its runtimes.
            (None, None) => item.clone(),
        };
        all.insert(key, item);
    }
    all.set_implicit(!all.is_empty() && all.iter().all(|(_, item)| item.is_table()));
    all
}

/// Copies a value without comments and line breaks, also those between a list's elements.
fn strip_value(value: &Value) -> Value {
    match value {
        Value::Array(list) => Value::Array(list.iter().map(strip_value).collect()),
        Value::InlineTable(table) => {
            Value::InlineTable(table.iter().map(|(key, value)| (key, strip_value(value))).collect())
        }
        scalar => {
            let mut scalar = scalar.clone();
            scalar.decor_mut().clear();
            scalar
        }
    }
}

pub(super) fn merge_over(over: &Table, under: &mut Table) {
    for (key, item) in over {
        match (item.as_table(), under.get_mut(key).and_then(Item::as_table_mut)) {
            (Some(inner), Some(existing)) => merge_over(inner, existing),
            _ => drop(under.insert(key, item.clone())),
        }
    }
}

pub(super) fn fill_missing(table: &mut Table, defaults: &Table) {
    for (key, item) in defaults {
        match (table.get_mut(key), item.as_table()) {
            (Some(existing), Some(inner)) => {
                if let Some(existing) = existing.as_table_mut() {
                    fill_missing(existing, inner);
                }
            }
            (Some(_), None) => {}
            (None, _) => drop(table.insert(key, item.clone())),
        }
    }
    table.set_implicit(false);
}

/// Whether every key of one table has the same value in another.
pub(super) fn is_superset(superset: &dyn TableLike, subset: &dyn TableLike) -> bool {
    subset.iter().all(|(key, item)| match (item.as_table_like(), superset.get(key)) {
        (Some(inner), Some(existing)) => existing.as_table_like().is_some_and(|existing| is_superset(existing, inner)),
        (Some(inner), None) => inner.is_empty(),
        (None, existing) => match (existing.and_then(Item::as_value), item.as_value()) {
            (Some(existing), Some(value)) => same_value(existing, value),
            _ => false,
        },
    })
}

/// Whether two values are equal, whatever their quotes and line breaks.
fn same_value(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::String(one), Value::String(other)) => one.value() == other.value(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other.iter()).all(|(one, other)| same_value(one, other))
        }
        _ => one.to_string().trim() == other.to_string().trim(),
    }
}

/// Sets a key. Keeps its line if the value is the same, and its comments otherwise.
pub(super) fn set(table: &mut Table, key: &str, new_value: impl Into<Value>) {
    let mut new_value = new_value.into();
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(existing) if same_value(existing, &new_value) => {}
        Some(existing) => {
            *new_value.decor_mut() = existing.decor().clone();
            *existing = new_value;
        }
        None => drop(table.insert(key, value(new_value))),
    }
}

/// Removes a key from the table at a path. The comments above it stay.
pub(super) fn remove(root: &mut DocumentMut, path: &[&str], key: &str) {
    move_comments(root, path, key);
    if let Some(table) = find_mut(root, path) {
        table.remove(key);
    }
}

pub(super) fn remove_if_equal(root: &mut DocumentMut, path: &[&str], key: &str, expected: &str) {
    if string_at(root, path, key).as_deref() != Some(expected) {
        return;
    }
    remove(root, path, key);
    let below = has_comments_below(root, path);
    let table = path.iter().try_fold(root.as_table_mut(), |table, key| table.get_mut(key)?.as_table_mut());
    if let Some(table) = table {
        let commented =
            below || table.decor().prefix().and_then(|prefix| prefix.as_str()).is_some_and(|text| text.contains('#'));
        table.set_implicit(!commented && table.iter().all(|(_, item)| item.is_table()));
    }
}

/// Removes the empty tables of a path, the innermost first. A heading with comments below it stays: they may be keys that the
/// administrator has commented out.
pub(super) fn prune(root: &mut DocumentMut, path: &[&str]) {
    for depth in (0..path.len()).rev() {
        let inner = &path[..=depth];
        if find(root, inner).is_some_and(TableLike::is_empty) && !has_comments_below(root, inner) {
            remove(root, &path[..depth], path[depth]);
        }
    }
}

/// Removes the default runtime if it is this one.
pub(super) fn unset_default(text: &str, path: &[&str], key: &str, name: &str) -> Result<String, FormatError> {
    edit(text, |root| {
        remove_if_equal(root, path, key, name);
        Ok(())
    })
}

/// Removes a runtime, also as the default; returns `None` if nothing is left.
pub(super) fn remove_runtime(
    text: &str,
    runtimes: &[&str],
    path: &[&str],
    key: &str,
    name: &str,
) -> Result<Option<String>, FormatError> {
    let left = edit(text, |root| {
        remove(root, runtimes, name);
        remove_if_equal(root, path, key, name);
        prune(root, runtimes);
        Ok(())
    })?;
    Ok(none_if_empty(left))
}

fn find_mut<'a>(root: &'a mut Table, path: &[&str]) -> Option<&'a mut dyn TableLike> {
    path.iter().try_fold(root as &mut dyn TableLike, |table, key| table.get_mut(key)?.as_table_like_mut())
}

/// Moves the comments above a key of the table at a path to the next item of the file.
pub(super) fn move_comments(root: &mut DocumentMut, path: &[&str], key: &str) {
    // An inline table has no comments.
    let Some(table) = table_at(root, path) else { return };
    let Some((name, item)) = table.get_key_value(key) else { return };
    let own = headings(item);
    let (after, decor, next) = match own.first_key_value() {
        Some((position, decor)) => (*position, *decor, None),
        None if item.is_table() => return,
        None => {
            let next = table.iter().skip_while(|(other, _)| *other != key).skip(1).find(|(_, item)| item.is_value());
            (table.position().unwrap_or(0), name.leaf_decor(), next.map(|(name, _)| name.to_string()))
        }
    };
    let above = decor.prefix().and_then(RawString::as_str).unwrap_or_default();
    // Without the indentation of the key itself.
    let comments = above[..above.rfind('\n').map_or(0, |end| end + 1)].trim_start_matches('\n').to_string();
    if !comments.contains('#') {
        return;
    }
    if let Some(next) = next {
        let table = path.iter().try_fold(root.as_table_mut(), |table, key| table.get_mut(key)?.as_table_mut());
        if let Some(mut key) = table.and_then(|table| table.key_mut(&next)) {
            prepend_comments(key.leaf_decor_mut(), &comments);
        }
        return;
    }
    // Skips the headings of the removed table.
    let next = headings(root.as_item()).into_keys().find(|place| *place > after && !own.contains_key(place));
    match next {
        Some(position) => prepend_at_heading(root, position, &comments),
        None => {
            let new = format!("{comments}{}", root.trailing().as_str().unwrap_or_default());
            root.set_trailing(new);
        }
    }
}

fn table_at<'a>(root: &'a DocumentMut, path: &[&str]) -> Option<&'a Table> {
    path.iter().try_fold(root.as_table(), |table, key| table.get(key)?.as_table())
}

/// The headings of a table and of those within it, by their positions in the file: 1 and up. The root has none.
fn headings(item: &Item) -> BTreeMap<isize, &Decor> {
    let Some(table) = item.as_table() else { return BTreeMap::new() };
    let own = table.position().filter(|_| !table.is_implicit()).map(|position| (position, table.decor()));
    own.into_iter().chain(table.iter().flat_map(|(_, inner)| headings(inner))).collect()
}

/// Whether a table without keys has comments of its own: directly below its heading, with a blank line or the file's end after them, or
/// keys that are commented out. The parser attaches such comments to the next heading.
fn has_comments_below(root: &DocumentMut, path: &[&str]) -> bool {
    let own =
        table_at(root, path).filter(|table| !table.is_implicit() && table.iter().all(|(_, item)| item.is_table()));
    let Some(own) = own.and_then(Table::position) else { return false };
    let all = headings(root.as_item());
    let next = all.range(own + 1..).next();
    let below = next.map_or(Some(root.trailing()), |(_, decor)| decor.prefix()).and_then(RawString::as_str);
    let below = below.unwrap_or_default();
    let is_apart = next.is_none() || below.contains("\n\n") || below.contains("\n\r\n");
    // A key among Podman's runtimes is a list of paths. Other keys were there before the heading, and are of another table.
    let value = if path.last() == Some(&"runtimes") { "[" } else { "" };
    is_apart && below.trim_start_matches([' ', '\t']).starts_with('#') || has_commented_key(below, value)
}

/// Whether a text has a line such as `#key = 1` with this beginning of a value, before any heading that is commented out, too.
fn has_commented_key(text: &str, value: &str) -> bool {
    let is_key = |key: &str| key.chars().all(|c| c.is_ascii_alphanumeric() || "-_.\"'".contains(c)) && !key.is_empty();
    let comments = text.lines().filter_map(|line| line.trim_start().strip_prefix('#').map(str::trim));
    let mut own = comments.take_while(|comment| !comment.starts_with('['));
    let is_line = |(key, right): (&str, &str)| is_key(key.trim_end()) && right.trim_start().starts_with(value);
    own.any(|comment| comment.split_once('=').is_some_and(is_line))
}

fn prepend_at_heading(table: &mut Table, position: isize, comments: &str) {
    for inner in table.iter_mut().filter_map(|(_, item)| Item::as_table_mut(item)) {
        if inner.position() == Some(position) && !inner.is_implicit() {
            return prepend_comments(inner.decor_mut(), comments);
        }
        prepend_at_heading(inner, position, comments);
    }
}

fn prepend_comments(decor: &mut Decor, comments: &str) {
    let new = format!("{comments}{}", decor.prefix().and_then(RawString::as_str).unwrap_or_default());
    decor.set_prefix(new);
}
