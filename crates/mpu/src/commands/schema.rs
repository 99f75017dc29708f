//! `mpu schema`: the JSON Schema (draft 2020-12) of each command's output, derived from the reports' types. Unknown
//! fields are valid, because a later version may add some.

use super::{ANSWERS, Answers};
use crate::report::{Envelope, Failure, Report, SCHEMA};
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::Value;

pub(super) fn subschema<R: Report>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<R>()
}

/// The envelope alone.
#[derive(Serialize, JsonSchema)]
struct Nothing {}

/// The commands that answer in JSON, in the order of `mpu --help`.
pub fn commands() -> impl Iterator<Item = &'static str> {
    ANSWERS.iter().map(|(name, _)| *name)
}

pub fn list() -> String {
    commands().map(|name| name.to_string() + "\n").collect()
}

/// The schema of a command's `--json` output, as text. None if there is no such command, or if it prints text only.
pub fn render(command: &str) -> Option<String> {
    // Alternate formatting is indented.
    Some(format!("{:#}\n", value_of(command)?))
}

pub(super) fn value_of(command: &str) -> Option<Value> {
    ANSWERS.iter().find(|(name, _)| *name == command).map(|answers| schema(answers).into())
}

fn schema((name, reports): &Answers) -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut generator = settings.with_transform(RecursiveTransform(open)).into_generator();
    let mut schema = Envelope::<Nothing>::json_schema(&mut generator);
    let failure = generator.subschema_for::<Failure>();
    let report = match reports(&mut generator).as_slice() {
        [] => json_schema!(false),
        [report] => report.clone(),
        several => json_schema!({ "anyOf": several }),
    };
    if let Some(command) = schema.pointer_mut("/properties/command").and_then(Value::as_object_mut) {
        command.insert("const".to_string(), (*name).into());
    }
    schema.insert("$schema".to_string(), SchemaSettings::draft2020_12().meta_schema.into());
    schema.insert("title".to_string(), format!("mpu {name} --json, version {SCHEMA}").into());
    let what = format!("A line that `mpu {name} --json` prints on standard output. Further fields may be added.");
    schema.insert("description".to_string(), what.into());
    let rules = json_schema!({ "allOf": [
        {
            "if": { "properties": { "exit": { "const": 0 } } },
            "then": { "properties": { "ok": { "const": true } } },
            "else": { "properties": { "ok": { "const": false } } },
        },
        {
            "if": { "required": ["error"] },
            "then": { "allOf": [failure, { "properties": { "ok": { "const": false } } }] },
            "else": report,
        },
    ]});
    if let Value::Object(rules) = Value::from(rules) {
        schema.ensure_object().extend(rules);
    }
    let definitions = generator.take_definitions(true);
    schema.insert("$defs".to_string(), Value::Object(definitions));
    schema
}

/// Permits unknown fields in the objects of an enumeration, such as `{"pod": "…"}`. The derive macro forbids them.
fn open(schema: &mut Schema) {
    if schema.get("additionalProperties") == Some(&Value::Bool(false)) {
        schema.remove("additionalProperties");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    /// Commands without a report. Only their failures are JSON.
    const IN_TEXT_ONLY: &[&str] = &["run", "completions", "man", "schema"];

    #[test]
    fn every_command_is_here_or_in_text_only() {
        let visible = Cli::command();
        let visible: Vec<&str> = visible.get_subcommands().filter(|c| !c.is_hide_set()).map(|c| c.get_name()).collect();
        let (silent, here): (Vec<&str>, Vec<&str>) = visible.iter().partition(|name| IN_TEXT_ONLY.contains(name));
        assert_eq!((here, silent.len()), (commands().collect(), IN_TEXT_ONLY.len()));
        assert!(IN_TEXT_ONLY.iter().all(|name| render(name).is_none()));
    }
}
