//! `mpu doctor`: prints the findings, the worst first.

use crate::doctor::{self, Finding, Group, Level};
use crate::issue;
use crate::report::{Report, Style};
use mpu_host::exit::Exit;
use mpu_host::explain::Explained;
use mpu_host::host::Host;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The findings.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct DoctorReport {
    /// The worst level.
    pub level: Level,
    /// What to type next, on the way from a bare node to a container that sees its GPU right; null if all is right.
    pub next: Option<String>,
    /// One for each check, in the order of the checks.
    pub findings: Vec<Finding>,
}

pub fn examine(host: &Host) -> DoctorReport {
    let findings = doctor::examine(host);
    let worst = findings.iter().map(|finding| finding.level).filter(|level| *level != Level::Skipped).max();
    let next = doctor::next(&findings).map(str::to_string);
    DoctorReport { level: worst.unwrap_or(Level::Ok), next, findings }
}

/// A report that was written for an issue.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct IssueReport {
    /// The file.
    pub report: PathBuf,
    /// Its length.
    pub bytes: usize,
    /// Whether it has names of the host, its containers and users.
    pub has_names: bool,
}

pub fn report(host: &Host, file: &Path, with_names: bool, force: bool) -> Result<IssueReport, Explained> {
    let text = issue::report(host, with_names);
    issue::write(file, &text, force)?;
    Ok(IssueReport { report: file.to_path_buf(), bytes: text.len(), has_names: with_names })
}

impl Report for IssueReport {
    fn text(&self, style: Style) -> String {
        let file = self.report.display();
        match self.has_names {
            false => format!("wrote {file}: it has no names and no free text; read it, then attach it to the issue\n"),
            true => style.warn(&format!("wrote {file}: it HAS names; read it before you give it to anybody")) + "\n",
        }
    }
}

pub fn list() -> String {
    doctor::checks().map(|(_, (id, about, _))| format!("{id:<18} {about}\n")).collect()
}

impl Report for DoctorReport {
    fn exit(&self) -> Exit {
        match self.level {
            Level::Ok | Level::Skipped => Exit::Ok,
            Level::Attention => Exit::Failed,
            Level::Broken => Exit::Broken,
        }
    }

    fn text(&self, style: Style) -> String {
        let mut text = String::new();
        let count = |level| self.findings.iter().filter(|finding| finding.level == level).count();
        let (broken, attention) = (count(Level::Broken), count(Level::Attention));
        let _ = match (broken, attention) {
            (0, 0) => writeln!(text, "{}", style.good("all is right")),
            (0, 1) => writeln!(text, "{}", style.warn("1 thing needs attention")),
            (0, _) => writeln!(text, "{}", style.warn(&format!("{attention} things need attention"))),
            _ => {
                let are = if broken == 1 { "thing is" } else { "things are" };
                let need = if attention == 1 { "needs" } else { "need" };
                writeln!(text, "{}", style.bad(&format!("{broken} {are} broken, {attention} {need} attention")))
            }
        };
        if let Some(next) = &self.next {
            let _ = writeln!(text, "next: {}", style.name(next));
        }
        for level in [Level::Broken, Level::Attention] {
            for finding in self.findings.iter().filter(|finding| finding.level == level) {
                let word = if level == Level::Broken { style.bad("broken") } else { style.warn("attention") };
                let _ = writeln!(text, "\n{word}  {}: {}", style.name(finding.check), finding.seen);
                if let Some(fix) = &finding.fix {
                    let _ = writeln!(text, "  fix: {fix}");
                }
            }
        }
        let (skipped, made): (Vec<_>, Vec<_>) = self.findings.iter().partition(|f| f.level == Level::Skipped);
        let mut group: Option<Group> = None;
        for finding in made {
            if group != Some(finding.group) {
                group = Some(finding.group);
                let _ = writeln!(text, "\n{}", style.name(&format!("{:?}", finding.group)));
            }
            let word = match finding.level {
                Level::Broken => style.bad("broken   "),
                Level::Attention => style.warn("attention"),
                Level::Ok | Level::Skipped => style.good("ok       "),
            };
            let _ = writeln!(text, "  {word}  {:<16}  {}", finding.check, finding.seen);
        }
        if !skipped.is_empty() {
            let names: Vec<_> = skipped.iter().map(|finding| finding.check).collect();
            let _ = writeln!(text, "\nskipped {}: {} (reasons: mpu doctor --json)", names.len(), names.join(", "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::FakeHost;

    #[test]
    fn json_matches_schema() {
        let examined = examine(&FakeHost::in_order().host());
        crate::report::documented::check(&crate::report::json_of("doctor", &examined));
        assert_eq!((examined.level, examined.exit().code()), (Level::Broken, 2), "no engine is up");
    }

    #[test]
    fn skipped_checks_share_one_line() {
        let examined = examine(&FakeHost::in_order().host());
        let skipped = examined.findings.iter().filter(|finding| finding.level == Level::Skipped).count();
        let text = examined.text(Style::Plain);
        let lines: Vec<_> = text.lines().filter(|line| line.contains("skipped")).collect();
        assert!(skipped > 1 && lines.len() == 1 && lines[0].starts_with(&format!("skipped {skipped}: ")), "{text}");
    }
}
