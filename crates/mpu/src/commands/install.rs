//! `mpu install` and `mpu uninstall`: their reports.

use crate::install::plan::Kind;
use crate::install::{InstallResult, Outcome};
use crate::report::{Lines, Report, Style};
use mpu_host::exit::Exit;

impl Report for Outcome {
    fn exit(&self) -> Exit {
        Exit::Ok
    }

    fn text(&self, style: Style) -> String {
        let mut lines = Lines::new(style);
        let (version, before) = (&self.version, self.before.as_deref().unwrap_or_default());
        lines.plain(match self.result {
            InstallResult::Installed => style.good(&format!("MPU {version} is installed")),
            InstallResult::Upgraded => style.good(&format!("MPU {version} is installed, in the place of {before}")),
            InstallResult::Uninstalled => format!("MPU {version} is removed"),
            InstallResult::Unchanged => format!("MPU {version} is installed already; nothing was changed"),
            InstallResult::Planned => "these steps, in this order; nothing was changed:".to_string(),
        });
        for step in &self.steps {
            let note = if step.note.is_empty() { String::new() } else { format!("  ({})", step.note) };
            let kind = format!("{:?}", step.kind).to_lowercase();
            match self.result {
                InstallResult::Planned => lines.put(&kind, format!("{}{note}", step.what)),
                _ if step.kind == Kind::Keep => lines.plain(format!("kept {}: {}", step.what, step.note)),
                _ => &mut lines,
            };
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
    use crate::install::plan::StepView;
    use crate::report::{documented, json_of};

    #[test]
    fn json_matches_schema() {
        let kinds = [Kind::Write, Kind::Keep, Kind::Remove, Kind::Run, Kind::Engine];
        let step = |kind| StepView { kind, what: "/usr/local/bin/mpu".to_string(), note: "0755".to_string() };
        for result in [
            InstallResult::Installed,
            InstallResult::Upgraded,
            InstallResult::Uninstalled,
            InstallResult::Unchanged,
            InstallResult::Planned,
        ] {
            let (version, before, steps) = ("0.1.0".to_string(), Some("0.0.9".to_string()), kinds.map(step).to_vec());
            let outcome = Outcome { result, version, before, steps, missing: vec!["no DKMS"] };
            documented::check(&json_of("install", &outcome));
        }
    }
}
