//! Compares `docs/cli.md` with the JSON of commands, in both directions, and that JSON with its schema.

use super::answers;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../../../docs/cli.md");

/// The page's table below `heading` lists exactly the fields of this JSON. The command's schema accepts it, accepts an added field, and
/// rejects a missing field or another type.
pub fn check(heading: &str, json: &str) {
    let value: Value = serde_json::from_str(json).expect("JSON");
    answers::check(json);
    holds_fields(&value, "");
    let mut printed = BTreeSet::new();
    walk("", &value, &mut printed);
    for common in ["schema", "command", "ok", "exit"] {
        assert!(printed.remove(common), "{json} lacks {common}");
    }
    let section = PAGE.split_once(&format!("\n### {heading}\n")).map(|(_, rest)| rest);
    let section = section.unwrap_or_else(|| panic!("docs/cli.md has no section {heading}"));
    let section = section.split("\n#").next().unwrap_or_default();
    let listed: BTreeSet<String> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(f, _)| f.to_string()))
        .collect();
    assert_eq!(listed, printed, "docs/cli.md, {heading}");
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
