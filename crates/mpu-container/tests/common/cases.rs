//! Reads cases from TOML files. A file has a table `usual` with defaults for all cases, one table per case (its key is the name), and
//! `[[rows]]`: a template with placeholders `$1`, `$2`, … and a list `cases` of rows, each with a name (`$0`) and the values.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// The cases of a file by their names.
pub fn read(file: &str, text: &str) -> BTreeMap<String, Map<String, Value>> {
    let mut document: Map<String, Value> =
        toml_edit::de::from_str(text).unwrap_or_else(|error| panic!("{file}: {error}"));
    let usual = document.remove("usual").unwrap_or_default();
    let mut cases = BTreeMap::new();
    let mut add = |name: &str, table: &Value| {
        let tables = [&usual, table].into_iter().filter_map(Value::as_object).flatten();
        let case = tables.map(|(key, value)| (key.clone(), value.clone())).collect();
        assert!(cases.insert(name.to_owned(), case).is_none(), "{file}: {name} is there twice");
    };
    for mut table in document.remove("rows").into_iter().flat_map(list) {
        let rows = table.as_object_mut().and_then(|table| table.remove("cases")).unwrap_or_default();
        for row in list(rows).into_iter().map(list) {
            let (name, case) = (row[0].as_str().expect("a name"), fill(&table, &row));
            let text = case.to_string();
            let is_placeholder = |pair: &[u8]| pair[0] == b'$' && pair[1].is_ascii_digit();
            assert!(
                !text.as_bytes().windows(2).any(is_placeholder),
                "{file}: {name} is a row with too few values: {text}"
            );
            add(name, &case);
        }
    }
    document.iter().for_each(|(name, table)| add(name, table));
    cases
}

/// A value, which may be a list of such values.
pub fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) => values,
        value => vec![value],
    }
}

/// Fills a row's values into a template. A string that is only a placeholder may become any value.
fn fill(template: &Value, row: &[Value]) -> Value {
    let placeholders = || row.iter().enumerate().map(|(at, value)| (format!("${at}"), value));
    let text = |text: &str| {
        let fill = |text: String, (placeholder, value): (String, &Value)| {
            text.replace(&placeholder, value.as_str().filter(|_| text.contains(&placeholder)).unwrap_or(&placeholder))
        };
        placeholders().fold(text.to_owned(), fill)
    };
    match template {
        Value::String(template) => placeholders()
            .find(|(placeholder, _)| placeholder == template)
            .map_or_else(|| text(template).into(), |(_, value)| value.clone()),
        Value::Array(values) => values.iter().map(|value| fill(value, row)).collect(),
        Value::Object(map) => map.iter().map(|(key, value)| (text(key), fill(value, row))).collect(),
        other => other.clone(),
    }
}

/// RFC 7386.
pub fn merge(to: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else { return *to = patch.clone() };
    if !to.is_object() {
        *to = json!({});
    }
    let to = to.as_object_mut().expect("an object");
    for (key, value) in patch {
        if value.is_null() {
            to.remove(key);
        } else {
            merge(to.entry(key).or_insert(Value::Null), value);
        }
    }
}
