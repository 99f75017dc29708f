//! Validates the commands' JSON against the schemas of `mpu schema`.
//!
//! Shared by unit tests and integration tests of this crate.

use jsonschema::Validator;
use serde_json::Value;

/// The schema of the command that gave this answer.
pub fn validator(answer: &Value) -> Validator {
    let command = answer["command"].as_str().unwrap_or_else(|| panic!("{answer} names no command"));
    let text = mpu::commands::schema::render(command).unwrap_or_else(|| panic!("mpu schema has no {command}"));
    let schema: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{command}: {e}"));
    jsonschema::draft202012::new(&schema).unwrap_or_else(|e| panic!("{command}: {e}"))
}

/// Checks each line of the output against its command's schema.
pub fn check(output: &str) {
    for line in output.lines() {
        let answer: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        let wrong: Vec<String> =
            validator(&answer).iter_errors(&answer).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(wrong.is_empty(), "{line}\n{}", wrong.join("\n"));
    }
}
