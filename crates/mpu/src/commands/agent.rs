//! `mpu agent`: runs an agent, answers the kubelet's probes, and measures whether a container gets right answers.

use crate::agent::note::{KubeletProbe, Note, evaluate_probe, uptime};
use crate::agent::{Agent, AgentOptions, FinalState};
use crate::cluster::{ApiServer, Cluster};
use crate::probe::{ProbeError, compare};
use crate::report::{Report, Style};
use mpu_engine::module::load::Kernel;
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::explain::Explained;
use mpu_host::host::Host;
use schemars::JsonSchema;
use serde::Serialize;
use std::cell::RefCell;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// The state of the engine after the agent ended.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AgentResult {
    /// `down`, `kept` (as was asked for), or `left_to` another agent.
    #[schemars(extend("enum" = ["down", "kept", "left_to"]))]
    pub result: &'static str,
    /// The agent that manages it now.
    pub left_to: Option<String>,
}

/// An answer to a probe.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProbeAnswer {
    /// The question.
    pub question: KubeletProbe,
    /// Whether it is so.
    pub yes: bool,
    /// Why.
    pub because: String,
    /// The agent's note, if there is one.
    pub note: Option<Note>,
}

/// Runs an agent until `wait`, which gets the time to the next round, returns that the agent is to end.
pub fn run(
    host: &Host,
    kernel: &dyn Kernel,
    options: AgentOptions,
    wait: &mut dyn FnMut(Duration) -> bool,
) -> Result<AgentResult, Explained> {
    let log = |line: &str| mpu_host::progress::print_line(format_args!("mpu: {line}"));
    let server = options.cluster.as_deref().map(|credentials| {
        let node = options.node.as_deref().unwrap_or_default();
        ApiServer::of_pod(credentials, node, |name| std::env::var(name).ok())
    });
    // The engine works without it: only the node's label and its Events are missing.
    let server = server.and_then(|server| server.map_err(|error| log(&format!("no Events: {error}"))).ok());
    let cluster = server.as_ref().map(|server| server as &dyn Cluster);
    let measurer = Measurer::new(measure_node, MEASURE_TIMEOUT);
    let measure = |host: &Host| measurer.measure(host).map_err(|error| Box::new(error) as Box<dyn Explain>);
    let final_state = Agent::new(host, kernel, &measure, &log, cluster, options)?.run(wait)?;
    Ok(match final_state {
        FinalState::Down => AgentResult { result: "down", left_to: None },
        FinalState::Kept => AgentResult { result: "kept", left_to: None },
        FinalState::ManagedBy(other) => AgentResult { result: "left_to", left_to: Some(other) },
    })
}

/// How long a measurement may take: the first client of a GPU waits for the GPU to start.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(120);

type MeasureResult = Result<(bool, String), ProbeError>;

/// Measures in a separate thread, because the driver may hang and no signal ends that. The agent then continues and
/// reports the node as not right. No second thread starts until the first returns.
struct Measurer {
    measure_node: fn(&Host) -> MeasureResult,
    timeout: Duration,
    pending: RefCell<Option<Receiver<MeasureResult>>>,
}

impl Measurer {
    fn new(measure_node: fn(&Host) -> MeasureResult, timeout: Duration) -> Measurer {
        Measurer { measure_node, timeout, pending: RefCell::new(None) }
    }

    fn measure(&self, host: &Host) -> MeasureResult {
        let earlier = self.pending.borrow_mut().take();
        // A thread that already timed out is only polled.
        let timeout = if earlier.is_some() { Duration::ZERO } else { self.timeout };
        let answer = earlier.unwrap_or_else(|| self.spawn(host));
        match answer.recv_timeout(timeout) {
            Ok(found) => found,
            Err(RecvTimeoutError::Timeout) => {
                *self.pending.borrow_mut() = Some(answer);
                let limit = self.timeout.as_secs();
                let why = "it hangs (fix: dmesg | tail -n 50)";
                Ok((false, format!("the driver has given no answer for more than {limit} s: {why}")))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Ok((false, "the measurement failed: this is a fault in mpu".to_string()))
            }
        }
    }

    fn spawn(&self, host: &Host) -> Receiver<MeasureResult> {
        let (send, answer) = mpsc::channel();
        let (host, measure_node) = (host.clone(), self.measure_node);
        thread::spawn(move || drop(send.send(measure_node(&host))));
        answer
    }
}

/// A node is right if `mpu probe` finds no fault and an engine is up. Without an engine, right answers are chance: they
/// become wrong when more programs run.
fn measure_node(host: &Host) -> MeasureResult {
    let found = compare::probe(host)?;
    let faults: Vec<&str> = found.faults.iter().map(|fault| fault.explanation).collect();
    Ok(match (found.right, found.engine_up) {
        _ if found.shows_host() => {
            (true, "containers on this node see the host's processes, as configured".to_string())
        }
        (true, true) => (true, "a container on this node is seen right".to_string()),
        (true, false) => (false, "a container on this node is seen right, but no engine is up".to_string()),
        (false, _) => (false, format!("a container on this node is not seen right: {}", faults.join("; "))),
    })
}

/// Answers a probe from the agent's note.
pub fn probe(host: &Host, question: KubeletProbe, id: &str, within: u64) -> Result<ProbeAnswer, Explained> {
    let note = Note::read(host, id)?;
    let (yes, because) = evaluate_probe(question, note.as_ref(), uptime(host), within);
    Ok(ProbeAnswer { question, yes, because, note })
}

impl Report for AgentResult {
    fn text(&self, _: Style) -> String {
        match (&self.left_to, self.result) {
            (Some(other), _) => format!("the engine stays up: agent {other} manages it\n"),
            (None, "kept") => "the engine stays up, as requested\n".to_string(),
            (None, _) => "MPU is down; containers see what the driver shows them by itself\n".to_string(),
        }
    }
}

impl Report for ProbeAnswer {
    fn exit(&self) -> Exit {
        if self.yes { Exit::Ok } else { Exit::NotReady }
    }

    fn text(&self, style: Style) -> String {
        let word = match (self.question, self.yes) {
            (KubeletProbe::Ready, true) => style.good("ready"),
            (KubeletProbe::Ready, false) => style.bad("not ready"),
            (KubeletProbe::Alive, true) => style.good("alive"),
            (KubeletProbe::Alive, false) => style.bad("not alive"),
        };
        format!("{word}: {}\n", self.because)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::note::{Activity, Measurement};
    use mpu_host::host::fake::FakeHost;

    #[test]
    fn hanging_driver_is_measured_only_once() {
        use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        static IS_BACK: AtomicBool = AtomicBool::new(false);
        let hangs = |_: &Host| {
            CALLS.fetch_add(1, SeqCst);
            while !IS_BACK.load(SeqCst) {
                thread::sleep(Duration::from_millis(5));
            }
            Ok((true, "right".to_string()))
        };
        let host = FakeHost::in_order().host();
        let measurer = Measurer::new(hangs, Duration::from_millis(20));
        for _ in 0..3 {
            let (right, because) = measurer.measure(&host).expect("no error");
            assert!(!right && because.contains("hangs"), "{because}");
        }
        IS_BACK.store(true, SeqCst);
        let has_answer = (0..6000).any(|_| {
            thread::sleep(Duration::from_millis(10));
            measurer.measure(&host).expect("no error").0
        });
        assert!(has_answer, "its answer counts when it comes");
        assert_eq!(CALLS.load(SeqCst), 1, "one thread hangs, not one for each measurement");
    }

    #[test]
    fn answers_are_documented_and_lead_to_exit_code() {
        let fake = FakeHost::in_order();
        fake.write("/proc/uptime", "100.0 1.0\n");
        let answer = probe(&fake.host(), KubeletProbe::Ready, "a", 60).expect("an answer");
        assert_eq!((answer.exit(), answer.text(Style::Plain).starts_with("not ready: ")), (Exit::NotReady, true));
        let seen = Measurement { at: 90, right: true, because: "right".to_string() };
        let (version, words) = ("0.1.0".to_string(), "up".to_string());
        let note = Note { at: 95, version, doing: Activity::Watches, words, seen: Some(seen) };
        fake.write("/run/mpu/agents/.keep", "");
        note.write(&fake.host(), "a").expect("written");
        let answer = probe(&fake.host(), KubeletProbe::Ready, "a", 60).expect("an answer");
        assert_eq!(
            (answer.exit(), answer.text(Style::Plain).as_str()),
            (Exit::Ok, "ready: measured 10 s ago: right\n")
        );
        crate::report::documented::check(&crate::report::json_of("agent", &answer));
        let result = AgentResult { result: "left_to", left_to: Some("b".to_string()) };
        crate::report::documented::check(&crate::report::json_of("agent", &result));
    }
}
