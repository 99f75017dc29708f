//! Edits of TOML tables that keep comments and layout.

use super::request::Malformed;
use toml_edit::{Decor, DocumentMut, Item, RawString, Table, TableLike, Value, value};

/// Applies a change to a text. Unchanged parts stay byte for byte, and line endings stay.
pub(super) fn edit(
    text: &str,
    change: impl FnOnce(&mut DocumentMut) -> Result<(), Malformed>,
) -> Result<String, Malformed> {
    let mut document: DocumentMut = text.replace("\r\n", "\n").parse()?;
    let before = document.to_string();
    change(&mut document)?;
    let after = document.to_string();
    Ok(if after == before { text.to_string() } else { lines_as(text, after) })
}

/// The text with lines that end as another one's do.
pub(super) fn lines_as(like: &str, text: String) -> String {
    match like.contains("\r\n") {
        true => text.replace("\r\n", "\n").replace('\n', "\r\n"),
        false => text,
    }
}

/// None if no key is left.
pub(super) fn cleared(text: String) -> Option<String> {
    let empty = text.lines().all(|line| line.trim().is_empty());
    (!empty).then_some(text)
}

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

/// The table at a path that is there, written in whichever way.
pub(super) fn find<'a>(root: &'a Table, path: &[&str]) -> Option<&'a dyn TableLike> {
    path.iter().try_fold(root as &dyn TableLike, |at, key| at.get(key)?.as_table_like())
}

pub(super) fn text(root: &Table, path: &[&str], key: &str) -> Option<String> {
    find(root, path)?.get(key)?.as_str().map(str::to_string)
}

pub(super) fn within<'a>(root: &'a Table, path: &[&str]) -> impl Iterator<Item = (&'a str, &'a dyn TableLike)> {
    let entries = find(root, path).into_iter().flat_map(|table| table.iter());
    entries.filter_map(|(name, item)| Some((name, item.as_table_like()?)))
}

/// The keys and values alone: without comments, and without a place in the file that they are from.
pub(super) fn bare(table: &dyn TableLike) -> Table {
    let mut all = Table::new();
    for (key, item) in table.iter() {
        let item = match (item.as_table_like(), item.as_value()) {
            (Some(inner), _) => Item::Table(bare(inner)),
            (None, Some(value)) => Item::Value(plain(value)),
            // An array of tables: no engine has one among its runtimes.
            (None, None) => item.clone(),
        };
        all.insert(key, item);
    }
    all.set_implicit(!all.is_empty() && all.iter().all(|(_, item)| item.is_table()));
    all
}

/// A value alone: a list's elements have comments and lines of their own, too.
fn plain(value: &Value) -> Value {
    match value {
        Value::Array(list) => Value::Array(list.iter().map(plain).collect()),
        Value::InlineTable(table) => Value::InlineTable(table.iter().map(|(key, value)| (key, plain(value))).collect()),
        scalar => {
            let mut scalar = scalar.clone();
            scalar.decor_mut().clear();
            scalar
        }
    }
}

pub(super) fn lay(over: &Table, under: &mut Table) {
    for (key, item) in over {
        match (item.as_table(), under.get_mut(key).and_then(Item::as_table_mut)) {
            (Some(inner), Some(there)) => lay(inner, there),
            _ => drop(under.insert(key, item.clone())),
        }
    }
}

pub(super) fn complete(table: &mut Table, with: &Table) {
    for (key, item) in with {
        match (table.get_mut(key), item.as_table()) {
            (Some(there), Some(inner)) => {
                if let Some(there) = there.as_table_mut() {
                    complete(there, inner);
                }
            }
            (Some(_), None) => {}
            (None, _) => drop(table.insert(key, item.clone())),
        }
    }
    table.set_implicit(false);
}

/// Whether every key of one table has the same value in another.
pub(super) fn covered(by: &dyn TableLike, table: &dyn TableLike) -> bool {
    table.iter().all(|(key, item)| match (item.as_table_like(), by.get(key)) {
        (Some(inner), Some(there)) => there.as_table_like().is_some_and(|there| covered(there, inner)),
        (Some(inner), None) => inner.is_empty(),
        (None, there) => match (there.and_then(Item::as_value), item.as_value()) {
            (Some(there), Some(value)) => same(there, value),
            _ => false,
        },
    })
}

/// Whether two values are one, in whichever quotes and lines.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::String(one), Value::String(other)) => one.value() == other.value(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other.iter()).all(|(one, other)| same(one, other))
        }
        _ => one.to_string().trim() == other.to_string().trim(),
    }
}

/// Sets a key. Keeps its line if the value is the same, and its comments otherwise.
pub(super) fn set(table: &mut Table, key: &str, new_value: impl Into<Value>) {
    let mut new_value = new_value.into();
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(there) if same(there, &new_value) => {}
        Some(there) => {
            *new_value.decor_mut() = there.decor().clone();
            *there = new_value;
        }
        None => drop(table.insert(key, value(new_value))),
    }
}

/// Takes a key out of the table at a path. The comments above it stay.
pub(super) fn remove(root: &mut DocumentMut, path: &[&str], key: &str) {
    hand_on(root, path, key);
    if let Some(at) = find_mut(root, path) {
        at.remove(key);
    }
}

pub(super) fn forget(root: &mut DocumentMut, path: &[&str], key: &str, text: &str) {
    if self::text(root, path, key).as_deref() != Some(text) {
        return;
    }
    remove(root, path, key);
    let below = has_comments_below(root, path);
    let at = path.iter().try_fold(root.as_table_mut(), |at, key| at.get_mut(key)?.as_table_mut());
    if let Some(at) = at {
        let commented =
            below || at.decor().prefix().and_then(|prefix| prefix.as_str()).is_some_and(|text| text.contains('#'));
        at.set_implicit(!commented && at.iter().all(|(_, item)| item.is_table()));
    }
}

/// Takes out the tables of a path that hold nothing, the innermost first. A heading with comments below it stays: they may be keys that
/// the administrator has switched off.
pub(super) fn prune(root: &mut DocumentMut, path: &[&str]) {
    for depth in (0..path.len()).rev() {
        let at = &path[..=depth];
        if find(root, at).is_some_and(TableLike::is_empty) && !has_comments_below(root, at) {
            remove(root, &path[..depth], path[depth]);
        }
    }
}

/// The text in which a runtime is not the default one.
pub(super) fn not_default(of: &str, at: &[&str], key: &str, name: &str) -> Result<String, Malformed> {
    edit(of, |root| {
        forget(root, at, key, name);
        Ok(())
    })
}

/// The text without a runtime, which is not the default one either; none if no key is left.
pub(super) fn without(
    of: &str,
    runtimes: &[&str],
    at: &[&str],
    key: &str,
    name: &str,
) -> Result<Option<String>, Malformed> {
    let left = edit(of, |root| {
        remove(root, runtimes, name);
        forget(root, at, key, name);
        prune(root, runtimes);
        Ok(())
    })?;
    Ok(cleared(left))
}

fn find_mut<'a>(root: &'a mut Table, path: &[&str]) -> Option<&'a mut dyn TableLike> {
    path.iter().try_fold(root as &mut dyn TableLike, |at, key| at.get_mut(key)?.as_table_like_mut())
}

/// Moves the comments above a key of the table at a path to the next item of the file.
pub(super) fn hand_on(root: &mut DocumentMut, path: &[&str], key: &str) {
    // Between braces there is no comment.
    let Some(at) = table_at(root, path) else { return };
    let Some((name, item)) = at.get_key_value(key) else { return };
    let (behind, decor, next) = match item.as_table() {
        Some(table) => match first(table) {
            Some((place, decor)) => (place, decor, None),
            None => return,
        },
        None => {
            let next = at.iter().skip_while(|(other, _)| *other != key).skip(1).find(|(_, item)| item.is_value());
            let place = at.position().filter(|_| !path.is_empty()).unwrap_or(-1);
            (place, name.leaf_decor(), next.map(|(name, _)| name.to_string()))
        }
    };
    let above = decor.prefix().and_then(RawString::as_str).unwrap_or_default();
    // Without the blanks before the key itself.
    let comments = above[..above.rfind('\n').map_or(0, |end| end + 1)].trim_start_matches('\n').to_string();
    if !comments.contains('#') {
        return;
    }
    if let Some(next) = next {
        let at = path.iter().try_fold(root.as_table_mut(), |at, key| at.get_mut(key)?.as_table_mut());
        if let Some(mut key) = at.and_then(|at| at.key_mut(&next)) {
            put_above(key.leaf_decor_mut(), &comments);
        }
        return;
    }
    // What is being removed goes with its own headings.
    let mut all = Vec::new();
    headings(root, &mut all);
    let mut own = Vec::new();
    if let Some(item) = table_at(root, path).and_then(|at| at.get(key)?.as_table()) {
        own.extend(item.position());
        headings(item, &mut own);
    }
    let next = all.into_iter().filter(|place| *place > behind && !own.contains(place)).min();
    match next {
        Some(place) => give(root, place, &comments),
        None => {
            let new = format!("{comments}{}", root.trailing().as_str().unwrap_or_default());
            root.set_trailing(new);
        }
    }
}

fn table_at<'a>(root: &'a DocumentMut, path: &[&str]) -> Option<&'a Table> {
    path.iter().try_fold(root.as_table(), |at, key| at.get(key)?.as_table())
}

/// The first heading of a table, or of those within, with what is above it.
fn first(table: &Table) -> Option<(isize, &Decor)> {
    let own = table.position().filter(|_| !table.is_implicit()).map(|place| (place, table.decor()));
    let inner = table.iter().filter_map(|(_, item)| first(item.as_table()?));
    own.into_iter().chain(inner).min_by_key(|(place, _)| *place)
}

fn headings(table: &Table, all: &mut Vec<isize>) {
    for inner in table.iter().filter_map(|(_, item)| item.as_table()) {
        all.extend(inner.position().filter(|_| !inner.is_implicit()));
        headings(inner, all);
    }
}

/// Whether a comment stands right below the heading of a table without keys, and a blank line or the end below the comment. The parser gives
/// it to the next heading.
fn has_comments_below(root: &DocumentMut, path: &[&str]) -> bool {
    let own =
        table_at(root, path).filter(|table| !table.is_implicit() && table.iter().all(|(_, item)| item.is_table()));
    let Some(own) = own.and_then(Table::position) else { return false };
    let mut all = Vec::new();
    headings(root, &mut all);
    let below = match all.into_iter().filter(|place| *place > own).min() {
        Some(next) => text_above_heading(root, next).filter(|text| text.contains("\n\n") || text.contains("\n\r\n")),
        None => root.trailing().as_str(),
    };
    below.is_some_and(|text| text.trim_start_matches([' ', '\t']).starts_with('#'))
}

/// The text above the heading at a place.
fn text_above_heading(table: &Table, place: isize) -> Option<&str> {
    table.iter().filter_map(|(_, item)| item.as_table()).find_map(|inner| {
        match inner.position() == Some(place) && !inner.is_implicit() {
            true => inner.decor().prefix().and_then(RawString::as_str),
            false => text_above_heading(inner, place),
        }
    })
}

fn give(table: &mut Table, place: isize, comments: &str) {
    for inner in table.iter_mut().filter_map(|(_, item)| Item::as_table_mut(item)) {
        if inner.position() == Some(place) && !inner.is_implicit() {
            return put_above(inner.decor_mut(), comments);
        }
        give(inner, place, comments);
    }
}

fn put_above(decor: &mut Decor, comments: &str) {
    let new = format!("{comments}{}", decor.prefix().and_then(RawString::as_str).unwrap_or_default());
    decor.set_prefix(new);
}
