//! The messages between the host and a test guest. The host writes the plan's rows as JSON. The guest prints verdicts and its exit line.
//! tests/node/stories.sh prints verdicts, too; a test of xtask compares its format.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A part of a guest's plan: a driver and a client, and what to try on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The simulated driver's era; or, as `1@550.163.01`, the era of a real driver and its release.
    pub era: String,
    /// The release of nvidia-smi and NVML.
    pub client: String,
    pub engines: Vec<String>,
    /// Stories by name; all if empty.
    pub stories: Vec<String>,
    /// How often the module is reloaded under load.
    pub reloads: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    Pass,
    Fail,
    Skip,
}

const ENDINGS: [(&str, Ending); 3] = [("pass", Ending::Pass), ("fail", Ending::Fail), ("skip", Ending::Skip)];

/// The prefix of a verdict's line.
const STORY: &str = "STORY ";

/// The result of one run of a story.
///
/// `STORY name engine=module era=1 client=550.163.01 verdict=skip why it was not played`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub story: String,
    pub engine: String,
    /// The driver's era, as the plan has it.
    pub era: String,
    pub client: String,
    pub result: Ending,
    pub reason: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { story, engine, era, client, result, reason } = self;
        let word = ENDINGS.iter().find(|(_, known)| known == result).map_or("fail", |(word, _)| word);
        // A reason can have line breaks; a verdict is one line.
        let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        write!(f, "{STORY}{story} engine={engine} era={era} client={client} verdict={word} {reason}")
    }
}

impl Verdict {
    /// Parses a line. Returns none if it is no verdict or is cut off before the result. An incomplete result counts as failed.
    pub fn read(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix(STORY)?.split(' ');
        let story = words.next()?.to_owned();
        let mut value = |key: &str| words.next()?.strip_prefix(key)?.strip_prefix('=').map(str::to_owned);
        let (engine, era, client) = (value("engine")?, value("era")?, value("client")?);
        let reported = value("verdict")?;
        let result = ENDINGS.iter().find(|(word, _)| *word == reported).map_or(Ending::Fail, |(_, ending)| *ending);
        Some(Self { story, engine, era, client, result, reason: words.collect::<Vec<_>>().join(" ") })
    }
}

/// Printed when an engine's stage is set up, before its first story: time used until then counts for no story.
pub const STAGE_READY: &str = "STAGE-STANDS";

/// Printed before and after a story that makes the driver oops. In between the host ignores an oops, because the story checks it.
pub const OOPS_EXPECTED: &str = "OOPS-AWAITED";
/// See [`OOPS_EXPECTED`].
pub const OOPS_OVER: &str = "OOPS-OVER";

/// A guest's last line: the exit status of the whole plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitLine(pub i32);

const PREFIX: &str = "GUEST-RC=";

impl fmt::Display for ExitLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.0)
    }
}

impl ExitLine {
    /// Parses a line. Returns none if it is another line.
    pub fn read(line: &str) -> Option<Result<Self, std::num::ParseIntError>> {
        Some(line.strip_prefix(PREFIX)?.trim().parse().map(ExitLine))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_round_trips() {
        for (_, result) in ENDINGS {
            for reason in ["", "native is right in era 1"] {
                let verdict = Verdict {
                    story: "one".into(),
                    engine: "none".into(),
                    era: "1f".into(),
                    client: "550.163.01".into(),
                    result,
                    reason: reason.into(),
                };
                assert_eq!(Verdict::read(&verdict.to_string()), Some(verdict.clone()), "{verdict}");
                let torn = Verdict { reason: "on two\n  lines".into(), ..verdict };
                assert_eq!(Verdict::read(&torn.to_string()).map(|read| read.reason), Some("on two lines".to_owned()));
            }
        }
    }

    #[test]
    fn truncated_verdict_is_no_pass() {
        assert_eq!(Verdict::read("STORY torn engine=none er"), None);
        assert_eq!(Verdict::read("guest: STORY one engine=none era=1 client=5 verdict=pass"), None);
        let half = Verdict::read("STORY one engine=none era=1 client=5 verdict=pa").map(|read| read.result);
        assert_eq!(half, Some(Ending::Fail));
    }

    #[test]
    fn exit_line_round_trips() {
        for rc in [0, 1, 69] {
            assert_eq!(ExitLine::read(&ExitLine(rc).to_string()), Some(Ok(ExitLine(rc))));
        }
        assert_eq!(ExitLine::read("GUEST-R"), None);
        assert!(ExitLine::read("GUEST-RC=none").is_some_and(|read| read.is_err()));
    }
}
