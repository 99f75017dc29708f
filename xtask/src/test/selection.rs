//! Selects parts of the checks by the names of stages or stories.

use std::str::FromStr;

use anyhow::{Result, bail};
use clap::ValueEnum;
use mpu_guest::stories;

use crate::guest::Row;
use crate::guest::real::CLOSED;

/// One part of `x test`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stage {
    /// Formatting and clippy
    Lint,
    /// The Helm chart
    Chart,
    /// `cargo test`
    Host,
    /// OCI runtimes and container engines
    Containers,
    /// Debian and RPM packages
    Packages,
    /// User space built for arm64, emulated
    Arm64,
    /// The module for every kernel
    Modules,
    /// Kernels in guests, with the stories that `x stories` prints
    Guest,
    /// A whole Debian in guests, with the stories of docs/node-stories.md
    Node,
}

/// One of several runs: every `count`th guest, starting with number `first`, counted from 0.
#[derive(Clone, Copy, Debug)]
pub struct Shard {
    first: usize,
    count: usize,
}

impl Shard {
    /// The items of this run.
    pub fn share<T>(self, all: impl IntoIterator<Item = T>) -> Vec<T> {
        all.into_iter().skip(self.first).step_by(self.count).collect()
    }

    /// Whether there are other shards.
    pub fn is_partial(self) -> bool {
        self.count > 1
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(number, count)| Some((number.parse().ok()?, count.parse().ok()?)));
        match parts {
            Some((number, count)) if (1..=count).contains(&number) => Ok(Self { first: number - 1, count }),
            _ => Err("not K/N with K from 1 to N, such as 2/4".to_owned()),
        }
    }
}

/// The selected stages and stories.
pub struct Selection {
    stages: Vec<Stage>,
    /// Stories of guests, by name; all if empty.
    pub stories: Vec<String>,
}

impl Selection {
    /// Everything if `words` is empty. A story selects the stage `guest`.
    pub fn of(words: &[String]) -> Result<Selection> {
        let (mut stages, mut named) = (Vec::new(), Vec::new());
        for word in words {
            match Stage::from_str(word, false) {
                Ok(stage) => stages.push(stage),
                Err(_) if stories::all().any(|story| story.name == word) => named.push(word.clone()),
                Err(_) => {
                    let known: Vec<String> = Stage::value_variants().iter().map(|stage| stage.name()).collect();
                    bail!(
                        "no stage or story is called {word}: stages are {}; `./x stories` prints the stories",
                        known.join(", ")
                    );
                }
            }
        }
        if words.is_empty() {
            stages = Stage::value_variants().to_vec();
        } else if !named.is_empty() && !stages.contains(&Stage::Guest) {
            stages.push(Stage::Guest);
        }
        Ok(Selection { stages, stories: named })
    }

    /// Limits a guest's row to the selected stories. `last` has a separate row, because no other story can run after it. A closed driver can run
    /// only the stories that its row names. False if no story is left.
    pub fn keeps(&self, row: &mut Row, last: &str) -> bool {
        if self.stories.is_empty() {
            return true;
        }
        let is_last = row.stories == [last];
        let is_closed = row.era.ends_with(CLOSED);
        let fits = |story: &&String| (**story == last) == is_last && (!is_closed || row.stories.contains(story));
        row.stories = self.stories.iter().filter(fits).cloned().collect();
        !row.stories.is_empty()
    }

    /// Whether a stage is selected.
    pub fn has(&self, stage: Stage) -> bool {
        self.stages.contains(&stage)
    }
}

impl Stage {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::{Row, Selection, Shard, Stage};

    fn of(words: &[&str]) -> anyhow::Result<Selection> {
        Selection::of(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn empty_selection_has_every_stage() {
        let all = of(&[]).unwrap();
        assert!(
            [Stage::Lint, Stage::Chart, Stage::Host, Stage::Containers, Stage::Modules, Stage::Guest, Stage::Node]
                .into_iter()
                .all(|stage| all.has(stage))
        );
        assert!(all.stories.is_empty());
    }

    #[test]
    fn stage_and_story_selection_run_alone() {
        let lint = of(&["lint"]).unwrap();
        assert!(lint.has(Stage::Lint) && !lint.has(Stage::Host) && !lint.has(Stage::Guest));
        let story = of(&["container_sees_its_own_processes"]).unwrap();
        assert!(story.has(Stage::Guest) && !story.has(Stage::Node) && !story.has(Stage::Lint));
        assert_eq!(story.stories, ["container_sees_its_own_processes"]);
    }

    #[test]
    fn selected_story_stays_in_suitable_rows_only() {
        let row = |era: &str, stories: &[&str]| Row {
            era: era.to_owned(),
            client: String::new(),
            engines: Vec::new(),
            stories: stories.iter().map(|story| (*story).to_owned()).collect(),
            reloads: 1,
        };
        let selection = of(&["either_order_of_loading_is_right"]).unwrap();
        let mut plain = row("4", &[]);
        assert!(selection.keeps(&mut plain, "lock") && plain.stories == ["either_order_of_loading_is_right"]);
        assert!(!selection.keeps(&mut row("4", &["lock"]), "lock"));
        assert!(!selection.keeps(&mut row("1@550.163.01-closed", &["calls"]), "lock"));
        let last = Selection { stages: vec![Stage::Guest], stories: vec!["lock".to_owned()] };
        assert!(!last.keeps(&mut row("4", &[]), "lock") && last.keeps(&mut row("4", &["lock"]), "lock"));
        assert!(of(&[]).unwrap().keeps(&mut row("4", &["lock"]), "lock"));
    }

    #[test]
    fn shards_together_are_the_whole_run() {
        let shard = |number| format!("{number}/3").parse::<Shard>().unwrap();
        let mut all: Vec<u32> = (1..=3).flat_map(|number| shard(number).share(0..10)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
        assert_eq!(shard(2).share(0..10), [1, 4, 7]);
    }

    #[test]
    fn shard_outside_its_count_is_refused() {
        for wrong in ["0/4", "5/4", "1/0", "0/0", "4", "/", "1/x", "-1/4", ""] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn unknown_stage_is_refused_with_valid_names() {
        let fault = of(&["guests"]).err().unwrap().to_string();
        assert!(fault.contains("guests") && fault.contains("containers") && fault.contains("./x stories"), "{fault}");
    }
}
