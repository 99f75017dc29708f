//! Validates the JSON output of `mpu` against the schema that the same `mpu` prints, here on a real kernel.

use anyhow::Context;
use serde_json::Value;

use crate::command::{Output, run_ok};
use crate::story::Fault;

/// Parses the output, and fails unless it is valid by its command's schema.
pub fn valid_answer(done: &Output) -> Result<Value, Fault> {
    let read =
        |text: &str| serde_json::from_str::<Value>(text).with_context(|| format!("no JSON: {text} {}", done.err));
    let answer = read(&done.out)?;
    let command = answer["command"].as_str().with_context(|| format!("no command in {answer}"))?;
    check(command, &answer, &read(&run_ok(&["mpu", "schema", command])?)?)?;
    Ok(answer)
}

#[cfg(feature = "schemas")]
fn check(command: &str, answer: &Value, schema: &Value) -> Result<(), Fault> {
    let schema = jsonschema::draft202012::new(schema).map_err(|e| e.to_owned()).context("no JSON Schema")?;
    let Some(error) = schema.iter_errors(answer).next() else { return Ok(()) };
    let at = error.instance_path();
    Err(Fault::Wrong(format!("{at} is not as the schema of mpu {command} says: {error}: {answer}")))
}

#[cfg(not(feature = "schemas"))]
fn check(command: &str, _: &Value, _: &Value) -> Result<(), Fault> {
    Err(Fault::Wrong(format!("this guest cannot check the answer of mpu {command}")))
}
