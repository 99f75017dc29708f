//! Docker's `daemon.json`.
//!
//! Outside truth: Docker's reference of `dockerd`, "Daemon configuration file": `runtimes`, `default-runtime`,
//! `features.cdi`.

use super::wish::{Malformed, Runtime, Says, Wish};
use serde_json::{json, Map, Value};

pub(super) fn says(of: &str) -> Result<Says, Malformed> {
    let root = parse(of)?;
    let text = |value: &Value| value.as_str().map(str::to_string);
    let named = root.get("runtimes").and_then(Value::as_object).into_iter().flatten();
    let runtimes = named
        .map(|(name, keys)| (name.clone(), Runtime { program: keys.get("path").and_then(text), ..Runtime::default() }));
    Ok(Says {
        section: false,
        default: root.get("default-runtime").and_then(text),
        runtimes: runtimes.collect(),
        cdi: root.get("features").and_then(|features| features.get("cdi")?.as_bool()),
    })
}

pub(super) fn with(text: &str, wish: &Wish) -> Result<String, Malformed> {
    let mut root = parse(text)?;
    let before = root.clone();
    let runtime = table(&mut root, "runtimes")?.entry(&wish.name).or_insert_with(|| json!({"args": []}));
    runtime
        .as_object_mut()
        .ok_or_else(|| Malformed::NoTable(wish.name.clone()))?
        .insert("path".into(), json!(wish.path));
    match wish.default {
        Some(true) => drop(root.insert("default-runtime".into(), json!(wish.name))),
        Some(false) => forget(&mut root, &wish.name),
        None => {}
    }
    if wish.cdi {
        table(&mut root, "features")?.insert("cdi".into(), json!(true));
    }
    Ok(if root == before { text.to_string() } else { print(&root, text) })
}

/// The text without this runtime as the default one.
pub(super) fn not_default(text: &str, name: &str) -> Result<String, Malformed> {
    let mut root = parse(text)?;
    let before = root.clone();
    forget(&mut root, name);
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
    forget(&mut root, name);
    Ok(match root == before {
        true => Some(text.to_string()),
        false if root.is_empty() => None,
        false => Some(print(&root, text)),
    })
}

fn forget(root: &mut Map<String, Value>, name: &str) {
    if root.get("default-runtime").and_then(Value::as_str) == Some(name) {
        root.shift_remove("default-runtime");
    }
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
