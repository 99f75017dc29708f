//! Docker's `daemon.json`.
//!
//! Source: Docker's reference of `dockerd`, "Daemon configuration file": `runtimes`, `default-runtime`,
//! `features.cdi`.

use super::request::{Malformed, Runtime, RuntimeRequest, Settings};
use super::tables::lines_as;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fmt;

pub(super) fn settings(of: &str) -> Result<Settings, Malformed> {
    let root = parse(of)?;
    let text = |value: &Value| value.as_str().map(str::to_string);
    let named = root.get("runtimes").and_then(Value::as_object).into_iter().flatten();
    // A runtime of a kind has its program among that kind's options.
    let program = |keys: &Value| keys.get("path").or_else(|| keys.pointer("/options/BinaryName")).and_then(text);
    let runtimes = named.map(|(name, keys)| (name.clone(), Runtime { program: program(keys), ..Runtime::default() }));
    Ok(Settings {
        section: false,
        default: root.get("default-runtime").and_then(text),
        runtimes: runtimes.collect(),
        cdi: root.get("features").and_then(|features| features.get("cdi")?.as_bool()),
    })
}

pub(super) fn with(text: &str, request: &RuntimeRequest) -> Result<String, Malformed> {
    let mut root = parse(text)?;
    let before = root.clone();
    let runtime = table_in(table(&mut root, "runtimes")?, &request.name, json!({"args": []}))?;
    // Docker does not start with a runtime that has a path and a kind: the path's kind is its own.
    OF_A_KIND.iter().for_each(|key| drop(runtime.shift_remove(*key)));
    runtime.insert("path".into(), json!(request.path));
    match request.default {
        Some(true) => drop(root.insert("default-runtime".into(), json!(request.name))),
        Some(false) => forget(&mut root, &request.name),
        None => {}
    }
    if request.cdi {
        table(&mut root, "features")?.insert("cdi".into(), json!(true));
    }
    Ok(if root == before { text.to_string() } else { print(&root, text) })
}

/// Keys that conflict with `path`. Source: moby's `setupRuntimes`.
const OF_A_KIND: [&str; 2] = ["runtimeType", "options"];

/// Whether Docker reserves a name for its own runtime. It does not start with another runtime of that name.
pub(super) fn is_kept(name: &str) -> bool {
    name == OWN
}

/// Docker's built-in default runtime. A reload ignores a removed default, but applies a changed one.
const OWN: &str = "runc";

/// The text with Docker's own runtime as the default one, where it was this one.
pub(super) fn not_default(text: &str, name: &str) -> Result<String, Malformed> {
    let mut root = parse(text)?;
    let before = root.clone();
    if root.get("default-runtime").and_then(Value::as_str) == Some(name) {
        root.insert("default-runtime".into(), json!(OWN));
    }
    Ok(if root == before { text.to_string() } else { print(&root, text) })
}

pub(super) fn without(text: &str, name: &str) -> Result<String, Malformed> {
    let mut root = parse(text)?;
    let before = root.clone();
    if root.get("runtimes").is_some_and(|runtimes| !runtimes.is_null()) {
        let runtimes = table(&mut root, "runtimes")?;
        runtimes.shift_remove(name);
        if runtimes.is_empty() {
            root.shift_remove("runtimes");
        }
    }
    forget(&mut root, name);
    // The file may have existed before, so an empty one stays. Docker treats it as none.
    Ok(if root == before { text.to_string() } else { print(&root, text) })
}

/// Key of the record: whether the file existed.
const THERE: &str = "there";

/// Key of the record: the file's `features`, if they are about to change.
const FEATURES: &str = "features";
const CDI: &str = "cdi";

/// A record of the file's runtimes and default runtime; of `features.cdi`, too, if that is about to be set.
pub(super) fn before(text: &str, names: &[&str], cdi: bool) -> Result<String, Malformed> {
    let root = parse(text)?;
    let known = root.get("runtimes").and_then(Value::as_object);
    let runtimes = names.iter().filter_map(|name| Some((name.to_string(), known?.get(*name)?.clone())));
    let mut all = Map::from_iter([("runtimes".to_string(), Value::Object(runtimes.collect()))]);
    all.insert(THERE.into(), json!(!text.trim().is_empty()));
    all.extend(root.get("default-runtime").map(|default| ("default-runtime".to_string(), default.clone())));
    if cdi {
        all.insert(FEATURES.into(), root.get(FEATURES).cloned().unwrap_or(Value::Null));
    }
    Ok(print(&all, ""))
}

/// The text with the recorded values restored; none if it is empty then.
pub(super) fn restored(text: &str, names: &[&str], before: &str) -> Result<Option<String>, Malformed> {
    let (mut root, old) = (parse(text)?, parse(before)?);
    let was = root.clone();
    for name in names {
        match old.get("runtimes").and_then(|known| known.get(name)) {
            Some(keys) => drop(table(&mut root, "runtimes")?.insert(name.to_string(), keys.clone())),
            None => {
                if let Some(known) = root.get_mut("runtimes").and_then(Value::as_object_mut) {
                    known.shift_remove(*name);
                }
            }
        }
    }
    if root.get("runtimes").and_then(Value::as_object).is_some_and(Map::is_empty) {
        root.shift_remove("runtimes");
    }
    // Another one is a later choice, and not ours.
    if root.get("default-runtime").and_then(Value::as_str).is_some_and(|default| names.contains(&default)) {
        match old.get("default-runtime") {
            Some(default) => drop(root.insert("default-runtime".into(), default.clone())),
            None => drop(root.shift_remove("default-runtime")),
        }
    }
    if let Some(features) = old.get(FEATURES) {
        restore_cdi(&mut root, features);
    }
    Ok(match root == was {
        true => Some(text.to_string()),
        false if root.is_empty() && old.get(THERE) != Some(&json!(true)) => None,
        false => Some(print(&root, text)),
    })
}

/// Puts `features.cdi` back, unless it has been turned off since.
fn restore_cdi(root: &mut Map<String, Value>, before: &Value) {
    let Some(features) = root.get_mut(FEATURES).and_then(Value::as_object_mut) else { return };
    if features.get(CDI) != Some(&json!(true)) {
        return;
    }
    match before.get(CDI) {
        Some(cdi) => drop(features.insert(CDI.into(), cdi.clone())),
        None => drop(features.shift_remove(CDI)),
    }
    if features.is_empty() && before.is_null() {
        root.shift_remove(FEATURES);
    }
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
    once(text)?;
    match serde_json::from_str(text)? {
        Value::Object(root) => Ok(root),
        _ => Err(Malformed::NoTable("the whole file".into())),
    }
}

/// Refuses a duplicate key: the parsed tree would lose the first one.
fn once(text: &str) -> Result<(), Malformed> {
    match serde_json::from_str::<Node>(text)?.twice() {
        Some(key) => Err(Malformed::Twice(key.clone())),
        None => Ok(()),
    }
}

/// A value with every key as it stands.
#[derive(Deserialize)]
#[serde(untagged)]
enum Node {
    Table(Entries),
    List(Vec<Node>),
    Other(IgnoredAny),
}

struct Entries(Vec<(String, Node)>);

impl Node {
    fn twice(&self) -> Option<&String> {
        match self {
            Node::Table(Entries(all)) => {
                let mut seen = BTreeSet::new();
                all.iter().find_map(|(key, node)| if seen.insert(key) { node.twice() } else { Some(key) })
            }
            Node::List(list) => list.iter().find_map(Node::twice),
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

fn table<'a>(root: &'a mut Map<String, Value>, key: &str) -> Result<&'a mut Map<String, Value>, Malformed> {
    table_in(root, key, json!({}))
}

/// The table of a key. Without one it is `fresh`; `null` is the same as no key, as for Docker, which is written in Go.
fn table_in<'a>(
    root: &'a mut Map<String, Value>,
    key: &str,
    fresh: Value,
) -> Result<&'a mut Map<String, Value>, Malformed> {
    let value = root.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = fresh;
    }
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
    lines_as(like, String::from_utf8_lossy(&bytes).into_owned())
}
