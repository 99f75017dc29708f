//! `mpu agent`: an agent's farewell, and the answers to a kubelet's probes.
//!
//! Owns the reports, and what counts as a container seen right. The rounds are
//! `crate::agent`'s.

use crate::agent::note::{answer, uptime, Note, Question};
use crate::agent::{Agent, AgentOptions, Parting};
use crate::cluster::{ApiServer, Cluster};
use crate::error::Error;
use crate::probe::compare;
use crate::report::{Report, Style};
use mpu_engine::module::load::Kernel;
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::Host;
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;

/// What became of the engine when the agent was told to go.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Left {
    /// `down`, `kept` or `left_to`.
    #[schemars(extend("enum" = ["down", "kept", "left_to"]))]
    pub result: &'static str,
    /// The agent that looks after it now.
    pub left_to: Option<String>,
}

/// An answer to a probe.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Answered {
    /// The question.
    pub question: Question,
    /// Whether it is so.
    pub yes: bool,
    /// Why.
    pub because: String,
    /// What the agent left, if it did.
    pub note: Option<Note>,
}

/// Runs an agent until `wait`, which is given the time to the next round, says that it is told to go.
pub fn run(
    host: &Host,
    kernel: &dyn Kernel,
    options: AgentOptions,
    wait: &mut dyn FnMut(Duration) -> bool,
) -> Result<Left, Error> {
    let log = |line: &str| mpu_host::progress::say(format_args!("mpu: {line}"));
    let server = options.cluster.as_deref().map(|credentials| {
        let node = options.node.as_deref().unwrap_or_default();
        ApiServer::of_pod(credentials, node, |name| std::env::var(name).ok())
    });
    // Without it the engine works as well: only the node's label and its Events are missing.
    let server = server.and_then(|server| server.map_err(|error| log(&format!("no Events: {error}"))).ok());
    let cluster = server.as_ref().map(|server| server as &dyn Cluster);
    let parting = Agent::new(host, kernel, &measure, &log, cluster, options)?.run(wait)?;
    Ok(match parting {
        Parting::Down => Left { result: "down", left_to: None },
        Parting::Kept => Left { result: "kept", left_to: None },
        Parting::With(other) => Left { result: "left_to", left_to: Some(other) },
    })
}

/// Right is what `mpu probe` calls right, by an engine's doing: what a driver gets right by itself today it gets wrong
/// tomorrow, with two programs more.
fn measure(host: &Host) -> Result<(bool, String), Box<dyn Explain>> {
    let found = compare::probe(host).map_err(|error| Box::new(error) as Box<dyn Explain>)?;
    let faults: Vec<&str> = found.faults.iter().map(|fault| fault.in_words()).collect();
    Ok(match (found.faults.is_empty(), found.engine.is_some()) {
        (true, true) => (true, "a container on this node is seen right".to_string()),
        (true, false) => (false, "a container on this node is seen right, but no engine is up".to_string()),
        (false, _) => (false, format!("a container on this node is not seen right: {}", faults.join("; "))),
    })
}

/// Answers a probe from what the agent left.
pub fn ask(host: &Host, question: Question, id: &str, within: u64) -> Result<Answered, Error> {
    let note = Note::read(host, id)?;
    let (yes, because) = answer(question, note.as_ref(), uptime(host), within);
    Ok(Answered { question, yes, because, note })
}

impl Report for Left {
    const COMMAND: &'static str = "agent";

    fn exit(&self) -> Exit {
        Exit::Ok
    }

    fn text(&self, _: Style) -> String {
        match (&self.left_to, self.result) {
            (Some(other), _) => format!("the engine stays up: agent {other} manages it\n"),
            (None, "kept") => "the engine stays up, as requested\n".to_string(),
            (None, _) => "MPU is down; containers see what the driver shows them by itself\n".to_string(),
        }
    }
}

impl Report for Answered {
    const COMMAND: &'static str = "agent";

    fn exit(&self) -> Exit {
        if self.yes {
            Exit::Ok
        } else {
            Exit::NotReady
        }
    }

    fn text(&self, style: Style) -> String {
        let word = match (self.question, self.yes) {
            (Question::Ready, true) => style.good("ready"),
            (Question::Ready, false) => style.bad("not ready"),
            (Question::Alive, true) => style.good("alive"),
            (Question::Alive, false) => style.bad("not alive"),
        };
        format!("{word}: {}\n", self.because)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::note::{Doing, Seen};
    use mpu_host::host::fake::FakeHost;

    #[test]
    fn answers_are_documented_and_lead_to_an_exit_code() {
        let fake = FakeHost::in_order();
        fake.write("/proc/uptime", "100.0 1.0\n");
        let asked = ask(&fake.host(), Question::Ready, "a", 60).expect("an answer");
        assert_eq!((asked.exit(), asked.text(Style::Plain).starts_with("not ready: ")), (Exit::NotReady, true));
        let seen = Seen { at: 90, right: true, because: "right".to_string() };
        let (version, words) = ("0.1.0".to_string(), "up".to_string());
        let note = Note { at: 95, version, doing: Doing::Watches, words, seen: Some(seen) };
        fake.write("/run/mpu/agents/.keep", "");
        note.write(&fake.host(), "a").expect("written");
        let asked = ask(&fake.host(), Question::Ready, "a", 60).expect("an answer");
        assert_eq!((asked.exit(), asked.text(Style::Plain).as_str()), (Exit::Ok, "ready: measured 10 s ago: right\n"));
        crate::report::documented::check("`mpu agent ready --json`", &crate::report::json(&asked));
        let left = Left { result: "left_to", left_to: Some("b".to_string()) };
        crate::report::documented::check("`mpu agent run --json`", &crate::report::json(&left));
    }
}
