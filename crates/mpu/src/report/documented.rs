//! Compares the JSON of commands with its schema, and with the fields that `mpu schema --fields` explains.

use super::schema_check;
use crate::commands::fields;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Checks JSON against its command's schema. The schema must explain each field, accept the JSON and an added field,
/// and reject a missing field or another type.
pub fn check(json: &str) {
    let value: Value = serde_json::from_str(json).expect("JSON");
    schema_check::check(json);
    check_field_changes(&value, "");
    let command = value["command"].as_str().expect("every answer has its command");
    let explained = fields::meanings_of(command).expect("a command that answers in JSON");
    let mut printed = BTreeSet::new();
    collect_paths("", &value, &mut printed);
    for path in printed {
        // A recursive type is explained at its first occurrence.
        let path = path.replace(".outer.", ".");
        let meaning = explained.get(&path).map(|meaning| meaning.text.as_str()).unwrap_or_default();
        assert!(!meaning.is_empty(), "mpu {command} --json, {path}");
    }
}

/// Checks that the schema accepts an added field below this object or array, and rejects a missing one or another type.
fn check_field_changes(whole: &Value, at: &str) {
    let schema = schema_check::validator(whole);
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
    for key in keys_below(whole.pointer(at)) {
        check_field_changes(whole, &format!("{at}/{key}"));
    }
}

/// The names of the members of an object or array, except of objects whose keys are data.
fn keys_below(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::Object(map)) => map.keys().filter(|key| *key != "translated").cloned().collect(),
        Some(Value::Array(rows)) => (0..rows.len()).map(|at| at.to_string()).collect(),
        _ => Vec::new(),
    }
}

/// The paths of all leaves. An object whose keys are data is one leaf.
fn collect_paths(path: &str, value: &Value, out: &mut BTreeSet<String>) {
    let at = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
    match value {
        Value::Object(map) if path != "translated" => {
            map.iter().for_each(|(key, value)| collect_paths(&at(key), value, out))
        }
        Value::Array(rows) if rows.iter().any(Value::is_object) => {
            rows.iter().for_each(|row| collect_paths(&format!("{path}[]"), row, out));
        }
        _ => {
            out.insert(path.to_string());
        }
    }
}
