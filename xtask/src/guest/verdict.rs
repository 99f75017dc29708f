//! Reads verdicts from a guest's console, and sums them up for `x test`. A missing verdict is a failure. `mpu_plan` has the format.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub use mpu_plan::{Ending, Verdict};

use super::costs::Costs;
use super::job::Job;
use super::qemu::Console;
use crate::outcome::Outcome;
use crate::run::print_progress;

/// The number of stories and stages printed with their cost.
const MOST_EXPENSIVE: usize = 10;

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
        let mut troubles = console.faults.clone();
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

    /// The report of a guest that could not run.
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
    /// Each with the guest's kernel.
    verdicts: Vec<(String, Verdict)>,
    passed: usize,
    problems: Vec<String>,
    skips: Vec<String>,
    /// Elapsed time and processor time of each kernel's guest.
    took: Vec<(String, [Duration; 2])>,
    costs: Costs,
}

impl Tally {
    pub fn add(&mut self, report: &Report) {
        for verdict in &report.verdicts {
            let Verdict { story, era, client, engine, reason, .. } = verdict;
            match verdict.result {
                Ending::Pass => self.passed += 1,
                Ending::Fail => self.failed(format!(
                    "{story} on {}, era {era}, client {client}, engine {engine}: {reason}",
                    report.kernel
                )),
                Ending::Skip => self.skips.push(reason.clone()),
            }
            self.verdicts.push((report.kernel.clone(), verdict.clone()));
        }
        for trouble in &report.troubles {
            self.failed(format!("guest {}: {trouble} (log: {})", report.kernel, report.log.display()));
        }
        self.took.push((report.kernel.clone(), [report.took, report.used]));
        self.costs.add(&report.costs);
    }

    pub fn check(&mut self, name: &str, result: Ending, reason: &str) {
        match result {
            Ending::Pass => self.passed += 1,
            Ending::Fail => self.failed(format!("{name}: {reason}")),
            Ending::Skip => self.skips.push(format!("{name}: {reason}")),
        }
    }

    /// A check that passes without faults.
    pub fn faults(&mut self, name: &str, faults: &[String]) {
        let result = if faults.is_empty() { Ending::Pass } else { Ending::Fail };
        self.check(name, result, &faults.join("; "));
    }

    /// Adds another tally, whose failures are already printed.
    pub fn join(&mut self, other: Tally) {
        self.verdicts.extend(other.verdicts);
        self.passed += other.passed;
        self.problems.extend(other.problems);
        self.skips.extend(other.skips);
        self.took.extend(other.took);
        self.costs.add(&other.costs);
    }

    /// Prints the failure at once, too: a run, or its log, may be cut off.
    fn failed(&mut self, problem: String) {
        print_progress(format!("FAILED {problem}"));
        self.problems.push(problem);
    }

    /// Prints the matrix, the failures, the skips with reasons, and the line that CI reads.
    pub fn print(&self) {
        if !self.verdicts.is_empty() {
            println!(
                "\n{:<8} {:<5} {:<12} {:<8} {:>5} {:>5} {:>5}",
                "kernel", "era", "client", "engine", "pass", "fail", "skip"
            );
            let mut cells: BTreeMap<_, [usize; 3]> = BTreeMap::new();
            for (kernel, Verdict { era, client, engine, result, .. }) in &self.verdicts {
                cells.entry((kernel, era, client, engine)).or_default()[*result as usize] += 1;
            }
            for ((kernel, era, client, engine), [pass, fail, skip]) in &cells {
                println!("{kernel:<8} {era:<5} {client:<12} {engine:<8} {pass:>5} {fail:>5} {skip:>5}");
            }
            let mut sums: BTreeMap<&str, [Duration; 2]> = BTreeMap::new();
            for (kernel, [took, used]) in &self.took {
                let sum = sums.entry(kernel).or_default();
                *sum = [sum[0] + *took, sum[1] + *used];
            }
            let time = |(kernel, [took, used]): (&&str, &[Duration; 2])| {
                format!("{kernel} {} s, {} s of a processor", took.as_secs(), used.as_secs())
            };
            println!("guests ran: {}", sums.iter().map(time).collect::<Vec<_>>().join("; "));
            println!(
                "of which the dearest {MOST_EXPENSIVE}, in seconds of a processor:\n{}",
                self.costs.most_expensive(MOST_EXPENSIVE)
            );
        }
        let mut skips: BTreeMap<&str, usize> = BTreeMap::new();
        self.skips.iter().for_each(|reason| *skips.entry(reason).or_default() += 1);
        for (reason, count) in skips {
            println!("skipped {count}: {reason}");
        }
        for (story, reason) in self.unplayed() {
            println!("played by no row: {story}: {reason}");
        }
        for problem in &self.problems {
            println!("FAILED {problem}");
        }
        println!("{} passed, {} failed, {} skipped", self.passed, self.problems.len(), self.skips.len());
    }

    /// Prints one guest's report, and returns its outcome.
    pub fn print_one(report: &Report) -> Outcome {
        let mut tally = Tally::default();
        tally.add(report);
        tally.print();
        tally.outcome()
    }

    /// Stories that every row skipped, with the first reason.
    fn unplayed(&self) -> BTreeMap<&str, &str> {
        let (skipped, played): (Vec<_>, Vec<_>) =
            self.verdicts.iter().map(|(_, verdict)| verdict).partition(|verdict| verdict.result == Ending::Skip);
        let mut found = BTreeMap::new();
        for verdict in skipped.iter().filter(|one| !played.iter().any(|other| other.story == one.story)) {
            found.entry(verdict.story.as_str()).or_insert(verdict.reason.as_str());
        }
        found
    }

    /// Whether nothing passed and nothing failed.
    pub fn is_idle(&self) -> bool {
        self.passed + self.problems.len() == 0
    }

    pub fn outcome(&self) -> Outcome {
        Outcome::of(self.problems.is_empty())
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
    fn always_skipped_story_is_unplayed() {
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
        assert_eq!(tally.unplayed().into_iter().collect::<Vec<_>>(), [("a", "not here")]);
    }
}
