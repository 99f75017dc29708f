//! The comments above what is taken out of TOML.
//!
//! A comment above a key or a heading may be of more than that: of the whole file, or of all that follows. So it goes to
//! what is next, and to the end of the file where nothing is.

use toml_edit::{Decor, DocumentMut, Item, RawString, Table};

/// Hands the comments above a key of the table at a path on to what is next in the file.
pub(super) fn hand_on(root: &mut DocumentMut, path: &[&str], key: &str) {
    // Between braces there is no comment.
    let Some(at) = table(root, path) else { return };
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
    if let Some(item) = table(root, path).and_then(|at| at.get(key)?.as_table()) {
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

fn table<'a>(root: &'a DocumentMut, path: &[&str]) -> Option<&'a Table> {
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
