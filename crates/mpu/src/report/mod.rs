//! Common parts of reports: JSON (one schema, `docs/cli.md`) and text.

#[cfg(test)]
pub(crate) mod documented;
#[cfg(test)]
#[path = "../../tests/schema/mod.rs"]
mod schema_check;

use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, causes};
use mpu_os::text::is_control;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;

/// The version of the JSON output. Within it, fields may be added; none changes its meaning or is removed.
pub const SCHEMA: u32 = 1;

/// The result of a command.
pub trait Report: Serialize + JsonSchema {
    /// The exit code.
    fn exit(&self) -> Exit {
        Exit::Ok
    }
    /// The text for a person.
    fn text(&self, style: Style) -> String;
}

/// The envelope of every JSON answer.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Envelope<'a, T: Serialize> {
    /// The version of the output: fields may be added within it, none changes its meaning or goes.
    #[schemars(extend("const" = SCHEMA))]
    schema: u32,
    /// The command that was given.
    command: &'a str,
    /// Whether the exit code is 0.
    ok: bool,
    /// The exit code.
    #[schemars(extend("enum" = Exit::ALL.map(Exit::code)))]
    exit: u8,
    #[serde(flatten)]
    report: T,
}

/// The envelope of a failure.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Failure {
    /// Why.
    error: ErrorView,
}

/// An error in JSON.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ErrorView {
    /// A stable word for the cause, such as `no_headers`.
    code: &'static str,
    /// What went wrong.
    message: String,
    /// Its causes, nearest first.
    causes: Vec<String>,
    /// What to do about it.
    fix: String,
}

/// A command's report as one line of JSON.
pub fn json_of<R: Report>(command: &str, report: &R) -> String {
    let exit = report.exit();
    to_line(&Envelope { schema: SCHEMA, command, ok: exit == Exit::Ok, exit: exit.code(), report })
}

/// A failure as one line of JSON.
pub fn json_of_error(command: &str, error: &dyn Explain) -> String {
    let causes = causes(error).map(|cause| cause.to_string()).collect();
    let view = ErrorView { code: error.code(), message: error.to_string(), causes, fix: error.fix() };
    let report = Failure { error: view };
    to_line(&Envelope { schema: SCHEMA, command, ok: false, exit: error.exit().code(), report })
}

fn to_line(value: &impl Serialize) -> String {
    // A report has only maps with string keys, strings and numbers.
    let line = serde_json::to_string(value)
        .unwrap_or_else(|e| format!("{{\"schema\":{SCHEMA},\"ok\":false,\"exit\":1,\"error\":\"{e}\"}}"));
    if !line.contains(is_control) {
        return line;
    }
    // JSON escapes only ASCII's control characters, but a terminal also obeys others. They occur only in strings.
    let escaped = |c| if is_control(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    line.chars().map(escaped).collect()
}

/// Whether text has colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    Colour,
}

impl Style {
    fn paint(self, code: &str, text: &str) -> String {
        match self {
            Style::Plain => text.to_string(),
            Style::Colour => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
    pub fn good(self, text: &str) -> String {
        self.paint("32", text)
    }
    pub fn warn(self, text: &str) -> String {
        self.paint("33", text)
    }
    pub fn bad(self, text: &str) -> String {
        self.paint("31", text)
    }
    pub fn name(self, text: &str) -> String {
        self.paint("1", text)
    }
}

/// Lines of a name and a value, in two columns.
pub(crate) struct Lines {
    style: Style,
    pub(crate) text: String,
}

impl Lines {
    pub(crate) fn new(style: Style) -> Lines {
        Lines { style, text: String::new() }
    }

    pub(crate) fn put(&mut self, name: &str, value: impl AsRef<str>) -> &mut Lines {
        let padded = format!("{name:<12}");
        let _ = writeln!(self.text, "{} {}", self.style.name(&padded), value.as_ref());
        self
    }

    pub(crate) fn plain(&mut self, line: impl AsRef<str>) -> &mut Lines {
        let _ = writeln!(self.text, "{}", line.as_ref());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_engine::module::checks::Unfit;

    #[test]
    fn json_of_failure_is_documented() {
        let error = Unfit::NoRelease { source: std::io::Error::other("gone") };
        let json = json_of_error("up", &error);
        documented::check(&json);
        let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(value["error"]["causes"], serde_json::json!(["gone"]));
    }

    #[test]
    fn colours_are_for_terminals() {
        assert_eq!(Style::Plain.bad("no"), "no");
        assert_eq!(Style::Colour.bad("no"), "\x1b[31mno\x1b[0m");
    }
}
