//! The notify engine's supervisor, in reports.

use crate::report::{Lines, Style};
use mpu_host::phase::Phase;
use mpu_notify::{self as notify, client};
use schemars::JsonSchema;
use serde::Serialize;

/// The notify engine's state, in reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NotifyView {
    /// `armed`: new containers are accepted. `retired`: no new container is accepted, and every call passes untouched. `restarting`: the
    /// supervisor has died, and its keeper starts another.
    #[schemars(with = "String")]
    pub state: Phase,
    /// The supervisor's version.
    pub version: String,
    /// Its process; 0 while there is none.
    pub pid: u32,
    /// Containers whose callers it answers.
    pub containers: Vec<String>,
    /// Their listeners: one for each container and each `exec` into one.
    pub listeners: usize,
    /// What it spent on each container since it began.
    pub costs: Vec<client::Cost>,
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

impl From<&client::State> for NotifyView {
    fn from(state: &client::State) -> NotifyView {
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

/// The text lists at most this many containers with their processor time.
const MOST_COSTS: usize = 8;

impl NotifyView {
    /// The state between the death of a supervisor and the start of the next one.
    pub(crate) fn restarting() -> NotifyView {
        let version = env!("CARGO_PKG_VERSION").to_string();
        NotifyView { state: Phase::Restarting, version, ..NotifyView::default() }
    }

    pub(crate) fn line(&self, style: Style) -> String {
        match &self.state {
            Phase::Armed => format!(
                "{}: containers that start with its listener (nvidia-container-runtime, mpu nri) from now on are translated; {}",
                style.good("armed"),
                self.supervised()
            ),
            Phase::Retired => {
                format!(
                    "{}: takes no new container, and lets every call pass untouched; {}",
                    style.warn("retired"),
                    self.supervised()
                )
            }
            Phase::Restarting => {
                format!("{}: the supervisor has died, calls wait for the next one", style.warn("restarting"))
            }
            other => format!("{}: a state that this mpu does not know", style.warn(other.word())),
        }
    }

    pub(crate) fn cost_lines(&self, lines: &mut Lines, style: Style) {
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
