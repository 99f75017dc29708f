//! The commands: each takes a host and options, does its work, and gives a report.
//!
//! Owns what the reports have in common: how they become JSON (one schema, `docs/cli.md`) and text. Parsing arguments
//! is `cli`'s, doing things is the engines'.

pub mod agent;
pub mod config;
pub mod doctor;
pub mod down;
pub mod install;
pub mod metrics;
pub mod probe;
pub mod ps;
pub mod schema;
pub mod status;
pub mod up;

use crate::driver::{self, Driver, Flavour};
use crate::engine::module::holders::{self, Held};
use crate::engine::module::load;
use crate::engine::module::state::{Argument, Asks, Phase, State};
use crate::engine::notify;
use crate::exit::Exit;
use crate::explain::{causes, Explain};
use crate::host::Host;
use crate::proof::Proof;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;

/// The version of the JSON output. Fields may be added within a version; none changes its meaning or goes.
pub const SCHEMA: u32 = 1;

/// What a command has to say.
pub trait Report: Serialize + JsonSchema {
    /// The command's name; of a report that several commands give, the first one's.
    const COMMAND: &'static str;
    /// The exit code that it leads to.
    fn exit(&self) -> Exit;
    /// The text for a person.
    fn text(&self, style: Style) -> String;
}

/// What every JSON answer has around its report.
#[derive(Serialize, JsonSchema)]
struct Envelope<'a, T: Serialize> {
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

/// What there is instead of a report when a command failed.
#[derive(Serialize, JsonSchema)]
struct Failure {
    /// Why.
    error: ErrorView,
}

/// An error as JSON has it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ErrorView {
    /// A stable word for the cause, such as `no_headers`.
    code: &'static str,
    /// What went wrong.
    message: String,
    /// What lies behind it, nearest first.
    causes: Vec<String>,
    /// What to do about it.
    fix: String,
}

/// A report as one line of JSON.
pub fn json<R: Report>(report: &R) -> String {
    json_of(R::COMMAND, report)
}

/// A report as one line of JSON, of that one of its commands that was given.
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
    // Maps with string keys, strings, numbers: there is nothing in a report that JSON cannot hold.
    serde_json::to_string(value)
        .unwrap_or_else(|e| format!("{{\"schema\":{SCHEMA},\"ok\":false,\"exit\":1,\"error\":\"{e}\"}}"))
}

/// How text is written: with colours on a terminal, without elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// No escape codes.
    Plain,
    /// Colours.
    Colour,
}

impl Style {
    fn paint(self, code: &str, text: &str) -> String {
        match self {
            Style::Plain => text.to_string(),
            Style::Colour => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
    /// All is well.
    pub fn good(self, text: &str) -> String {
        self.paint("32", text)
    }
    /// Worth a look.
    pub fn warn(self, text: &str) -> String {
        self.paint("33", text)
    }
    /// Wrong.
    pub fn bad(self, text: &str) -> String {
        self.paint("31", text)
    }
    /// A name of something.
    pub fn name(self, text: &str) -> String {
        self.paint("1", text)
    }
}

/// Lines of a name and a value, the values below each other.
struct Lines {
    style: Style,
    text: String,
}

impl Lines {
    fn new(style: Style) -> Lines {
        Lines { style, text: String::new() }
    }

    fn put(&mut self, name: &str, value: impl AsRef<str>) -> &mut Lines {
        let padded = format!("{name:<12}");
        let _ = writeln!(self.text, "{} {}", self.style.name(&padded), value.as_ref());
        self
    }

    fn plain(&mut self, line: impl AsRef<str>) -> &mut Lines {
        let _ = writeln!(self.text, "{}", line.as_ref());
        self
    }
}

/// The driver, in reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DriverView {
    /// As the driver writes it.
    pub version: String,
    /// Open or proprietary.
    pub flavour: Flavour,
    /// Whether this MPU was checked against its branch.
    pub known: bool,
    /// How its release lies outside what was checked; null if it does not.
    pub unknown_because: Option<String>,
    /// The era of its native behaviour, if known.
    pub era: Option<u8>,
    /// What a container sees on it without MPU.
    pub natively: Option<&'static str>,
}

impl From<&Driver> for DriverView {
    fn from(driver: &Driver) -> DriverView {
        let era = driver.known().map(|release| driver::native(release).era);
        DriverView {
            version: driver.version.clone(),
            flavour: driver.flavour,
            known: era.is_some(),
            unknown_because: driver.unknown_because(),
            era,
            natively: era.map(driver::in_words),
        }
    }
}

impl DriverView {
    fn line(&self) -> String {
        let flavour = match self.flavour {
            Flavour::Open => " (open)",
            Flavour::Proprietary => " (proprietary)",
            Flavour::Unknown => "",
        };
        match (self.natively, &self.unknown_because) {
            (Some(natively), _) => format!("{}{flavour}; {natively}", self.version),
            (None, why) => {
                let why = why.as_deref().unwrap_or("a release that this MPU does not know");
                format!(
                    "{}{flavour}; {why}: MPU translates what it finds there, and `mpu probe` tells whether that \
                    is right",
                    self.version
                )
            }
        }
    }
}

/// The module's state, in reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StateView {
    /// `armed`, `placed`, `waiting`, `refused`, `retired` or `stuck`.
    pub state: String,
    /// The module's version.
    pub version: String,
    /// Functions of the driver that are redirected.
    pub hooks: Vec<String>,
    /// Which copy of a control's argument decides; null while nothing is placed, and of a module before format 2.
    pub argument: Option<ArgumentView>,
    /// Calls of containers that came to the redirect since it was placed; null of a module before format 2.
    pub entered: Option<u64>,
    /// Translations since the redirects were placed; null of a module before format 2.
    pub translated: Option<u64>,
    /// Callers inside a redirected function.
    pub inside: u64,
    /// Those of them that stay there, the longest first, sixteen at most.
    pub holders: Vec<HolderView>,
    /// Callers, ever, whose task died inside the driver.
    pub orphans: u64,
    /// The redirect that could not be placed.
    pub refused: Option<Refusal>,
}

/// Which copy of a control's argument decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ArgumentView {
    /// `driver`: its own copy, which no caller can change. `claimed`: the caller's memory, as the probe in the driver
    /// could not be placed.
    #[schemars(extend("enum" = ["driver", "claimed"]))]
    pub source: &'static str,
    /// Why the probe could not be placed.
    pub errno: Option<i32>,
}

/// A caller that stays inside the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct HolderView {
    /// Its process's number on the host.
    pub pid: u32,
    /// Its thread's.
    pub thread: u32,
    /// The program's name; null when the process is gone.
    pub command: Option<String>,
    /// Its container's name, or the beginning of its id; null if it is in none.
    pub container: Option<String>,
    /// The control's number, as `0x20800a0f`; null of another ioctl, and before the driver has read it.
    pub control: Option<String>,
    /// The control's name, where it is one that MPU translates.
    pub control_name: Option<&'static str>,
    /// How long it has been inside.
    pub milliseconds: u64,
    /// All of it in words.
    pub words: String,
}

impl From<&Held> for HolderView {
    fn from(held: &Held) -> HolderView {
        let control = match held.holder.control {
            Asks::Control(cmd) => Some(format!("0x{:08x}", cmd.0)),
            Asks::NotKnown | Asks::Other => None,
        };
        HolderView {
            pid: held.holder.pid.get(),
            thread: held.holder.thread.get(),
            command: held.command.clone(),
            container: held.container.clone(),
            control,
            control_name: holders::name_of(held.holder.control),
            milliseconds: held.holder.millis,
            words: held.to_string(),
        }
    }
}

/// Whether the module was seen to translate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ProofView {
    /// `seen`, `not_asked`, `exempt`, `not_translated` or `not_entered`.
    #[schemars(extend("enum" = ["seen", "not_asked", "exempt", "not_translated", "not_entered"]))]
    pub result: &'static str,
    /// The same as a sentence.
    pub because: String,
    #[serde(skip)]
    is_fault: bool,
}

impl From<&Proof> for ProofView {
    fn from(proof: &Proof) -> ProofView {
        ProofView { result: proof.name(), because: proof.in_words(), is_fault: proof.is_fault() }
    }
}

impl ProofView {
    fn line(&self, style: Style) -> String {
        match self.is_fault {
            true => style.bad(&self.because),
            false => self.because.clone(),
        }
    }
}

/// A redirect that could not be placed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Refusal {
    /// The driver's function.
    pub symbol: String,
    /// The kernel's answer.
    pub errno: i32,
}

impl StateView {
    fn of(host: &Host, state: &State) -> StateView {
        let refused = match &state.phase {
            Phase::Refused { symbol, errno } => Some(Refusal { symbol: symbol.clone(), errno: *errno }),
            _ => None,
        };
        let argument = state.argument.map(|argument| match argument {
            Argument::Driver => ArgumentView { source: "driver", errno: None },
            Argument::Claimed { errno } => ArgumentView { source: "claimed", errno: Some(errno) },
        });
        StateView {
            state: state.phase.word().to_string(),
            version: state.version.clone(),
            hooks: state.hooks.clone(),
            argument,
            entered: state.entered,
            translated: state.translated,
            inside: state.inside,
            holders: holders::look(host, state).iter().map(HolderView::from).collect(),
            orphans: state.orphans,
            refused,
        }
    }
}

impl StateView {
    /// What decides about a control, if anything does now.
    fn argument_line(&self, style: Style) -> Option<String> {
        let argument = self.argument.as_ref()?;
        Some(match argument.errno {
            None => "the driver's own copy of a call's argument decides, which no caller can change".to_string(),
            Some(errno) => format!(
                "{}: MPU must believe the caller's memory, as the probe in the driver could not be placed ({}): a \
                    hostile container that changes \
                 it at the right moment can see what the driver shows by itself",
                style.warn("claimed"),
                std::io::Error::from_raw_os_error(errno)
            ),
        })
    }

    /// Whether MPU must believe the caller's memory.
    fn has_to_believe(&self) -> bool {
        self.argument.as_ref().is_some_and(|argument| argument.errno.is_some())
    }

    /// Whether the redirects stand.
    fn is_placed(&self) -> bool {
        matches!(self.state.as_str(), "armed" | "placed")
    }

    /// The word for the state with its meaning.
    fn line(&self, style: Style) -> String {
        match (self.state.as_str(), &self.refused) {
            ("armed", _) => format!("{}: callers in containers are translated", style.good("armed")),
            ("placed", _) => {
                format!("{}: the redirects stand; no translation was seen yet", style.warn("placed"))
            }
            ("stuck", _) => format!(
                "{}: the kernel did not take a redirect out; containers are seen right or not, and only a reboot mends it",
                style.bad("stuck")
            ),
            ("waiting", _) => {
                format!("{}: the NVIDIA driver is not loaded; MPU arms itself when it comes", style.warn("waiting"))
            }
            ("refused", Some(refusal)) => {
                let why = load::not_placed(&refusal.symbol, refusal.errno);
                format!("{}: {why}; nothing is redirected", style.bad("refused"))
            }
            ("retired", _) => {
                format!("{}: the redirects are taken out, and nothing is translated; `mpu up` loads it anew",
                    style.bad("retired"))
            }
            (other, _) => format!("{}: a state that this mpu does not know", style.warn(other)),
        }
    }
}

/// The notify engine's state, in reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NotifyView {
    /// `armed` or `retired`; `restarting` while a supervisor that has died has no successor yet.
    pub state: String,
    /// The supervisor's version.
    pub version: String,
    /// Its process; 0 while there is none.
    pub pid: u32,
    /// Containers whose callers it answers.
    pub containers: Vec<String>,
    /// Their listeners: one for each container and each `exec` into one.
    pub listeners: usize,
    /// What it spent on each container since it began.
    pub costs: Vec<notify::client::Cost>,
    /// How much it may spend on one, in percent of one processor, on average over a second; 0 is no limit, null of a version without.
    pub cpu_percent: Option<u32>,
    /// Calls that are being translated now.
    pub inside: u64,
    /// How numbers are looked up: `kernel` (Linux 6.11 and later) or `proc`.
    pub lookup: String,
    /// Calls without PIDs that went on to the driver.
    pub passed_on: u64,
    /// How often a supervisor took the place of one that had died.
    pub restarts: u64,
    /// The same in the last hour, up to 8.
    pub restarts_last_hour: u64,
}

impl From<&notify::client::State> for NotifyView {
    fn from(state: &notify::client::State) -> NotifyView {
        NotifyView {
            state: state.state.clone(),
            version: state.version.clone(),
            pid: state.pid.get(),
            containers: state.containers.clone(),
            listeners: state.listeners,
            costs: state.costs.clone(),
            cpu_percent: state.cpu_percent,
            inside: state.inside,
            lookup: state.lookup.clone(),
            passed_on: state.passed_on,
            restarts: state.restarts,
            restarts_last_hour: state.restarts_last_hour,
        }
    }
}

/// Containers that a text lists with their processor time.
const MOST_COSTS: usize = 8;

impl NotifyView {
    /// What there is to say while a keeper that lives has no supervisor.
    fn restarting() -> NotifyView {
        let version = env!("CARGO_PKG_VERSION").to_string();
        NotifyView { state: "restarting".to_string(), version, ..NotifyView::default() }
    }

    /// The word for the state with its meaning.
    fn line(&self, style: Style) -> String {
        match self.state.as_str() {
            "armed" => format!(
                "{}: containers that are started through the wrapper from now on are translated; {}",
                style.good("armed"),
                self.supervised()
            ),
            "retired" => {
                format!(
                    "{}: takes no new container, and lets every call pass untouched; {}",
                    style.warn("retired"),
                    self.supervised()
                )
            }
            "restarting" => {
                format!("{}: the supervisor has died, calls wait for the next one", style.warn("restarting"))
            }
            other => format!("{}: a state that this mpu does not know", style.warn(other)),
        }
    }

    /// Processor time by container, the most first.
    fn cost_lines(&self, lines: &mut Lines, style: Style) {
        let mut costs: Vec<_> = self.costs.iter().collect();
        costs.sort_by_key(|of| std::cmp::Reverse(of.cpu_microseconds));
        let seconds = |micros: u64| micros as f64 / 1e6;
        for (at, of) in costs.iter().take(MOST_COSTS).enumerate() {
            let paused = match (of.held_back_microseconds, self.cpu_percent) {
                (0, _) | (_, None) => String::new(),
                (paused, Some(percent)) => {
                    let held = style.warn(&format!("held back for {:.3} s", seconds(paused)));
                    format!(": {held}, as it may have {percent} % of a processor")
                }
            };
            let name = if at == 0 { "cpu" } else { "" };
            lines.put(name, format!("{:>10.3} s  {}{paused}", seconds(of.cpu_microseconds), of.container));
        }
        if let Some(more) = costs.len().checked_sub(MOST_COSTS).filter(|more| *more > 0) {
            lines.put("", format!("and {more} containers with less; --json has them"));
        }
    }

    fn supervised(&self) -> String {
        let (containers, listeners) = (self.containers.len(), self.listeners);
        let again = match (self.restarts, self.restarts_last_hour) {
            (0, _) => String::new(),
            (all, recent) => {
                let at_least = if recent >= notify::MOST_COUNTED { " or more" } else { "" };
                format!("; started again after a crash {all} times, {recent}{at_least} in the last hour")
            }
        };
        format!("{containers} now, by {listeners} listeners{again}")
    }
}

#[cfg(test)]
#[path = "../../tests/schema/mod.rs"]
mod answers;

#[cfg(test)]
pub(crate) mod documented {
    //! Holds `docs/cli.md` to the JSON that commands print, both ways, and that JSON to `docs/schema`.

    use super::answers;
    use serde_json::{json, Map, Value};
    use std::collections::BTreeSet;

    const PAGE: &str = include_str!("../../../../docs/cli.md");

    /// The page's table below `heading` lists the fields of this JSON, and no others. The command's schema takes it, would take it with
    /// a field more, and would not with a field less or another type.
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

    /// The schema of this answer tells from it each answer that differs by a field below this object or array of it.
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

    /// The names of what lies in an object or an array, but for objects whose keys are data.
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
            Value::Object(map) if path != "translated" => {
                map.iter().for_each(|(key, value)| walk(&at(key), value, out))
            }
            Value::Array(rows) if rows.iter().any(Value::is_object) => {
                rows.iter().for_each(|row| walk(&format!("{path}[]"), row, out));
            }
            _ => {
                out.insert(path.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::module::checks::Unfit;

    #[test]
    fn the_json_of_a_failure_is_documented() {
        let error = Unfit::NoRelease { source: std::io::Error::other("gone") };
        let json = json_of_error("up", &error);
        documented::check("A failure", &json);
        let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(value["error"]["causes"], serde_json::json!(["gone"]));
    }

    #[test]
    fn colours_are_for_terminals() {
        assert_eq!(Style::Plain.bad("no"), "no");
        assert_eq!(Style::Colour.bad("no"), "\x1b[31mno\x1b[0m");
    }
}
