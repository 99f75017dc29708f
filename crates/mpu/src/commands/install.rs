//! `mpu install`, `mpu upgrade` and `mpu uninstall`: their reports.
//!
//! Owns the words. What is done, and undone, is `install`'s.

use crate::exit::Exit;
use crate::install::layout;
use crate::install::plan::StepView;
use crate::install::work::Outcome;
use crate::report::{Lines, Report, Style};
use schemars::JsonSchema;
use serde::Serialize;

/// What became of the host.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Installation")]
pub struct Done {
    /// `installed`, `upgraded`, `uninstalled`, `unchanged` or `planned` (with --dry-run).
    #[schemars(extend("enum" = ["installed", "upgraded", "uninstalled", "unchanged", "planned"]))]
    pub result: &'static str,
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
            (_, true) => "planned",
            _ if outcome.nothing => "unchanged",
            (Some(before), _) if before != layout::VERSION => "upgraded",
            _ => "installed",
        };
        Done { result, version: layout::VERSION.to_string(), ..Done::of(outcome) }
    }

    /// Of a removal.
    pub fn removed(outcome: Outcome, dry_run: bool) -> Done {
        let version = outcome.before.clone().unwrap_or_default();
        Done { result: if dry_run { "planned" } else { "uninstalled" }, version, ..Done::of(outcome) }
    }

    fn of(outcome: Outcome) -> Done {
        let Outcome { steps, before, missing, .. } = outcome;
        Done { result: "", version: String::new(), before, steps, missing }
    }
}

impl Report for Done {
    const COMMAND: &'static str = "install";

    fn exit(&self) -> Exit {
        Exit::Ok
    }

    fn text(&self, style: Style) -> String {
        let mut lines = Lines::new(style);
        if self.result == "planned" {
            lines.plain("these steps, in this order; nothing was changed:");
            for step in &self.steps {
                let note = if step.note.is_empty() { String::new() } else { format!("  ({})", step.note) };
                lines.put(step.kind, format!("{}{note}", step.what));
            }
        }
        let (version, before) = (&self.version, self.before.as_deref().unwrap_or_default());
        match self.result {
            "installed" => lines.plain(style.good(&format!("MPU {version} is installed"))),
            "upgraded" => lines.plain(style.good(&format!("MPU {version} is installed, in the place of {before}"))),
            "uninstalled" => lines.plain(format!("MPU {version} is removed")),
            "unchanged" => lines.plain(format!("MPU {version} is installed already; nothing was changed")),
            _ => &mut lines,
        };
        for kept in self.steps.iter().filter(|step| step.kind == "keep" && self.result != "planned") {
            lines.plain(format!("kept {}: {}", kept.what, kept.note));
        }
        for missing in &self.missing {
            lines.plain(format!("{}: {missing}", style.warn("note")));
        }
        lines.text
    }
}
