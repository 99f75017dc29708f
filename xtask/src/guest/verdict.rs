//! Reads verdicts off a guest's console, and adds them up into the matrix that `x test` prints.
//!
//! What a line looks like is `mpu_plan`'s. No verdict is a failure.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub use mpu_plan::{Ending, Verdict};

use super::costs::Costs;
use super::job::Job;
use super::qemu::Console;
use crate::outcome::Outcome;
use crate::run::say;

/// So many of what guests did are named with what it cost.
const DEAREST: usize = 10;

pub struct Report {
    pub kernel: String,
    pub verdicts: Vec<Verdict>,
    pub troubles: Vec<String>,
    pub took: Duration,
    pub used: Duration,
    pub costs: Costs,
    pub log: PathBuf,
}

impl Report {
    pub fn read(job: &Job, console: &Console, log: PathBuf) -> Self {
        let verdicts: Vec<Verdict> = console.lines.iter().filter_map(|line| Verdict::read(&line.text)).collect();
        let mut troubles = console.deaths.clone();
        let failed = verdicts.iter().any(|v| v.result == Ending::Fail);
        match console.rc {
            None => troubles.push("the guest ended without a verdict".to_owned()),
            Some(0) if verdicts.is_empty() => troubles.push("the guest ran no story".to_owned()),
            Some(rc) if rc != 0 && !failed => troubles.push(format!("the guest reports {rc}, and no story says why")),
            Some(_) => {}
        }
        Self {
            kernel: job.kernel.clone(),
            verdicts,
            troubles,
            took: console.took,
            used: console.used,
            costs: Costs::of(&console.lines),
            log,
        }
    }
}

impl Report {
    /// Of a guest that nobody heard of, by what it is called.
    pub fn broken(name: String, error: &anyhow::Error) -> Self {
        let troubles = vec![format!("the rig broke: {error:#}")];
        let (took, used, costs) = (Duration::ZERO, Duration::ZERO, Costs::default());
        Self { kernel: name, verdicts: Vec::new(), troubles, took, used, costs, log: PathBuf::new() }
    }

    pub fn is_good(&self) -> bool {
        self.troubles.is_empty() && self.verdicts.iter().all(|verdict| verdict.result != Ending::Fail)
    }

    pub fn summary(&self) -> String {
        let count = |ending| self.verdicts.iter().filter(|verdict| verdict.result == ending).count();
        let [pass, fail, skip] = [Ending::Pass, Ending::Fail, Ending::Skip].map(count);
        format!(
            "{pass} passed, {fail} failed, {skip} skipped, {} troubles, {} s, {} s of a processor",
            self.troubles.len(),
            self.took.as_secs(),
            self.used.as_secs()
        )
    }
}

#[derive(Default)]
pub struct Tally {
    cells: BTreeMap<(String, String, String, String), [usize; 3]>,
    problems: Vec<String>,
    skips: BTreeMap<String, usize>,
    /// By story: why the first row skipped it; none if a row played it.
    unplayed: BTreeMap<String, Option<String>>,
    counts: [usize; 3],
    /// How long the guests of a kernel ran, and what they used.
    took: BTreeMap<String, [Duration; 2]>,
    costs: Costs,
}

impl Tally {
    pub fn add(&mut self, report: &Report) {
        for verdict in &report.verdicts {
            let key = (report.kernel.clone(), verdict.era.clone(), verdict.client.clone(), verdict.engine.clone());
            self.cells.entry(key).or_default()[verdict.result as usize] += 1;
            self.counts[verdict.result as usize] += 1;
            let place = format!(
                "{} on {}, era {}, client {}, engine {}",
                verdict.story, report.kernel, verdict.era, verdict.client, verdict.engine
            );
            let why_not = self.unplayed.entry(verdict.story.clone()).or_insert_with(|| Some(verdict.reason.clone()));
            if verdict.result != Ending::Skip {
                *why_not = None;
            }
            match verdict.result {
                Ending::Pass => {}
                Ending::Fail => self.failed(format!("{place}: {}", verdict.reason)),
                Ending::Skip => *self.skips.entry(verdict.reason.clone()).or_default() += 1,
            }
        }
        for trouble in &report.troubles {
            self.counts[Ending::Fail as usize] += 1;
            self.failed(format!("guest {}: {trouble} (log: {})", report.kernel, report.log.display()));
        }
        let [took, used] = self.took.entry(report.kernel.clone()).or_default();
        *took += report.took;
        *used += report.used;
        self.costs.add(&report.costs);
    }

    pub fn check(&mut self, name: &str, result: Ending, reason: &str) {
        self.counts[result as usize] += 1;
        match result {
            Ending::Pass => {}
            Ending::Fail => self.failed(format!("{name}: {reason}")),
            Ending::Skip => *self.skips.entry(format!("{name}: {reason}")).or_default() += 1,
        }
    }

    /// Counts what another counted, and has said, in.
    pub fn join(&mut self, other: Tally) {
        for (cell, more) in other.cells {
            let counts = self.cells.entry(cell).or_default();
            (0..3).for_each(|one| counts[one] += more[one]);
        }
        (0..3).for_each(|one| self.counts[one] += other.counts[one]);
        self.problems.extend(other.problems);
        for (reason, count) in other.skips {
            *self.skips.entry(reason).or_default() += count;
        }
        for (story, why_not) in other.unplayed {
            let known = self.unplayed.entry(story).or_insert_with(|| why_not.clone());
            if why_not.is_none() {
                *known = None;
            }
        }
        for (kernel, [took, used]) in other.took {
            let sums = self.took.entry(kernel).or_default();
            sums[0] += took;
            sums[1] += used;
        }
        self.costs.add(&other.costs);
    }

    /// Said at once, too: a run may be cut off, and so may its log.
    fn failed(&mut self, what: String) {
        say(format!("FAILED {what}"));
        self.problems.push(what);
    }

    /// The matrix, what went wrong, what was skipped and why, and the line that CI reads.
    pub fn print(&self) {
        if !self.cells.is_empty() {
            println!(
                "\n{:<8} {:<5} {:<12} {:<8} {:>5} {:>5} {:>5}",
                "kernel", "era", "client", "engine", "pass", "fail", "skip"
            );
            for ((kernel, era, client, engine), [pass, fail, skip]) in &self.cells {
                println!("{kernel:<8} {era:<5} {client:<12} {engine:<8} {pass:>5} {fail:>5} {skip:>5}");
            }
            let time = |(kernel, [took, used]): (&String, &[Duration; 2])| {
                format!("{kernel} {} s, {} s of a processor", took.as_secs(), used.as_secs())
            };
            println!("guests ran: {}", self.took.iter().map(time).collect::<Vec<_>>().join("; "));
            println!("of which the dearest {DEAREST}, in seconds of a processor:\n{}", self.costs.dearest(DEAREST));
        }
        for (reason, count) in &self.skips {
            println!("skipped {count}: {reason}");
        }
        for (story, reason) in self.unplayed() {
            println!("played by no row: {story}: {reason}");
        }
        for problem in &self.problems {
            println!("FAILED {problem}");
        }
        let [pass, fail, skip] = self.counts;
        println!("{pass} passed, {fail} failed, {skip} skipped");
    }

    /// Stories that every row skipped, and why the first one did.
    fn unplayed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.unplayed.iter().filter_map(|(story, why_not)| Some((story.as_str(), why_not.as_deref()?)))
    }

    /// Whether all that was counted was skipped, or nothing was.
    pub fn is_idle(&self) -> bool {
        self.counts[Ending::Pass as usize] + self.counts[Ending::Fail as usize] == 0
    }

    pub fn outcome(&self) -> Outcome {
        Outcome::of(self.counts[Ending::Fail as usize] == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::qemu::Line;
    use super::*;

    fn report(lines: &[&str], rc: Option<i32>) -> Report {
        let job = Job { kernel: "6.1".into(), rows: vec![], cpus: 1, limit: Duration::ZERO, redirect: None };
        let lines = lines.iter().map(|line| Line::at_once(line)).collect();
        Report::read(&job, &Console { lines, rc, ..Console::default() }, PathBuf::new())
    }

    #[test]
    fn no_verdict_and_no_story_are_failures() {
        let mut tally = Tally::default();
        tally.add(&report(&["STORY a engine=none era=1 client=5 verdict=pass"], None));
        assert_eq!(tally.outcome(), Outcome::Failed);
        let mut tally = Tally::default();
        tally.add(&report(&[], Some(0)));
        assert_eq!(tally.outcome(), Outcome::Failed);
        let mut tally = Tally::default();
        tally.add(&report(&["STORY a engine=none era=1 client=5 verdict=pass"], Some(0)));
        assert_eq!(tally.outcome(), Outcome::Passed);
    }

    #[test]
    fn a_story_that_every_row_skips_is_named() {
        let mut tally = Tally::default();
        tally.add(&report(
            &[
                "STORY a engine=none era=1 client=5 verdict=skip not here",
                "STORY a engine=module era=1 client=5 verdict=skip nor here",
                "STORY b engine=none era=1 client=5 verdict=skip not here",
                "STORY b engine=module era=1 client=5 verdict=pass",
            ],
            Some(0),
        ));
        assert_eq!(tally.unplayed().collect::<Vec<_>>(), [("a", "not here")]);
    }
}
