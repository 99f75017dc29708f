//! `mpu doctor`: the report of what was found, the worst first.

use crate::doctor::{self, Finding, Group, Level};
use crate::error::Error;
use crate::issue;
use crate::report::{Report, Style};
use mpu_host::exit::Exit;
use mpu_host::host::Host;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// What was found.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Examined {
    /// The worst level.
    pub level: Level,
    /// What to type next, on the way from a bare node to a container that sees its GPU right; null if all is right.
    pub next: Option<String>,
    /// One for each check, in the order of the checks.
    pub findings: Vec<Finding>,
}

pub fn examine(host: &Host) -> Examined {
    let findings = doctor::examine(host);
    let worst = findings.iter().map(|finding| finding.level).filter(|level| *level != Level::Skipped).max();
    let next = doctor::next(&findings).map(str::to_string);
    Examined { level: worst.unwrap_or(Level::Ok), next, findings }
}

/// A report that was written for an issue.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Reported {
    /// The file.
    pub report: PathBuf,
    /// Its length.
    pub bytes: usize,
    /// Whether it has names of the host, its containers and users.
    pub has_names: bool,
}

pub fn report(host: &Host, file: &Path, with_names: bool, force: bool) -> Result<Reported, Error> {
    let text = issue::report(host, with_names);
    issue::write(file, &text, force)?;
    Ok(Reported { report: file.to_path_buf(), bytes: text.len(), has_names: with_names })
}

impl Report for Reported {
    const COMMAND: &'static str = "doctor";

    fn text(&self, style: Style) -> String {
        let file = self.report.display();
        match self.has_names {
            false => format!("wrote {file}: it has no names and no free text; read it, then attach it to the issue\n"),
            true => style.warn(&format!("wrote {file}: it HAS names; read it before you give it to anybody")) + "\n",
        }
    }
}

pub fn list() -> String {
    doctor::checks().map(|(id, _, about, _)| format!("{id:<18} {about}\n")).collect()
}

impl Report for Examined {
    const COMMAND: &'static str = "doctor";

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
            (0, _) => writeln!(text, "{}", style.warn(&format!("{attention} things need attention"))),
            _ => writeln!(text, "{}", style.bad(&format!("{broken} things are broken, {attention} need attention"))),
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
        let mut group: Option<Group> = None;
        for finding in &self.findings {
            if group != Some(finding.group) {
                group = Some(finding.group);
                let _ = writeln!(text, "\n{}", style.name(&format!("{:?}", finding.group)));
            }
            let word = match finding.level {
                Level::Ok => style.good("ok       "),
                Level::Skipped => "skipped  ".to_string(),
                Level::Attention => style.warn("attention"),
                Level::Broken => style.bad("broken   "),
            };
            let _ = writeln!(text, "  {word}  {:<16}  {}", finding.check, finding.seen);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::FakeHost;

    #[test]
    fn the_json_is_documented() {
        let examined = examine(&FakeHost::in_order().host());
        crate::report::documented::check("`mpu doctor --json`", &crate::report::json(&examined));
        assert_eq!((examined.level, examined.exit().code()), (Level::Broken, 2), "no engine is up");
    }
}
