//! Compares the JSON of commands with its schema, and with the fields that `mpu schema --fields` explains.

use super::answers;
use crate::commands::fields;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The command's schema explains each field of this JSON. It accepts the JSON, accepts an added field, and rejects a missing field or
/// another type.
pub fn check(json: &str) {
    let value: Value = serde_json::from_str(json).expect("JSON");
    answers::check(json);
    holds_fields(&value, "");
    let command = value["command"].as_str().expect("every answer has its command");
    let explained = fields::of(command).expect("a command that answers in JSON");
    let mut printed = BTreeSet::new();
    walk("", &value, &mut printed);
    for path in printed {
        // A type inside itself is explained where it is first.
        let path = path.replace(".outer.", ".");
        let meaning = explained.get(&path).map(|meaning| meaning.text.as_str()).unwrap_or_default();
        assert!(!meaning.is_empty(), "mpu {command} --json, {path}");
    }
}

/// The schema rejects each answer that differs by a field below this object or array.
fn holds_fields(whole: &Value, at: &str) {
    let schema = answers::validator(whole);
    let changed = |change: &dyn Fn(&mut Map<String, Value>)| {
        let mut other = whole.clone();
        other.pointer_mut(at).and_then(Value::as_object_mut).map(change).expect("an object");
        schema.is_valid(&other)
    };
    if let Some(Value::Object(fields)) = whole.pointer(at) {
        assert!(
            changed(&|map| drop(map.insert("a_later_field".to_string(), json!(1)))),
            "{at} may have no fields more"
        );
        for (key, value) in fields {
            assert!(!changed(&|map| drop(map.remove(key))), "{at} without {key}");
            let wrong = if value.is_object() { json!("a word") } else { json!({ "a": "map" }) };
            assert!(!changed(&|map| drop(map.insert(key.clone(), wrong.clone()))), "{at} with another {key}");
        }
    }
    for key in below(whole.pointer(at)) {
        holds_fields(whole, &format!("{at}/{key}"));
    }
}

/// The names of the members of an object or array, except of objects whose keys are data.
fn below(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::Object(map)) => map.keys().filter(|key| *key != "translated").cloned().collect(),
        Some(Value::Array(rows)) => (0..rows.len()).map(|at| at.to_string()).collect(),
        _ => Vec::new(),
    }
}

/// The paths of all leaves. An object whose keys are data is one leaf.
fn walk(path: &str, value: &Value, out: &mut BTreeSet<String>) {
    let at = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
    match value {
        Value::Object(map) if path != "translated" => map.iter().for_each(|(key, value)| walk(&at(key), value, out)),
        Value::Array(rows) if rows.iter().any(Value::is_object) => {
            rows.iter().for_each(|row| walk(&format!("{path}[]"), row, out));
        }
        _ => {
            out.insert(path.to_string());
        }
    }
}
