//! Reads the engine label of a node, finds the pods of rules with a label, and makes Events on the node.
//!
//! Each reason has one Event on a node. It is sent at once, and repeated at growing intervals while the problem lasts,
//! at most once a minute. Failed requests are retried after growing pauses.

use super::Log;
use crate::cluster::{Cluster, Event};
use mpu_host::config::EngineSetting;
use mpu_host::config::pods::Pods;
use mpu_host::explain::chain;
use mpu_host::time;
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// There has been no driver for some time.
    WaitsForDriver,
    /// The engine cannot be brought up.
    EngineFailed,
    /// An engine is up, and a container got wrong answers.
    NotRight,
    /// The node's label names no engine.
    EngineLabel,
    /// A container gets right answers again, after one of the above, which an earlier agent may have sent.
    Served,
}

impl Reason {
    #[cfg(test)]
    pub const ALL: [Reason; 5] =
        [Reason::WaitsForDriver, Reason::EngineFailed, Reason::NotRight, Reason::EngineLabel, Reason::Served];

    /// As `kubectl get events` shows it.
    pub fn name(self) -> &'static str {
        match self {
            Reason::WaitsForDriver => "MpuWaitsForDriver",
            Reason::EngineFailed => "MpuEngineFailed",
            Reason::NotRight => "MpuNotRight",
            Reason::EngineLabel => "MpuEngineLabelInvalid",
            Reason::Served => "MpuServed",
        }
    }

    /// Whether an administrator has to act.
    pub fn is_warning(self) -> bool {
        !matches!(self, Reason::WaitsForDriver | Reason::Served)
    }

    /// Seconds that the state must last before it is reported: at every boot the driver loads late.
    fn after(self) -> u64 {
        match self {
            Reason::WaitsForDriver => 60,
            _ => 0,
        }
    }
}

/// The least number of seconds between two Events of one reason.
const MIN_INTERVAL: u64 = 60;
/// Seconds until the same Event is repeated. Doubles each time, up to [`MAX_REPEAT`]. An API server deletes an Event
/// after an hour.
const FIRST_REPEAT: u64 = 600;
const MAX_REPEAT: u64 = 2400;
/// Seconds between two reads of the node's labels.
const LABEL_INTERVAL: u64 = 60;
/// Seconds between two searches for pods. A restarted monitor has the default view for this long.
pub const POD_INTERVAL: u64 = 15;
/// Seconds until the retry of a failed request. Doubles each time, up to [`MAX_RETRY`].
const FIRST_RETRY: u64 = 30;
const MAX_RETRY: u64 = 900;

/// An error is logged up to this many characters.
const LOGGED_ERROR_LIMIT: usize = 500;

/// The failures of one kind of request. A role may permit one kind and deny another.
struct RequestState {
    failure_line: &'static str,
    recovery_line: &'static str,
    failures: u32,
    retry_at: u64,
    logged_error: String,
}

impl RequestState {
    fn new(failure_line: &'static str, recovery_line: &'static str) -> RequestState {
        RequestState { failure_line, recovery_line, failures: 0, retry_at: 0, logged_error: String::new() }
    }

    fn succeeded(&mut self, log: Log<'_>) {
        if self.failures > 0 {
            log(self.recovery_line);
        }
        (self.failures, self.retry_at) = (0, 0);
        self.logged_error.clear();
    }

    fn failed(&mut self, log: Log<'_>, now: u64, why: &str) {
        self.retry_at = now + (FIRST_RETRY << self.failures.min(8)).min(MAX_RETRY);
        self.failures += 1;
        let why: String = why.chars().filter(|c| !c.is_control()).take(LOGGED_ERROR_LIMIT).collect();
        if self.logged_error != why {
            log(&format!("{}: {why}", self.failure_line));
            self.logged_error = why;
        }
    }
}

/// The last Event of a reason.
struct SentEvent {
    event: Event,
    at: u64,
    pause: u64,
    episode: u64,
}

/// Reports the state of one agent. Times are the kernel's uptime.
pub struct Reporter<'a> {
    cluster: &'a dyn Cluster,
    log: Log<'a>,
    sent: BTreeMap<Reason, SentEvent>,
    /// The present state, and since when.
    now: Option<(Reason, u64)>,
    /// Counts the changes of state.
    episode: u64,
    /// Whether an earlier Event is out of date. True at first, because an earlier agent may have sent a Warning.
    needs_correction: bool,
    engine: Result<Option<EngineSetting>, String>,
    labels_at: Option<u64>,
    labels: RequestState,
    events: RequestState,
    found: Pods,
    found_at: Option<u64>,
    pods: RequestState,
}

impl<'a> Reporter<'a> {
    pub fn new(cluster: &'a dyn Cluster, log: Log<'a>) -> Reporter<'a> {
        Reporter {
            cluster,
            log,
            sent: BTreeMap::new(),
            now: None,
            episode: 0,
            needs_correction: true,
            engine: Ok(None),
            labels_at: None,
            labels: RequestState::new("the node's label is not read", "the node's label is read again"),
            found: Pods::default(),
            found_at: None,
            pods: RequestState::new(
                "the pods of rules with a label are not looked for",
                "the pods of rules with a label are looked for again",
            ),
            events: RequestState::new("no Events are made on the node", "Events are made on the node again"),
        }
    }

    /// Starts with the pods that an earlier agent found.
    pub fn with_pods(mut self, found: Option<Pods>) -> Reporter<'a> {
        self.found = found.unwrap_or_default();
        self
    }

    /// The engine in the node's label. Reads the label again if that is due.
    pub fn engine(&mut self, now: u64) -> Option<EngineSetting> {
        let is_due = self.labels_at.is_none_or(|at| now >= at + LABEL_INTERVAL) && now >= self.labels.retry_at;
        if is_due {
            match self.cluster.labels() {
                Ok(labels) => {
                    self.labels.succeeded(self.log);
                    self.labels_at = Some(now);
                    let read = super::label::parse_engine(&labels);
                    if let (Err(wrong), true) = (&read, read != self.engine) {
                        (self.log)(wrong);
                    }
                    self.engine = read;
                }
                Err(error) => self.labels.failed(self.log, now, &chain(&error)),
            }
        }
        self.engine.clone().ok().flatten()
    }

    /// The pods with these labels in these namespaces, searched again if that is due. None before the first search. If
    /// a search fails, the earlier result stays: a uid never belongs to another pod.
    pub fn pods<'b>(&mut self, now: u64, wanted: impl Iterator<Item = (&'b str, &'b str)>) -> Option<&Pods> {
        if self.found_at.is_none_or(|at| now >= at + POD_INTERVAL) && now >= self.pods.retry_at {
            let (mut found, mut failed) = (false, None);
            for (namespace, label) in wanted {
                match self.cluster.pods(namespace, label) {
                    Ok(uids) => {
                        self.found.set(namespace, label, uids);
                        found = true;
                    }
                    Err(error) => failed = Some(format!("{label} in {namespace}: {}", chain(&error))),
                }
            }
            match &failed {
                Some(why) => self.pods.failed(self.log, now, why),
                None => self.pods.succeeded(self.log),
            }
            // A role may permit one namespace and deny another. The denied one does not delay the search in the other.
            if found || failed.is_none() {
                (self.found_at, self.pods.retry_at) = (Some(now), 0);
            }
        }
        (self.found != Pods::default()).then_some(&self.found)
    }

    /// Sends an Event about the present state, if one is due.
    pub fn report(&mut self, now: u64, state: Option<(Reason, &str)>) {
        if self.now.map(|(reason, _)| reason) != state.map(|(reason, _)| reason) {
            self.now = state.map(|(reason, _)| (reason, now));
            self.episode += 1;
        }
        if let (Some((reason, text)), Some((_, since))) = (state, self.now) {
            let is_problem = reason != Reason::Served;
            if now >= since + reason.after() && (is_problem || self.needs_correction) && self.send(now, reason, text) {
                self.needs_correction = is_problem;
            }
        }
        if let Err(wrong) = self.engine.clone() {
            self.send(now, Reason::EngineLabel, &format!("{wrong}; until then the chart's engine is used"));
        }
    }

    /// Sends an Event, if one is due. Returns whether it was sent.
    fn send(&mut self, now: u64, reason: Reason, text: &str) -> bool {
        let previous = self.sent.get(&reason);
        let is_due = previous.is_none_or(|sent| {
            let is_same = sent.event.message == text && (sent.episode == self.episode || reason == Reason::EngineLabel);
            now >= sent.at + if is_same { sent.pause } else { MIN_INTERVAL }
        });
        if !is_due || now < self.events.retry_at {
            return false;
        }
        let time = time::now();
        // The count continues from an earlier agent's Event, if there is one.
        let before = match previous {
            Some(sent) => Some((sent.event.count, sent.event.first)),
            None => self.cluster.find_event(reason.name()).ok().flatten(),
        };
        let event = Event {
            reason: reason.name(),
            is_warning: reason.is_warning(),
            message: text.to_string(),
            count: before.map_or(0, |(count, _)| count) + 1,
            first: before.map_or(time, |(_, first)| first),
            last: time,
        };
        let is_again = previous.is_some_and(|sent| sent.event.message == text);
        let pause = previous.filter(|_| is_again).map_or(FIRST_REPEAT, |sent| (sent.pause * 2).min(MAX_REPEAT));
        match self.cluster.apply_event(&event) {
            Ok(()) => {
                self.events.succeeded(self.log);
                self.sent.insert(reason, SentEvent { event, at: now, pause, episode: self.episode });
                true
            }
            Err(error) => {
                self.events.failed(self.log, now, &chain(&error));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake::FakeCluster;
    use std::cell::RefCell;

    #[test]
    fn repeated_trouble_is_counted_and_sent_rarely() {
        let cluster = FakeCluster::default();
        let mut reporter = Reporter::new(&cluster, &|_| ());
        for now in 0..7200 {
            reporter.report(now, Some((Reason::EngineFailed, "no headers")));
        }
        let counts: Vec<u64> = cluster.events.borrow().iter().map(|event| event.count).collect();
        assert_eq!(counts, [1, 2, 3, 4, 5], "at 0, 600, 1800, 4200 and 6600 s");
        assert!(cluster.events.borrow().iter().all(|event| event.is_warning && event.message == "no headers"));
    }

    #[test]
    fn restarted_agent_counts_on() {
        let cluster = FakeCluster::default();
        for _ in 0..3 {
            Reporter::new(&cluster, &|_| ()).report(0, Some((Reason::EngineFailed, "no headers")));
        }
        let events = cluster.events.borrow();
        assert_eq!(events.iter().map(|event| event.count).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(events.iter().all(|event| event.first == events[0].first));
    }

    #[test]
    fn flapping_state_reports_once_per_minute() {
        let cluster = FakeCluster::default();
        let mut reporter = Reporter::new(&cluster, &|_| ());
        for now in 0..600 {
            let text = format!("attempt {now}");
            reporter.report(now, Some((Reason::NotRight, &text)));
        }
        assert_eq!(cluster.events.borrow().len(), 10);
        cluster.events.borrow_mut().clear();
        for now in (600..1200).step_by(10) {
            reporter.report(now, Some((Reason::NotRight, "wrong")));
            reporter.report(now + 5, Some((Reason::Served, "right")));
        }
        let of = |name| cluster.reasons().iter().filter(|reason| **reason == name).count();
        assert!(of("MpuNotRight") <= 10 && of("MpuServed") <= 10, "{:?}", cluster.reasons());
    }

    #[test]
    fn served_event_is_sent_once_after_trouble() {
        let cluster = FakeCluster::default();
        let mut reporter = Reporter::new(&cluster, &|_| ());
        for now in 0..1000 {
            reporter.report(now, (now > 3).then_some((Reason::Served, "right")));
        }
        assert_eq!(cluster.reasons(), ["MpuServed"], "an earlier agent may have sent a warning");
        cluster.events.borrow_mut().clear();
        reporter.report(1000, Some((Reason::EngineFailed, "why")));
        for now in 1001..2000 {
            reporter.report(now, Some((Reason::Served, "right")));
        }
        assert_eq!(cluster.reasons(), ["MpuEngineFailed", "MpuServed"]);
    }

    #[test]
    fn driver_wait_under_minute_sends_no_event() {
        let cluster = FakeCluster::default();
        let mut reporter = Reporter::new(&cluster, &|_| ());
        for now in 0..60 {
            reporter.report(now, Some((Reason::WaitsForDriver, "waiting")));
        }
        assert!(cluster.events.borrow().is_empty());
        reporter.report(60, Some((Reason::WaitsForDriver, "waiting")));
        assert_eq!(cluster.reasons(), ["MpuWaitsForDriver"]);
        assert!(!cluster.events.borrow()[0].is_warning);
    }

    #[test]
    fn invalid_label_is_reported_and_replaces_valid_one() {
        let cluster = FakeCluster::default();
        let log = RefCell::new(Vec::new());
        let log_line = |line: &str| log.borrow_mut().push(line.to_string());
        let mut reporter = Reporter::new(&cluster, &log_line);
        let label =
            |word: &str| cluster.labels.borrow_mut().insert(super::super::label::ENGINE_LABEL.into(), word.into());
        label("notify");
        assert_eq!(reporter.engine(0), Some(EngineSetting::Notify));
        label("notfy");
        assert_eq!(reporter.engine(59), Some(EngineSetting::Notify), "it is not read every second");
        assert_eq!(reporter.engine(60), None);
        for now in 60..120 {
            reporter.engine(now);
            reporter.report(now, None);
        }
        assert_eq!((cluster.reasons(), log.borrow().len()), (vec!["MpuEngineLabelInvalid"], 1));
        assert!(cluster.events.borrow()[0].message.contains("notfy"), "{:?}", cluster.events);
        label("module");
        assert_eq!(reporter.engine(121), Some(EngineSetting::Module));
        reporter.report(121, None);
        assert_eq!(cluster.events.borrow().len(), 1);
    }

    fn report_each_second(reporter: &mut Reporter<'_>, seconds: std::ops::Range<u64>) {
        for now in seconds {
            reporter.engine(now);
            reporter.report(now, Some((Reason::EngineFailed, "why")));
        }
    }

    #[test]
    fn failing_requests_are_retried_rarely() {
        let log = RefCell::new(Vec::new());
        let log_line = |line: &str| log.borrow_mut().push(line.to_string());
        let cluster = FakeCluster::default();
        cluster.is_down.set(true);
        let mut reporter = Reporter::new(&cluster, &log_line);
        report_each_second(&mut reporter, 0..3600);
        assert!(cluster.requests.get() < 2 * 12, "{} requests in an hour", cluster.requests.get());
        assert_eq!(log.borrow().len(), 2, "one for labels, one for Events: {:?}", log.borrow());
        cluster.is_down.set(false);
        report_each_second(&mut reporter, 3600..4600);
        assert_eq!(cluster.reasons()[..1], ["MpuEngineFailed"]);
        assert_eq!(log.take().len(), 4);

        let cluster = FakeCluster::default();
        cluster.denies_events.set(true);
        report_each_second(&mut Reporter::new(&cluster, &log_line), 0..3600);
        assert_eq!(cluster.requests.get(), 60, "labels are read once a minute all the same");
        assert!(cluster.event_requests.get() < 12, "{} Events tried in an hour", cluster.event_requests.get());
        assert_eq!(log.take(), ["no Events are made on the node: the API server refused an Event: 403: forbidden"]);
    }
}
