//! `mpu install`, `mpu upgrade` and `mpu uninstall`: their reports.
//!
//! Owns the words. What is done, and undone, is `install`'s.

use crate::install::layout;
use crate::install::plan::{Kind, StepView};
use crate::install::work::Outcome;
use crate::report::{Lines, Report, Style};
use mpu_host::exit::Exit;
use schemars::JsonSchema;
use serde::Serialize;

/// What became of the host, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Became {
    /// MPU was not installed by hand, or this version was, and is now.
    Installed,
    /// An older version was.
    Upgraded,
    /// It is removed.
    Uninstalled,
    /// Nothing had to be done.
    Unchanged,
    /// Nothing was to be done, as with --dry-run.
    Planned,
}

impl Became {
    /// Every word.
    pub const ALL: [Became; 5] =
        [Became::Installed, Became::Upgraded, Became::Uninstalled, Became::Unchanged, Became::Planned];
}

/// What became of the host.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Installation")]
pub struct Done {
    /// `installed`, `upgraded`, `uninstalled`, `unchanged` or `planned` (with --dry-run).
    #[schemars(with = "&'static str", extend("enum" = Became::ALL))]
    pub result: Became,
    /// The version that this executable installs; of an uninstallation, the one that was removed.
    pub version: String,
    /// The version that was there before.
    pub before: Option<String>,
    /// Every step, in order.
    pub steps: Vec<StepView>,
    /// What will not happen by itself on this host, in sentences.
    pub missing: Vec<&'static str>,
}

impl Done {
    /// Of an installation or an upgrade.
    pub fn installed(outcome: Outcome, dry_run: bool) -> Done {
        let result = match (&outcome.before, dry_run) {
            (_, true) => Became::Planned,
            _ if outcome.nothing => Became::Unchanged,
            (Some(before), _) if before != layout::VERSION => Became::Upgraded,
            _ => Became::Installed,
        };
        Done { result, version: layout::VERSION.to_string(), ..Done::of(outcome) }
    }

    /// Of a removal.
    pub fn removed(outcome: Outcome, dry_run: bool) -> Done {
        let version = outcome.before.clone().unwrap_or_default();
        let result = if dry_run { Became::Planned } else { Became::Uninstalled };
        Done { result, version, ..Done::of(outcome) }
    }

    fn of(outcome: Outcome) -> Done {
        let Outcome { steps, before, missing, .. } = outcome;
        Done { result: Became::Installed, version: String::new(), before, steps, missing }
    }
}

impl Report for Done {
    const COMMAND: &'static str = "install";

    fn exit(&self) -> Exit {
        Exit::Ok
    }

    fn text(&self, style: Style) -> String {
        let mut lines = Lines::new(style);
        if self.result == Became::Planned {
            lines.plain("these steps, in this order; nothing was changed:");
            for step in &self.steps {
                let note = if step.note.is_empty() { String::new() } else { format!("  ({})", step.note) };
                lines.put(step.kind.name(), format!("{}{note}", step.what));
            }
        }
        let (version, before) = (&self.version, self.before.as_deref().unwrap_or_default());
        match self.result {
            Became::Installed => lines.plain(style.good(&format!("MPU {version} is installed"))),
            Became::Upgraded => {
                lines.plain(style.good(&format!("MPU {version} is installed, in the place of {before}")))
            }
            Became::Uninstalled => lines.plain(format!("MPU {version} is removed")),
            Became::Unchanged => lines.plain(format!("MPU {version} is installed already; nothing was changed")),
            Became::Planned => &mut lines,
        };
        for kept in self.steps.iter().filter(|step| step.kind == Kind::Keep && self.result != Became::Planned) {
            lines.plain(format!("kept {}: {}", kept.what, kept.note));
        }
        for missing in &self.missing {
            lines.plain(format!("{}: {missing}", style.warn("note")));
        }
        lines.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{documented, json};

    #[test]
    fn the_json_is_documented_and_its_words_are_what_became_of_it() {
        let step = |kind| StepView { kind, what: "/usr/local/bin/mpu".to_string(), note: "0755".to_string() };
        let outcome = |before: Option<&str>, nothing| Outcome {
            steps: Kind::ALL.map(step).to_vec(),
            before: before.map(str::to_string),
            missing: vec!["no DKMS"],
            nothing,
        };
        let this = Some(layout::VERSION);
        let found = |done: Done| {
            documented::check("`mpu install --json`", &json(&done));
            done.result
        };
        assert_eq!(found(Done::installed(outcome(this, true), false)), Became::Unchanged);
        assert_eq!(found(Done::installed(outcome(this, false), false)), Became::Installed);
        assert_eq!(found(Done::installed(outcome(Some("0.0.9"), false), false)), Became::Upgraded);
        assert_eq!(found(Done::installed(outcome(this, false), true)), Became::Planned);
        assert_eq!(found(Done::removed(outcome(this, false), false)), Became::Uninstalled);
    }
}
