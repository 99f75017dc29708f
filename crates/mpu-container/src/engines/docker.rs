//! Docker's `daemon.json`.
//!
//! Outside truth: Docker's reference of `dockerd`, "Daemon configuration file": `runtimes`, `default-runtime`,
//! `features.cdi`.

use super::wish::{Malformed, Wish};
use serde_json::{json, Map, Value};

pub(super) fn with(text: &str, wish: &Wish) -> Result<String, Malformed> {
    let mut root = parse(text)?;
    let before = root.clone();
    table(&mut root, "runtimes")?.insert(wish.name.clone(), json!({"args": [], "path": wish.path}));
    if wish.default {
        root.insert("default-runtime".into(), json!(wish.name));
    }
    if wish.cdi {
        table(&mut root, "features")?.insert("cdi".into(), json!(true));
    }
    Ok(if root == before { text.to_string() } else { print(&root, text) })
}

pub(super) fn without(text: &str, name: &str) -> Result<Option<String>, Malformed> {
    let mut root = parse(text)?;
    let before = root.clone();
    if root.contains_key("runtimes") {
        let runtimes = table(&mut root, "runtimes")?;
        runtimes.shift_remove(name);
        if runtimes.is_empty() {
            root.shift_remove("runtimes");
        }
    }
    if root.get("default-runtime").and_then(Value::as_str) == Some(name) {
        root.shift_remove("default-runtime");
    }
    Ok(match root == before {
        true => Some(text.to_string()),
        false if root.is_empty() => None,
        false => Some(print(&root, text)),
    })
}

fn parse(text: &str) -> Result<Map<String, Value>, Malformed> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_str(text)? {
        Value::Object(root) => Ok(root),
        _ => Err(Malformed::NoTable("the whole file".into())),
    }
}

fn table<'a>(root: &'a mut Map<String, Value>, key: &str) -> Result<&'a mut Map<String, Value>, Malformed> {
    let value = root.entry(key).or_insert_with(|| json!({}));
    value.as_object_mut().ok_or_else(|| Malformed::NoTable(format!("'{key}'")))
}

/// As the file was indented; by four spaces, as Docker's documentation has it, where it was not.
fn print(root: &Map<String, Value>, like: &str) -> String {
    let indent = like.lines().find(|line| line.starts_with([' ', '\t'])).map_or("    ", |line| {
        let end = line.len() - line.trim_start().len();
        &line[..end]
    });
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
    // A tree that was read, or made of strings: there is nothing in it that JSON cannot hold.
    let _ = serde::Serialize::serialize(root, &mut serializer);
    bytes.push(b'\n');
    String::from_utf8_lossy(&bytes).into_owned()
}
