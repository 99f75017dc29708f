//! `mpu schema COMMAND --fields`: the fields of a command's JSON and what they mean, as text, read from its schema.

use super::schema;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The meaning of a field, and of each value that the schema explains.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub(crate) text: String,
    values: Vec<(String, String)>,
}

/// The meaning of each field by its path, such as `gpus[].memory.total`. A recursive type is described once.
pub(crate) fn meanings_of(command: &str) -> Option<BTreeMap<String, Meaning>> {
    let schema = schema::value_of(command)?;
    let mut fields = Fields { definitions: &schema["$defs"], meanings: BTreeMap::new(), inside: Vec::new() };
    fields.read("", &schema, "");
    Some(fields.meanings)
}

pub fn render(command: &str) -> Option<String> {
    let mut text = String::new();
    for (path, meaning) in meanings_of(command)? {
        let _ = writeln!(text, "{path}\n    {}", meaning.text);
        for (value, explanation) in meaning.values {
            let _ = writeln!(text, "      {value}: {explanation}");
        }
    }
    Some(text)
}

struct Fields<'a> {
    definitions: &'a Value,
    meanings: BTreeMap<String, Meaning>,
    /// The definitions that lead to the current one.
    inside: Vec<&'a str>,
}

impl<'a> Fields<'a> {
    /// Reads a schema and all below it. `meaning` is the field's own description, which takes precedence over its
    /// type's.
    fn read(&mut self, path: &str, schema: &'a Value, meaning: &'a str) {
        let meaning = if meaning.is_empty() { schema["description"].as_str().unwrap_or_default() } else { meaning };
        if let Some(name) = definition_of(schema) {
            if self.inside.contains(&name) {
                self.put(path, meaning);
            } else {
                self.inside.push(name);
                self.read(path, &self.definitions[name], meaning);
                self.inside.pop();
            }
            return;
        }
        self.put(path, meaning);
        let own = schema["description"].as_str().unwrap_or_default();
        if let (Some(value), Some(field), true) =
            (schema["const"].as_str(), self.meanings.get_mut(path), own != meaning)
        {
            field.values.push((value.to_string(), one_line(own)));
        }
        let properties = schema["properties"].as_object();
        // A variant with data is an object with one field, and its description is the field's.
        let variant = properties.filter(|fields| fields.len() == 1).map_or("", |_| own);
        for (name, field) in properties.into_iter().flatten() {
            let dot = if path.is_empty() { "" } else { "." };
            let meaning = field["description"].as_str().unwrap_or(variant);
            self.read(&format!("{path}{dot}{name}"), field, meaning);
        }
        if self.has_fields(&schema["items"]) {
            self.read(&format!("{path}[]"), &schema["items"], "");
        }
        for part in ["allOf", "anyOf", "oneOf"] {
            for alternative in schema[part].as_array().into_iter().flatten() {
                self.read(path, alternative, meaning);
            }
        }
        for alternative in ["then", "else"].into_iter().filter_map(|part| schema.get(part)) {
            self.read(path, alternative, meaning);
        }
    }

    fn has_fields(&self, schema: &Value) -> bool {
        let schema = definition_of(schema).map_or(schema, |name| &self.definitions[name]);
        schema.get("properties").or(schema.get("anyOf")).is_some()
    }

    fn put(&mut self, path: &str, meaning: &str) {
        if !path.is_empty() && !path.ends_with("[]") {
            let field = self.meanings.entry(path.to_string()).or_default();
            if field.text.is_empty() {
                field.text = one_line(meaning);
            }
        }
    }
}

/// The name of the definition that a schema refers to.
fn definition_of(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
