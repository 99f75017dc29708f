//! `mpu up`: reports how an engine came up.

use super::{NotifyView, ProofView, argument_line, state_line};
use crate::container_engines;
use crate::driver_view::DriverView;
use crate::report::{Lines, Report, Style};
use mpu_engine::module::load::Kernel;
use mpu_engine::module::plan::Origin;
use mpu_engine::module::sources::PassedOver;
use mpu_engine::module::state::{Phase, State};
use mpu_engine::up::{How, Note, Up, UpOptions};
use mpu_engine::{self as engine, Engine};
use mpu_host::exit::Exit;
use mpu_host::explain::Explained;
use mpu_host::host::Host;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;

/// What was done.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Up")]
pub struct Done {
    /// `loaded` (the module), `started` or `resumed` (the notify engine), `replaced`, `already_up` or `built`.
    pub result: How,
    /// The engine.
    pub engine: Engine,
    /// Why this engine.
    pub engine_because: String,
    /// Notes for the administrator, as sentences: what a better engine would need, what happened to another one.
    pub notes: Vec<String>,
    /// The module file.
    pub module: Option<PathBuf>,
    /// Where that file comes from; null if it is not known.
    pub module_origin: Option<Origin>,
    /// Module files that exist but could not be used.
    pub passed_over: Vec<PassedOver>,
    /// Seconds that building it took; null if it was built before.
    pub build_seconds: Option<f64>,
    /// The version that was up before, if this one took over from it.
    pub replaced_version: Option<String>,
    /// Whether every call during that was translated; false if the old module could not hand over.
    pub gapless: Option<bool>,
    /// What the loaded module says.
    pub module_state: Option<State>,
    /// Whether it was seen to translate; null with the notify engine, while it waits for a driver, and if it was not asked.
    pub proof: Option<ProofView>,
    /// The state of the notify engine; null with the module.
    pub notify_state: Option<NotifyView>,
    /// The driver.
    pub driver: Option<DriverView>,
    /// The command to try it with this host's container engines; null while there is no driver.
    #[serde(rename = "try")]
    pub to_try: Option<String>,
    /// Seconds that all of it took.
    pub seconds: f64,
}

pub fn up(host: &Host, kernel: &dyn Kernel, options: &UpOptions) -> Result<Done, Explained> {
    Ok(Done::of(host, engine::up::up(host, kernel, options)?))
}

impl Done {
    fn of(host: &Host, up: Up) -> Done {
        let Up { choice, notes, raised, proof, notify_state, driver, took } = up;
        let better = choice.better.map(|fix| format!("for the module: {fix}"));
        Done {
            result: raised.how,
            engine: choice.engine,
            engine_because: choice.why,
            notes: better.into_iter().chain(notes.iter().map(in_words)).collect(),
            module: raised.module,
            module_origin: raised.origin,
            passed_over: raised.passed_over,
            build_seconds: raised.built_in.map(|took| took.as_secs_f64()),
            gapless: raised.replaced.as_ref().map(|replaced| replaced.gapless),
            replaced_version: raised.replaced.map(|replaced| replaced.version),
            module_state: raised.state.map(|state| state.with_holders(host)),
            proof: proof.as_ref().map(ProofView::from),
            notify_state: notify_state.as_ref().map(NotifyView::from),
            to_try: driver.as_ref().map(|_| container_engines::try_command(host, choice.engine)),
            driver: driver.as_ref().map(DriverView::from),
            seconds: took.as_secs_f64(),
        }
    }
}

fn in_words(note: &Note) -> String {
    match note {
        Note::SupervisorLowered(lowered) => {
            format!("the notify engine, which was up before, {}", lowered.in_words())
        }
        Note::SupervisorStays(error) => {
            format!("the notify engine is up, too, which does no harm, and could not be retired: {error}")
        }
        Note::ModuleUnloaded => {
            "the module was unloaded: containers that run already, and were not started through the \
            wrapper, see what the driver shows them by itself"
                .to_string()
        }
        Note::PluginStarted => {
            "mpu-nri.service is started: it connects new containers to the engine, by NRI".to_string()
        }
        Note::NoPlugin => {
            "the configuration says nri = true, and there is no mpu-nri.service here: run `mpu nri` by other means"
                .to_string()
        }
        Note::PluginStays(error) => {
            format!("mpu-nri.service does not start, so no container gets the engine's listener by NRI: {error}")
        }
        Note::ForeignModule(foreign) => format!("{}; to remove it: {}", foreign.in_words(), foreign.fix()),
        Note::ModuleStays(error) => {
            format!("the module is up, too, which does no harm, and could not be unloaded: {error}")
        }
    }
}

impl Report for Done {
    fn exit(&self) -> Exit {
        match &self.proof {
            Some(proof) if proof.is_fault => Exit::Failed,
            _ => Exit::Ok,
        }
    }

    fn text(&self, style: Style) -> String {
        let mut lines = Lines::new(style);
        let module = self.module.as_deref().map(|path| path.display().to_string());
        match (self.result, &module) {
            (How::Built, Some(path)) => {
                lines.plain(format!("built {path}; the kernel is left alone"));
                return lines.text;
            }
            (How::AlreadyUp, _) => lines.plain("MPU is up already; nothing was changed"),
            (How::Resumed, _) => lines.plain("MPU is up: it was retired, and takes new containers again"),
            (How::Replaced, _) => {
                let how =
                    if self.gapless == Some(true) { "without a gap" } else { "with a gap: it could not hand over" };
                let old = self.replaced_version.as_deref().unwrap_or_default();
                lines.plain(format!("MPU is up, after {:.1} s, in the place of {old}, {how}", self.seconds))
            }
            _ => lines.plain(format!("MPU is up, after {:.1} s", self.seconds)),
        };
        lines.put("engine", format!("{} ({})", self.engine.name(), self.engine_because));
        if let Some(state) = &self.module_state {
            lines.put("state", state_line(state, style));
            if let Some(proof) = self.proof.as_ref().filter(|_| state.phase == Phase::Placed) {
                lines.put("proof", proof.line(style));
            }
            let is_claimed = state.argument.is_some_and(|argument| argument.errno.is_some());
            if let Some(line) = argument_line(state, style).filter(|_| is_claimed) {
                lines.put("argument", line);
            }
            lines
                .put("redirects", if state.hooks.is_empty() { "none yet".to_string() } else { state.hooks.join(", ") });
        }
        if let Some(state) = &self.notify_state {
            lines.put("state", state.line(style));
        }
        lines.put("driver", self.driver.as_ref().map_or("none is loaded".to_string(), DriverView::line));
        for note in &self.notes {
            lines.put("note", note);
        }
        for over in &self.passed_over {
            lines.put("passed over", over.to_string());
        }
        if let Some(path) = module {
            let how = match (self.result, self.build_seconds) {
                (How::AlreadyUp, _) => String::new(),
                (_, Some(seconds)) => format!(" (built in {seconds:.1} s)"),
                (_, None) => self.module_origin.map_or(String::new(), |origin| format!(" ({})", origin.in_words())),
            };
            lines.put("module", format!("{path}{how}"));
        }
        if let Some(to_try) = &self.to_try {
            lines.put("try", to_try);
        }
        lines.text
    }
}

#[cfg(test)]
mod tests;
