//! Runs nvctl, the test caller of the simulated driver, and reads its rows. Source: sim/README.md.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::command::{behind, run};

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u32,
    pub rows: Vec<BTreeMap<String, String>>,
    pub text: String,
}

impl Answer {
    /// The values of a key, sorted, with duplicates.
    pub fn numbers(&self, key: &str) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.rows.iter().filter_map(|row| row.get(key)?.parse().ok()).collect();
        numbers.sort_unstable();
        numbers
    }

    pub fn pids(&self) -> Vec<u32> {
        self.numbers("pid")
    }

    /// The PIDs of the rows, each once.
    pub fn distinct_pids(&self) -> Vec<u32> {
        let mut pids = self.pids();
        pids.dedup();
        pids
    }

    pub fn one(&self, key: &str) -> Result<u64> {
        let value = self.rows.first().and_then(|row| row.get(key));
        value.and_then(|value| value.parse().ok()).with_context(|| format!("nvctl tells no {key}: {}", self.text))
    }
}

/// Runs nvctl or nvctl32 behind a command prefix.
pub fn query(before: &[String], program: &str, arguments: &[&str]) -> Result<Answer> {
    let done = run(&behind(before, &[&[program], arguments].concat()))?;
    // 1: the driver refused the call, which is an answer.
    read(&done.at_most(1).with_context(|| format!("nvctl {arguments:?}"))?)
}

pub fn read(text: &str) -> Result<Answer> {
    let first = text.lines().next().unwrap_or_default();
    let word = |key: &str| first.split(' ').find_map(|word| word.strip_prefix(key));
    let status = word("status=0x").and_then(|value| u32::from_str_radix(value, 16).ok());
    let row = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        words.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
    };
    Ok(Answer {
        status: status.with_context(|| format!("nvctl tells no status: {text}"))?,
        rows: text.lines().skip(1).map(row).collect(),
        text: text.to_owned(),
    })
}
