//! Measures a run by stages in parallel lanes, and keeps each lane's tally.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::guest::verdict::Tally;
use crate::processor;
use crate::run::print_progress;

/// Since when, and what each stage took by the clock and of a processor, in the order of their ends.
pub struct Clock {
    began: Instant,
    took: Mutex<Vec<(&'static str, Duration, Duration)>>,
}

impl Clock {
    pub fn start() -> Self {
        Self { began: Instant::now(), took: Mutex::default() }
    }

    pub fn add(&self, what: &'static str, took: Duration, used: Duration) {
        self.took.lock().unwrap_or_else(PoisonError::into_inner).push((what, took, used));
    }

    /// At the end of all.
    pub fn print(&self) {
        let row = |what: &str, took: Duration, used: Duration| {
            print_progress(format!("{:5} s, {:5} s of a processor: {what}", took.as_secs(), used.as_secs()));
        };
        self.took
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .for_each(|(what, took, used)| row(what, *took, *used));
        row("in all; some stages ran at the same time", self.began.elapsed(), processor::used_in_all());
    }
}

/// What is done one after another, and what came out.
pub struct Lane<'a> {
    clock: &'a Clock,
    now: Option<(&'static str, Instant, Duration)>,
    pub tally: Tally,
}

impl<'a> Lane<'a> {
    pub fn of(clock: &'a Clock) -> Self {
        Self { clock, now: None, tally: Tally::default() }
    }

    pub fn enter(&mut self, what: &'static str) {
        self.leave();
        print_progress(format!("{what}, after {} s", self.clock.began.elapsed().as_secs()));
        self.now = Some((what, Instant::now(), processor::used_by_thread()));
    }

    /// The last stage has ended.
    pub fn end(mut self) -> Tally {
        self.leave();
        std::mem::take(&mut self.tally)
    }

    pub fn leave(&mut self) {
        if let Some((what, began, used)) = self.now.take() {
            self.clock.add(what, began.elapsed(), processor::used_by_thread() - used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Clock, Lane};
    use crate::guest::verdict::Ending;

    #[test]
    fn lanes_record_stages_and_join_tallies() {
        let clock = Clock::start();
        let mut tallies = ["one", "other"].map(|name| {
            let mut lane = Lane::of(&clock);
            lane.enter("first");
            lane.tally.check(name, if name == "one" { Ending::Pass } else { Ending::Fail }, "as it is");
            lane.enter("second");
            lane.end()
        });
        let [one, other] = &mut tallies;
        assert!(!one.is_idle() && one.outcome() == crate::outcome::Outcome::Passed);
        one.join(std::mem::take(other));
        assert!(one.outcome() == crate::outcome::Outcome::Failed, "what failed in the other lane counts");
        let stages: Vec<&str> = clock.took.into_inner().unwrap().into_iter().map(|(what, ..)| what).collect();
        assert_eq!(stages, ["first", "second", "first", "second"]);
    }
}
