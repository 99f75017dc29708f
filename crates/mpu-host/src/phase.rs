//! The phase of an engine, as in the module's file, a supervisor's answer and JSON.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The phase of an engine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Phase {
    /// Translates. The module: one translation was seen since its redirects were placed.
    #[default]
    Armed,
    /// The module's redirects are placed, and no translation was seen yet.
    Placed,
    /// No driver is loaded; the redirects will be placed with it.
    Waiting,
    /// A redirect could not be placed, so none is.
    Refused,
    /// The module's redirects are removed; a supervisor accepts no new container, and passes every call on.
    Retired,
    /// The kernel did not remove a redirect: the module stays until the next boot.
    Stuck,
    /// A supervisor has died and has no successor yet.
    Restarting,
    /// A phase of a newer version.
    Other(String),
}

impl Phase {
    /// The phases that engines report; none reports `restarting`.
    pub const REPORTED: [Phase; 6] =
        [Phase::Armed, Phase::Placed, Phase::Waiting, Phase::Refused, Phase::Retired, Phase::Stuck];

    pub fn word(&self) -> &str {
        match self {
            Phase::Armed => "armed",
            Phase::Placed => "placed",
            Phase::Waiting => "waiting",
            Phase::Refused => "refused",
            Phase::Retired => "retired",
            Phase::Stuck => "stuck",
            Phase::Restarting => "restarting",
            Phase::Other(word) => word,
        }
    }

    /// Whether the module's redirects are placed, so that calls of containers reach the module.
    pub fn is_placed(&self) -> bool {
        matches!(self, Phase::Armed | Phase::Placed)
    }
}

impl From<String> for Phase {
    fn from(word: String) -> Phase {
        let mut known = Phase::REPORTED.into_iter().chain([Phase::Restarting]);
        known.find(|phase| phase.word() == word).unwrap_or(Phase::Other(word))
    }
}

impl From<Phase> for String {
    fn from(phase: Phase) -> String {
        phase.to_string()
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::Phase;

    #[test]
    fn words_round_trip() {
        for phase in Phase::REPORTED.into_iter().chain([Phase::Restarting, Phase::Other("resting".to_string())]) {
            assert_eq!(Phase::from(phase.word().to_string()), phase);
            let json = serde_json::to_string(&phase).expect("JSON");
            assert_eq!(json, format!("\"{phase}\""));
            assert_eq!(serde_json::from_str::<Phase>(&json).expect("a word"), phase);
        }
    }
}
