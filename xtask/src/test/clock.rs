//! Measures a run by stages in parallel lanes, and keeps each lane's tally.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::guest::verdict::Tally;
use crate::processor;
use crate::run::say;

/// Since when, and what each stage took, in the order of their ends.
pub struct Clock {
    began: Instant,
    took: Mutex<Vec<(String, u64)>>,
}

impl Clock {
    pub fn start() -> Self {
        Self { began: Instant::now(), took: Mutex::default() }
    }

    /// At the end of all.
    pub fn print(&self) {
        for (what, seconds) in self.took.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            say(format!("{seconds:5} s: {what}"));
        }
        let (took, used) = (self.began.elapsed().as_secs(), processor::used_in_all().as_secs());
        say(format!("{took:5} s in all, and {used} s of a processor; some stages ran at the same time"));
    }
}

/// What is done one after another, and what came out.
pub struct Lane<'a> {
    clock: &'a Clock,
    now: Option<(&'static str, Instant)>,
    pub tally: Tally,
}

impl<'a> Lane<'a> {
    pub fn of(clock: &'a Clock) -> Self {
        Self { clock, now: None, tally: Tally::default() }
    }

    pub fn enter(&mut self, what: &'static str) {
        self.leave();
        say(format!("{what}, after {} s", self.clock.began.elapsed().as_secs()));
        self.now = Some((what, Instant::now()));
    }

    /// The last stage has ended.
    pub fn end(mut self) -> Tally {
        self.leave();
        std::mem::take(&mut self.tally)
    }

    fn leave(&mut self) {
        if let Some((what, began)) = self.now.take() {
            let took = (what.to_owned(), began.elapsed().as_secs());
            self.clock.took.lock().unwrap_or_else(PoisonError::into_inner).push(took);
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
        let stages: Vec<String> = clock.took.into_inner().unwrap().into_iter().map(|(what, _)| what).collect();
        assert_eq!(stages, ["first", "second", "first", "second"]);
    }
}
