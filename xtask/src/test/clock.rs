//! Measures a run by stages in parallel lanes, and keeps each lane's tally.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::guest::verdict::Tally;
use crate::processor;
use crate::run::print_progress;

/// The start, and each stage's elapsed and processor time, in the order of their ends.
pub struct Clock {
    began: Instant,
    took: Mutex<Vec<(&'static str, Duration, Duration)>>,
}

impl Clock {
    pub fn start() -> Self {
        Self { began: Instant::now(), took: Mutex::default() }
    }

    pub fn add(&self, stage: &'static str, took: Duration, used: Duration) {
        self.took.lock().unwrap_or_else(PoisonError::into_inner).push((stage, took, used));
    }

    /// Prints all stages and the sum.
    pub fn print(&self) {
        let row = |stage: &str, took: Duration, used: Duration| {
            print_progress(format!("{:5} s, {:5} s of a processor: {stage}", took.as_secs(), used.as_secs()));
        };
        self.took
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .for_each(|(stage, took, used)| row(stage, *took, *used));
        row("in all; some stages ran at the same time", self.began.elapsed(), processor::used_in_all());
    }
}

/// Stages that run one after another, with their tally.
pub struct Lane<'a> {
    clock: &'a Clock,
    now: Option<(&'static str, Instant, Duration)>,
    pub tally: Tally,
}

impl<'a> Lane<'a> {
    pub fn of(clock: &'a Clock) -> Self {
        Self { clock, now: None, tally: Tally::default() }
    }

    pub fn enter(&mut self, stage: &'static str) {
        self.leave();
        print_progress(format!("{stage}, after {} s", self.clock.began.elapsed().as_secs()));
        self.now = Some((stage, Instant::now(), processor::used_by_thread()));
    }

    /// Ends the last stage, and returns the tally.
    pub fn end(mut self) -> Tally {
        self.leave();
        std::mem::take(&mut self.tally)
    }

    pub fn leave(&mut self) {
        if let Some((stage, began, used)) = self.now.take() {
            self.clock.add(stage, began.elapsed(), processor::used_by_thread().saturating_sub(used));
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
        let stages: Vec<&str> = clock.took.into_inner().unwrap().into_iter().map(|(stage, ..)| stage).collect();
        assert_eq!(stages, ["first", "second", "first", "second"]);
    }
}
