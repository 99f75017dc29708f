//! The processor time of each story and stage, read from a guest's console and summed over guests.

use std::collections::BTreeMap;
use std::time::Duration;

use mpu_plan::{Ending, STAGE_READY, Verdict};

use super::qemu::Line;

/// Processor time and number of runs, by story or stage.
#[derive(Default)]
pub struct Costs(BTreeMap<String, (Duration, usize)>);

impl Costs {
    /// Each verdict ends a story. The time before a stage is ready is the boot, or the change from the last stage.
    pub fn of(lines: &[Line]) -> Self {
        let mut costs = Self::default();
        let mut before = Duration::ZERO;
        for line in lines {
            let (name, times) = match Verdict::read(&line.text) {
                Some(verdict) => (verdict.story, usize::from(verdict.result != Ending::Skip)),
                None if line.text == STAGE_READY => ("a guest's boot, or a stage's change".to_owned(), 1),
                None => continue,
            };
            costs.count(name, line.used.saturating_sub(before), times);
            before = line.used;
        }
        costs
    }

    pub fn add(&mut self, other: &Self) {
        for (name, (used, times)) in &other.0 {
            self.count(name.clone(), *used, *times);
        }
    }

    pub fn most_expensive(&self, few: usize) -> String {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by_key(|(_, (used, _))| std::cmp::Reverse(*used));
        let line = |(name, (used, times)): &(&String, &(Duration, usize))| {
            format!("{:7.1} {name}, {times} times", used.as_secs_f64())
        };
        all.iter().take(few).map(line).collect::<Vec<_>>().join("\n")
    }

    fn count(&mut self, name: String, used: Duration, times: usize) {
        let (sum, count) = self.0.entry(name).or_default();
        *sum += used;
        *count += times;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_between_verdicts_counts_for_second_story() {
        let line = |used: u64, text: &str| Line { used: Duration::from_secs(used), ..Line::at_once(text) };
        let lines = [
            line(5, "booted"),
            line(7, STAGE_READY),
            line(8, "STORY cheap engine=none era=1 client=5 verdict=pass"),
            line(20, "something said in between"),
            line(30, "STORY dear engine=none era=1 client=5 verdict=fail"),
            line(39, "STORY cheap engine=module era=1 client=5 verdict=pass"),
        ];
        let mut costs = Costs::of(&lines);
        costs.add(&Costs::of(&lines));
        let expected = "   44.0 dear, 2 times\n   20.0 cheap, 4 times";
        assert_eq!(costs.most_expensive(2), expected);
        assert!(costs.most_expensive(3).contains("14.0 a guest's boot"), "{}", costs.most_expensive(3));
    }
}
