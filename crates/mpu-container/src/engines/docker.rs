//! Docker's `daemon.json`.
//!
//! Source: Docker's reference of `dockerd`, "Daemon configuration file": `runtimes`, `default-runtime`,
//! `features.cdi`.

use super::request::{FormatError, Runtime, RuntimeRequest, Settings};
use super::tables::with_line_endings_of;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fmt;

pub(super) fn settings(text: &str) -> Result<Settings, FormatError> {
    let root = parse(text)?;
    let string = |value: &Value| value.as_str().map(str::to_string);
    let named = root.get("runtimes").and_then(Value::as_object).into_iter().flatten();
    // A runtime with a `runtimeType` has its program in that type's options.
    let program = |keys: &Value| keys.get("path").or_else(|| keys.pointer("/options/BinaryName")).and_then(string);
    let runtimes = named.map(|(name, keys)| (name.clone(), Runtime { program: program(keys), ..Runtime::default() }));
    Ok(Settings {
        section: false,
        default: root.get("default-runtime").and_then(string),
        runtimes: runtimes.collect(),
        cdi: root.get("features").and_then(|features| features.get("cdi")?.as_bool()),
    })
}

pub(super) fn add_runtime(text: &str, request: &RuntimeRequest) -> Result<String, FormatError> {
    let mut root = parse(text)?;
    let before = root.clone();
    let runtime = table_or_insert(table(&mut root, "runtimes")?, &request.name, json!({"args": []}))?;
    // Docker does not start if a runtime has both a path and a type.
    TYPED_RUNTIME.iter().for_each(|key| drop(runtime.shift_remove(*key)));
    runtime.insert("path".into(), json!(request.path));
    match request.default {
        Some(true) => drop(root.insert("default-runtime".into(), json!(request.name))),
        Some(false) => remove_default(&mut root, &request.name),
        None => {}
    }
    if request.cdi {
        table(&mut root, "features")?.insert("cdi".into(), json!(true));
    }
    Ok(if root == before { text.to_string() } else { to_text(&root, text) })
}

/// Keys that conflict with `path`. Source: moby's `setupRuntimes`.
const TYPED_RUNTIME: [&str; 2] = ["runtimeType", "options"];

/// Whether Docker reserves a name for its built-in runtime. Docker does not start if the file defines a runtime of that name.
pub(super) fn is_reserved(name: &str) -> bool {
    name == BUILT_IN
}

/// Docker's built-in default runtime. It is written explicitly: a reload ignores a removed default, but applies a changed one.
const BUILT_IN: &str = "runc";

/// If this runtime is the default, makes Docker's built-in runtime the default.
pub(super) fn unset_default(text: &str, name: &str) -> Result<String, FormatError> {
    let mut root = parse(text)?;
    let before = root.clone();
    if root.get("default-runtime").and_then(Value::as_str) == Some(name) {
        root.insert("default-runtime".into(), json!(BUILT_IN));
    }
    Ok(if root == before { text.to_string() } else { to_text(&root, text) })
}

pub(super) fn remove_runtime(text: &str, name: &str) -> Result<String, FormatError> {
    let mut root = parse(text)?;
    let before = root.clone();
    if root.get("runtimes").is_some_and(|runtimes| !runtimes.is_null()) {
        let runtimes = table(&mut root, "runtimes")?;
        runtimes.shift_remove(name);
        if runtimes.is_empty() {
            root.shift_remove("runtimes");
        }
    }
    remove_default(&mut root, name);
    // An empty file stays: it may have existed before. Docker treats it like a missing one.
    Ok(if root == before { text.to_string() } else { to_text(&root, text) })
}

/// Key of the record: whether the file existed.
const EXISTED: &str = "there";

/// Key of the record: the file's `features`, if they are about to change.
const FEATURES: &str = "features";
const CDI: &str = "cdi";

/// Records the file's runtimes and default runtime; also `features.cdi` if that is about to be set.
pub(super) fn record(text: &str, names: &[&str], cdi: bool) -> Result<String, FormatError> {
    let root = parse(text)?;
    let runtimes = root.get("runtimes").and_then(Value::as_object);
    let runtimes = names.iter().filter_map(|name| Some((name.to_string(), runtimes?.get(*name)?.clone())));
    let mut all = Map::from_iter([("runtimes".to_string(), Value::Object(runtimes.collect()))]);
    all.insert(EXISTED.into(), json!(!text.trim().is_empty()));
    all.extend(root.get("default-runtime").map(|default| ("default-runtime".to_string(), default.clone())));
    if cdi {
        all.insert(FEATURES.into(), root.get(FEATURES).cloned().unwrap_or(Value::Null));
    }
    Ok(to_text(&all, ""))
}

/// Restores the recorded values. Returns none if the file did not exist and nothing is left in it.
pub(super) fn restore(text: &str, names: &[&str], old: &Map<String, Value>) -> Result<Option<String>, FormatError> {
    let mut root = parse(text)?;
    let before = root.clone();
    for name in names {
        match old.get("runtimes").and_then(|runtimes| runtimes.get(name)) {
            Some(keys) => drop(table(&mut root, "runtimes")?.insert(name.to_string(), keys.clone())),
            None => {
                if let Some(runtimes) = root.get_mut("runtimes").and_then(Value::as_object_mut) {
                    runtimes.shift_remove(*name);
                }
            }
        }
    }
    if root.get("runtimes").and_then(Value::as_object).is_some_and(Map::is_empty) {
        root.shift_remove("runtimes");
    }
    // Another default was chosen later, so it stays.
    if root.get("default-runtime").and_then(Value::as_str).is_some_and(|default| names.contains(&default)) {
        match old.get("default-runtime") {
            Some(default) => drop(root.insert("default-runtime".into(), default.clone())),
            None => drop(root.shift_remove("default-runtime")),
        }
    }
    if let Some(features) = old.get(FEATURES) {
        restore_cdi(&mut root, features);
    }
    Ok(match root == before {
        true => Some(text.to_string()),
        false if root.is_empty() && old.get(EXISTED) != Some(&json!(true)) => None,
        false => Some(to_text(&root, text)),
    })
}

/// Restores `features.cdi`, unless it has been turned off since.
fn restore_cdi(root: &mut Map<String, Value>, old: &Value) {
    let Some(features) = root.get_mut(FEATURES).and_then(Value::as_object_mut) else { return };
    if features.get(CDI) != Some(&json!(true)) {
        return;
    }
    match old.get(CDI) {
        Some(cdi) => drop(features.insert(CDI.into(), cdi.clone())),
        None => drop(features.shift_remove(CDI)),
    }
    if features.is_empty() && old.is_null() {
        root.shift_remove(FEATURES);
    }
}

fn remove_default(root: &mut Map<String, Value>, name: &str) {
    if root.get("default-runtime").and_then(Value::as_str) == Some(name) {
        root.shift_remove("default-runtime");
    }
}

/// Parses the file or the record. An empty text is an empty table.
pub(super) fn parse(text: &str) -> Result<Map<String, Value>, FormatError> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    refuse_duplicate_keys(text)?;
    match serde_json::from_str(text)? {
        Value::Object(root) => Ok(root),
        _ => Err(FormatError::NoTable("the whole file".into())),
    }
}

/// Refuses a duplicate key: `serde_json` would keep only its last value.
fn refuse_duplicate_keys(text: &str) -> Result<(), FormatError> {
    match serde_json::from_str::<Node>(text)?.duplicate_key() {
        Some(key) => Err(FormatError::DuplicateKey(key.clone())),
        None => Ok(()),
    }
}

/// A JSON value that keeps duplicate keys.
#[derive(Deserialize)]
#[serde(untagged)]
enum Node {
    Table(Entries),
    List(Vec<Node>),
    Other(IgnoredAny),
}

struct Entries(Vec<(String, Node)>);

impl Node {
    fn duplicate_key(&self) -> Option<&String> {
        match self {
            Node::Table(Entries(all)) => {
                let mut seen = BTreeSet::new();
                all.iter().find_map(|(key, node)| if seen.insert(key) { node.duplicate_key() } else { Some(key) })
            }
            Node::List(list) => list.iter().find_map(Node::duplicate_key),
            Node::Other(_) => None,
        }
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Entries, D::Error> {
        from.deserialize_map(Entries(Vec::new()))
    }
}

impl<'de> Visitor<'de> for Entries {
    type Value = Entries;
    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a table")
    }
    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Entries, A::Error> {
        while let Some(entry) = map.next_entry()? {
            self.0.push(entry);
        }
        Ok(self)
    }
}

fn table<'a>(root: &'a mut Map<String, Value>, key: &str) -> Result<&'a mut Map<String, Value>, FormatError> {
    table_or_insert(root, key, json!({}))
}

/// The table of a key. Inserts `default_value` if the key is missing or `null`: Docker, as a Go program, treats both alike.
fn table_or_insert<'a>(
    root: &'a mut Map<String, Value>,
    key: &str,
    default_value: Value,
) -> Result<&'a mut Map<String, Value>, FormatError> {
    let value = root.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = default_value;
    }
    value.as_object_mut().ok_or_else(|| FormatError::NoTable(format!("'{key}'")))
}

/// Prints with the indentation of `like`; without one, with four spaces as in Docker's documentation.
fn to_text(root: &Map<String, Value>, like: &str) -> String {
    let indent = like.lines().find(|line| line.starts_with([' ', '\t'])).map_or("    ", |line| {
        let end = line.len() - line.trim_start().len();
        &line[..end]
    });
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
    // Cannot fail: the values were parsed from JSON or are strings.
    let _ = serde::Serialize::serialize(root, &mut serializer);
    bytes.push(b'\n');
    with_line_endings_of(like, String::from_utf8_lossy(&bytes).into_owned())
}
