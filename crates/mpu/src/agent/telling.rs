//! What an agent reports of a node to its cluster, and how often.
//!
//! Owns the reasons, and the time between two Events. One reason has one Event on a node, which counts the repetitions: at
//! once, then rarely, as long as the trouble lasts. Never more than one a minute for each reason, whatever flaps. What an API server does
//! not do, labels or Events, is asked of it after longer and longer pauses: no engine waits for it.

use super::Log;
use crate::cluster::{Cluster, Event};
use mpu_host::config::Asked;
use mpu_host::explain::chain;
use mpu_host::time;
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// There has been no driver for some time.
    WaitsForDriver,
    /// The engine cannot be brought up.
    EngineFailed,
    /// An engine is up, and a container was seen wrong.
    NotRight,
    /// The node's label names no engine.
    EngineLabel,
    /// After one of these, perhaps said by an agent before this one: a container was seen right.
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

    /// How long it must be so before it is reported: a driver comes late at every boot.
    fn after(self) -> u64 {
        match self {
            Reason::WaitsForDriver => 60,
            _ => 0,
        }
    }
}

/// Between two of one reason at least, whatever is in them.
const LEAST: u64 = 60;
/// Seconds until the same Event is repeated; twice as long each time, up to [`LONGEST`]. An API server forgets an Event after an hour.
const AGAIN: u64 = 600;
const LONGEST: u64 = 2400;
/// How often the node's labels are read.
const LABELS: u64 = 60;
/// After a failure the API server is left alone for this long, and then twice as long.
const HOLD_OFF: u64 = 30;
const LONGEST_HOLD_OFF: u64 = 900;

/// The longest part of a reason that is logged.
const LONGEST_WHY: usize = 500;

/// One kind of request, and how it fares: a role that lacks one of them leaves the other as it is.
struct Line {
    fails: &'static str,
    works: &'static str,
    failures: u32,
    quiet_until: u64,
    complaint: String,
}

impl Line {
    fn new(fails: &'static str, works: &'static str) -> Line {
        Line { fails, works, failures: 0, quiet_until: 0, complaint: String::new() }
    }

    fn heard(&mut self, log: Log<'_>) {
        if self.failures > 0 {
            log(self.works);
        }
        (self.failures, self.quiet_until) = (0, 0);
        self.complaint.clear();
    }

    fn unheard(&mut self, log: Log<'_>, now: u64, why: &str) {
        self.quiet_until = now + (HOLD_OFF << self.failures.min(8)).min(LONGEST_HOLD_OFF);
        self.failures += 1;
        let why: String = why.chars().filter(|c| !c.is_control()).take(LONGEST_WHY).collect();
        if self.complaint != why {
            log(&format!("{}: {why}", self.fails));
            self.complaint = why;
        }
    }
}

/// The last Event of a reason.
struct Said {
    event: Event,
    at: u64,
    pause: u64,
    spell: u64,
}

/// Speaks for one agent. Times are the kernel's uptime.
pub struct Telling<'a> {
    cluster: &'a dyn Cluster,
    log: Log<'a>,
    said: BTreeMap<Reason, Said>,
    /// What is so now, since when.
    now: Option<(Reason, u64)>,
    /// Counts the times that something came to be so.
    spell: u64,
    /// An Event is out of date, and no later one corrects it. The Events of an earlier agent are not known: a Warning of
    /// its may stand.
    owes: bool,
    engine: Result<Option<Asked>, String>,
    labels_at: Option<u64>,
    labels: Line,
    events: Line,
}

impl<'a> Telling<'a> {
    pub fn new(cluster: &'a dyn Cluster, log: Log<'a>) -> Telling<'a> {
        Telling {
            cluster,
            log,
            said: BTreeMap::new(),
            now: None,
            spell: 0,
            owes: true,
            engine: Ok(None),
            labels_at: None,
            labels: Line::new("the node's label is not read", "the node's label is read again"),
            events: Line::new("no Events are made on the node", "Events are made on the node again"),
        }
    }

    /// What the node's label asks for, as far as it is known: the last one that could be read.
    pub fn engine(&mut self, now: u64) -> Option<Asked> {
        let is_due = self.labels_at.is_none_or(|at| now >= at + LABELS) && now >= self.labels.quiet_until;
        if is_due {
            match self.cluster.labels() {
                Ok(labels) => {
                    self.labels.heard(self.log);
                    self.labels_at = Some(now);
                    let read = super::label::engine(&labels);
                    if let (Err(wrong), true) = (&read, read != self.engine) {
                        (self.log)(wrong);
                    }
                    self.engine = read;
                }
                Err(error) => self.labels.unheard(self.log, now, &chain(&error)),
            }
        }
        self.engine.clone().ok().flatten()
    }

    /// Says what is so now, if it is time to: why the node is not served, or that it is.
    pub fn tell(&mut self, now: u64, so: Option<(Reason, &str)>) {
        if self.now.map(|(reason, _)| reason) != so.map(|(reason, _)| reason) {
            self.now = so.map(|(reason, _)| (reason, now));
            self.spell += 1;
        }
        if let (Some((reason, words)), Some((_, since))) = (so, self.now) {
            let is_trouble = reason != Reason::Served;
            if now >= since + reason.after() && (is_trouble || self.owes) && self.say(now, reason, words) {
                self.owes = is_trouble;
            }
        }
        if let Err(wrong) = self.engine.clone() {
            self.say(now, Reason::EngineLabel, &format!("{wrong}; until then the chart's engine is used"));
        }
    }

    /// Whether the Event was sent now.
    fn say(&mut self, now: u64, reason: Reason, words: &str) -> bool {
        let before = self.said.get(&reason);
        let is_due = before.is_none_or(|said| {
            let is_same = said.event.message == words && (said.spell == self.spell || reason == Reason::EngineLabel);
            now >= said.at + if is_same { said.pause } else { LEAST }
        });
        if !is_due || now < self.events.quiet_until {
            return false;
        }
        let time = time::now();
        let event = Event {
            reason: reason.name(),
            is_warning: reason.is_warning(),
            message: words.to_string(),
            count: before.map_or(0, |said| said.event.count) + 1,
            first: before.map_or(time, |said| said.event.first),
            last: time,
        };
        let is_again = before.is_some_and(|said| said.event.message == words);
        let pause = before.filter(|_| is_again).map_or(AGAIN, |said| (said.pause * 2).min(LONGEST));
        match self.cluster.event(&event) {
            Ok(()) => {
                self.events.heard(self.log);
                self.said.insert(reason, Said { event, at: now, pause, spell: self.spell });
                true
            }
            Err(error) => {
                self.events.unheard(self.log, now, &chain(&error));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake::Heard;
    use std::cell::RefCell;

    #[test]
    fn same_trouble_is_said_at_once_then_rarely_and_counted() {
        let heard = Heard::default();
        let mut telling = Telling::new(&heard, &|_| ());
        for now in 0..7200 {
            telling.tell(now, Some((Reason::EngineFailed, "no headers")));
        }
        // At 0, 600, 1800 and 4200.
        let counts: Vec<u64> = heard.events.borrow().iter().map(|event| event.count).collect();
        assert_eq!(counts, [1, 2, 3, 4, 5][..counts.len()]);
        assert_eq!(counts.len(), 5, "at 0, 600, 1800, 4200 and 6600 s");
        assert!(heard.events.borrow().iter().all(|event| event.is_warning && event.message == "no headers"));
    }

    #[test]
    fn flapping_state_reports_once_per_minute() {
        let heard = Heard::default();
        let mut telling = Telling::new(&heard, &|_| ());
        for now in 0..600 {
            let words = format!("attempt {now}");
            telling.tell(now, Some((Reason::NotRight, &words)));
        }
        assert_eq!(heard.events.borrow().len(), 10);
        heard.events.borrow_mut().clear();
        for now in (600..1200).step_by(10) {
            telling.tell(now, Some((Reason::NotRight, "wrong")));
            telling.tell(now + 5, Some((Reason::Served, "right")));
        }
        let of = |name| heard.reasons().iter().filter(|reason| **reason == name).count();
        assert!(of("MpuNotRight") <= 10 && of("MpuServed") <= 10, "{:?}", heard.reasons());
    }

    #[test]
    fn served_event_is_sent_once_after_trouble() {
        let heard = Heard::default();
        let mut telling = Telling::new(&heard, &|_| ());
        for now in 0..1000 {
            telling.tell(now, (now > 3).then_some((Reason::Served, "right")));
        }
        assert_eq!(heard.reasons(), ["MpuServed"], "an agent before this one may have said otherwise");
        heard.events.borrow_mut().clear();
        telling.tell(1000, Some((Reason::EngineFailed, "why")));
        for now in 1001..2000 {
            telling.tell(now, Some((Reason::Served, "right")));
        }
        assert_eq!(heard.reasons(), ["MpuEngineFailed", "MpuServed"]);
    }

    #[test]
    fn driver_wait_under_minute_sends_no_event() {
        let heard = Heard::default();
        let mut telling = Telling::new(&heard, &|_| ());
        for now in 0..60 {
            telling.tell(now, Some((Reason::WaitsForDriver, "waiting")));
        }
        assert!(heard.events.borrow().is_empty());
        telling.tell(60, Some((Reason::WaitsForDriver, "waiting")));
        assert_eq!(heard.reasons(), ["MpuWaitsForDriver"]);
        assert!(!heard.events.borrow()[0].is_warning);
    }

    #[test]
    fn wrong_label_is_said_and_the_last_right_one_is_not_kept() {
        let heard = Heard::default();
        let log = RefCell::new(Vec::new());
        let say = |line: &str| log.borrow_mut().push(line.to_string());
        let mut telling = Telling::new(&heard, &say);
        let label = |word: &str| heard.labels.borrow_mut().insert(super::super::label::ENGINE.into(), word.into());
        label("notify");
        assert_eq!(telling.engine(0), Some(Asked::Notify));
        label("notfy");
        assert_eq!(telling.engine(59), Some(Asked::Notify), "it is not read every second");
        assert_eq!(telling.engine(60), None);
        for now in 60..120 {
            telling.engine(now);
            telling.tell(now, None);
        }
        assert_eq!((heard.reasons(), log.borrow().len()), (vec!["MpuEngineLabelInvalid"], 1));
        assert!(heard.events.borrow()[0].message.contains("notfy"), "{:?}", heard.events);
        label("module");
        assert_eq!(telling.engine(121), Some(Asked::Module));
        telling.tell(121, None);
        assert_eq!(heard.events.borrow().len(), 1);
    }

    #[test]
    fn unreachable_api_server_is_retried_rarely() {
        let heard = Heard::default();
        heard.is_down.set(true);
        let log = RefCell::new(Vec::new());
        let say = |line: &str| log.borrow_mut().push(line.to_string());
        let mut telling = Telling::new(&heard, &say);
        for now in 0..3600 {
            telling.engine(now);
            telling.tell(now, Some((Reason::EngineFailed, "why")));
        }
        assert!(heard.asked.get() < 2 * 12, "{} requests in an hour", heard.asked.get());
        assert_eq!(log.borrow().len(), 2, "one for labels, one for Events: {:?}", log.borrow());
        heard.is_down.set(false);
        for now in 3600..4600 {
            telling.engine(now);
            telling.tell(now, Some((Reason::EngineFailed, "why")));
        }
        assert_eq!(heard.reasons()[..1], ["MpuEngineFailed"]);
        assert_eq!(log.borrow().len(), 4, "{:?}", log.borrow());
    }

    #[test]
    fn denied_events_are_retried_rarely() {
        let heard = Heard::default();
        heard.denies_events.set(true);
        let log = RefCell::new(Vec::new());
        let say = |line: &str| log.borrow_mut().push(line.to_string());
        let mut telling = Telling::new(&heard, &say);
        for now in 0..3600 {
            telling.engine(now);
            telling.tell(now, Some((Reason::EngineFailed, "why")));
        }
        assert_eq!(heard.asked.get(), 60, "labels are read once a minute all the same");
        assert!(heard.tried.get() < 12, "{} Events tried in an hour", heard.tried.get());
        assert_eq!(
            log.borrow()[..],
            ["no Events are made on the node: the API server refused an Event: 403: forbidden"]
        );
    }
}
