//! `mpu status`: reports what is loaded, since when, and its counters.

use super::{NotifyView, ProofView, argument_line, state_line};
use crate::agent::note::Note;
use crate::driver_view::DriverView;
use crate::nri::presence::{self, Plugin, Standing};
use crate::report::{Lines, Report, Style};
use mpu_engine::Engine;
use mpu_engine::module::foreign::{self, Foreign};
use mpu_engine::module::plan::Origin;
use mpu_engine::module::proof::{self, ProbeFn};
use mpu_engine::module::record::Record;
use mpu_engine::module::sources::PassedOver;
use mpu_engine::module::state::{self, Phase, State};
use mpu_host::driver::Driver;
use mpu_host::exit::Exit;
use mpu_host::explain::Explained;
use mpu_host::host::Host;
use mpu_host::time;
use mpu_notify::{client, supervisor::keeper};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The state.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Status {
    /// Whether an engine is up.
    pub up: bool,
    /// Which engine. If both are up, the one that translates, and the module first.
    pub engine: Option<Engine>,
    /// What the loaded module says.
    pub module_state: Option<State>,
    /// Whether the module was seen to translate; null while no redirect stands, and of a module before format 2.
    pub proof: Option<ProofView>,
    /// Another project's module that is loaded under one of our names, and its files; null if there is none.
    pub foreign_module: Option<Foreign>,
    /// Whether function tracing is on (`kernel.ftrace_enabled`); while it is off, the module's redirects do nothing.
    pub function_tracing: bool,
    /// The state of the notify engine.
    pub notify_state: Option<NotifyView>,
    /// Seconds since 1970 at which `mpu up` loaded the module, or the supervisor began; null if something else loaded it.
    pub since: Option<u64>,
    /// The module's file, as `mpu up` loaded it; null if something else did.
    pub module_file: Option<PathBuf>,
    /// Where that file comes from.
    pub module_origin: Option<Origin>,
    /// Module files that were there, and that `mpu up` could not use.
    pub passed_over: Vec<PassedOver>,
    /// What the agent (`mpu agent`) that manages the engine here is doing; null without one.
    pub agent: Option<String>,
    /// Plugins of container engines (`mpu nri`) that run on this host, in a pod or not.
    pub nri: Vec<Plugin>,
    /// The driver.
    pub driver: Option<DriverView>,
    /// The rules of the policy that the engine has, as `mpu config show` compiles them.
    pub policy: Vec<String>,
    /// Answers translated since the engine came up, by control.
    pub translated: BTreeMap<String, u64>,
    /// Calls not translated in the usual way, by reason.
    pub passed: Vec<Passed>,
}

/// One reason and how often it applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Passed {
    /// Why calls were not translated in the usual way.
    pub reason: String,
    /// How often.
    pub count: u64,
    /// What happened and what the caller got.
    pub explanation: Option<&'static str>,
}

/// How long the driver may take when `status` tests a translation.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);

/// Reads the state. If the redirects are placed and nothing was translated yet, tests a translation. The module is
/// `armed` afterwards, so this happens once per placement.
pub fn status(host: &Host, probe: ProbeFn) -> Result<Status, Explained> {
    let (module, proof) = match state::read(host)? {
        None => (None, None),
        Some(state) => {
            let (state, proof) = proof::prove(host, state, probe, PROBE_TIMEOUT)?;
            (Some(state), proof)
        }
    };
    let supervisor = client::state(host)?;
    let only_supervisor_works = supervisor.as_ref().is_some_and(|supervisor| supervisor.state == Phase::Armed)
        && !module.as_ref().is_some_and(|module| module.phase.is_placed() || module.phase == Phase::Waiting);
    let engine = match (&module, &supervisor) {
        (Some(_), _) if !only_supervisor_works => Some(Engine::Module),
        (None, None) => None,
        _ => Some(Engine::Notify),
    };
    let mut status = Status {
        up: engine.is_some(),
        engine,
        since: None,
        module_state: module.map(|state| state.with_holders(host)),
        proof: proof.as_ref().map(ProofView::from),
        foreign_module: Some(foreign::find(host)).filter(|foreign| !foreign.loaded.is_empty()),
        function_tracing: !host.ftrace_disabled(),
        notify_state: supervisor
            .as_ref()
            .map(NotifyView::from)
            .or_else(|| keeper::is_alive(host).then(NotifyView::restarting)),
        agent: Note::of_manager(host).map(|note| note.words),
        nri: presence::plugins(host),
        driver: Driver::loaded(host).as_ref().map(DriverView::from),
        module_file: None,
        module_origin: None,
        passed_over: Vec::new(),
        policy: Vec::new(),
        translated: BTreeMap::new(),
        passed: Vec::new(),
    };
    match (engine, supervisor) {
        (Some(Engine::Module), _) => {
            let counters = state::read_counters(host)?.unwrap_or_default();
            if let Some(record) = Record::read(host) {
                status.since = Some(record.since);
                status.module_file = Some(record.module);
                status.module_origin = record.origin;
                status.passed_over = record.passed_over;
            }
            // A module without the file is an older one, which has no policy.
            status.policy = state::read_policy(host).ok().flatten().unwrap_or_default();
            status.translated = counters.translated.into_iter().collect();
            status.passed = counters.passed.into_iter().map(Passed::from).collect();
        }
        (Some(Engine::Notify), Some(supervisor)) => {
            status.since = Some(supervisor.since);
            status.policy = supervisor.policy;
            status.translated = supervisor.translated;
            status.passed = supervisor.passed.into_iter().map(Passed::from).collect();
        }
        _ => {}
    }
    Ok(status)
}

impl From<(String, u64)> for Passed {
    fn from((reason, count): (String, u64)) -> Passed {
        let explanation = state::explain_reason(&reason);
        Passed { reason, count, explanation }
    }
}

impl Report for Status {
    fn exit(&self) -> Exit {
        let module = self.module_state.as_ref().map(|state| &state.phase);
        let supervisor = self.notify_state.as_ref().map(|state| &state.state);
        match (self.engine, module, supervisor) {
            (Some(Engine::Module), Some(Phase::Refused | Phase::Stuck), _) => Exit::Failed,
            (Some(Engine::Module), Some(Phase::Armed | Phase::Placed), _) if !self.function_tracing => Exit::Failed,
            (Some(Engine::Module), ..) if self.proof.as_ref().is_some_and(|proof| proof.is_fault) => Exit::Failed,
            (Some(Engine::Module), Some(Phase::Retired), _) => Exit::NotReady,
            (Some(Engine::Module), Some(Phase::Waiting), _) if self.driver.is_some() => Exit::Failed,
            (Some(Engine::Module), ..) => Exit::Ok,
            // It accepts no new container.
            (Some(Engine::Notify), _, Some(Phase::Retired)) => Exit::NotReady,
            (Some(Engine::Notify), ..) => Exit::Ok,
            (None, ..) => Exit::NotReady,
        }
    }

    fn text(&self, style: Style) -> String {
        let mut lines = Lines::new(style);
        if let Some(foreign) = &self.foreign_module {
            lines.plain(format!("{}; to remove it:\n  {}", style.warn(&foreign.in_words()), foreign.fix()));
        }
        let driver = self.driver.as_ref().map_or("none is loaded".to_string(), DriverView::line);
        if let (None, Some(supervisor)) = (self.engine, &self.notify_state) {
            lines.put("state", supervisor.line(style));
            lines.put("driver", driver);
            return lines.text;
        }
        if self.engine.is_none() {
            let not_up = style.warn("MPU is not up");
            lines.plain(match &self.agent {
                Some(words) => format!("{not_up}, and the node's agent manages it: {words}"),
                None => format!("{not_up}: start it with `mpu up`"),
            });
            lines.put("driver", driver);
            return lines.text;
        }
        match (self.engine, &self.module_state, &self.notify_state) {
            (Some(Engine::Module), Some(state), supervisor) => {
                let lost = state.phase == Phase::Waiting && self.driver.is_some();
                let why = "a driver is loaded, but the module does not find its functions";
                lines.put(
                    "state",
                    if lost { format!("{}: {why}", style.bad("waiting")) } else { state_line(state, style) },
                );
                if let Some(proof) = self.proof.as_ref().filter(|_| state.phase == Phase::Placed) {
                    lines.put("proof", proof.line(style));
                }
                if state.phase.is_placed() && !self.function_tracing {
                    let off = style.bad("function tracing is off (kernel.ftrace_enabled = 0)");
                    lines.put("", format!("{off}: the redirects do nothing until `sysctl kernel.ftrace_enabled=1`"));
                }
                lines.put("engine", format!("module, MPU {}", state.version));
                lines.put(
                    "since",
                    self.since.map_or("unknown: it was not `mpu up` that loaded it".to_string(), since_line),
                );
                if let Some(path) = &self.module_file {
                    let origin = self.module_origin.map_or(String::new(), |origin| format!(" ({})", origin.in_words()));
                    lines.put("file", format!("{}{origin}", path.display()));
                }
                for over in &self.passed_over {
                    lines.put("passed over", over.to_string());
                }
                lines.put("driver", driver);
                lines
                    .put("redirects", if state.hooks.is_empty() { "none".to_string() } else { state.hooks.join(", ") });
                if let Some(line) = argument_line(state, style) {
                    lines.put("argument", line);
                }
                if let Some(supervisor) = supervisor {
                    lines.put("notify", format!("up, too: {}", supervisor.line(style)));
                }
            }
            (_, module, Some(state)) => {
                lines.put("state", state.line(style));
                lines.put("engine", format!("notify, MPU {}, process {}", state.version, state.pid));
                lines.put("since", self.since.map_or("unknown".to_string(), since_line));
                lines.put("driver", driver);
                if let Some(module) = module {
                    lines.put("module", format!("up, too: {}", state_line(module, style)));
                }
                let how = if state.lookup == "kernel" { "by the kernel" } else { "in /proc" };
                lines.put("lookup", format!("numbers are looked up {how}"));
                lines.put("passed on", format!("{} calls without PIDs", state.passed_on));
                state.cost_lines(&mut lines, style);
            }
            _ => {}
        }
        self.plugins(&mut lines, style);
        if !self.policy.is_empty() {
            lines.put("policy", format!("{} rules; `mpu config show` has them", self.policy.len()));
        }
        let inside = match self.engine {
            Some(Engine::Module) => self.module_state.as_ref().map(|state| state.inside),
            _ => self.notify_state.as_ref().map(|state| state.inside),
        };
        lines.put("inside", format!("{} callers now", inside.unwrap_or_default()));
        if let Some(state) = self.module_state.as_ref().filter(|_| self.engine == Some(Engine::Module)) {
            for holder in &state.holders {
                lines.put("", &holder.words);
            }
            if state.orphans > 0 {
                let died = style.warn(&format!("{} callers died inside the driver", state.orphans));
                lines.put(
                    "orphans",
                    format!("{died} (a crash of the driver: `dmesg`); they hold nothing and do no harm"),
                );
            }
        }
        self.counters(&mut lines, style);
        lines.text
    }
}

impl Status {
    fn plugins(&self, lines: &mut Lines, style: Style) {
        for (i, plugin) in self.nri.iter().enumerate() {
            let less = match plugin.standing {
                Standing::Useless => "which lets no plugin set a seccomp profile: it serves no container",
                Standing::Partly => "which sends no profiles: it serves containers without one",
                Standing::Serves | Standing::Waits => "",
            };
            let words = match plugin.standing {
                Standing::Serves => plugin.words.clone(),
                Standing::Waits => style.warn(&plugin.words),
                _ => format!("{}, {}", plugin.words, style.warn(less)),
            };
            lines.put(if i == 0 { "nri" } else { "" }, words);
        }
    }

    fn counters(&self, lines: &mut Lines, style: Style) {
        let used: Vec<_> = self.translated.iter().filter(|(_, count)| **count > 0).collect();
        if used.is_empty() {
            lines.put("translated", "nothing yet");
        }
        for (i, (control, count)) in used.iter().enumerate() {
            lines.put(if i == 0 { "translated" } else { "" }, format!("{count:>10}  {control}"));
        }
        let passed: Vec<&Passed> = self.passed.iter().filter(|passed| passed.count > 0).collect();
        if passed.is_empty() {
            lines.put("passed", "nothing");
        }
        for (i, row) in passed.iter().enumerate() {
            let name = if i == 0 { "passed" } else { "" };
            let why = row.explanation.unwrap_or("a reason that this mpu does not know");
            lines.put(name, format!("{:>10}  {}: {why}", row.count, style.warn(&row.reason)));
        }
    }
}

fn since_line(since: u64) -> String {
    let ago = time::now().saturating_sub(since);
    let ago = match ago {
        0..=119 => format!("{ago} s"),
        120..=7199 => format!("{} min", ago / 60),
        7200..=172_799 => format!("{} h", ago / 3600),
        _ => format!("{} days", ago / 86400),
    };
    format!("{} ({ago} ago)", time::in_words(since))
}

#[cfg(test)]
mod tests;
