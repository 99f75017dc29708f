//! Reads the output of Rust's test harness: why tests were skipped, and the output of failed ones. `--show-output` prints each test's
//! output after the verdicts.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::guest::verdict::{Ending, Tally};
use crate::run::{last_lines, run_to_log};

/// Lines that are shown of what a failed test printed.
const SHOWN: usize = 20;

/// Runs `cargo test` with both outputs in a file, and counts it as one check. All that ran is read, whatever failed; tests that want a
/// failure are not heard. Returns the whole text.
pub fn check(cargo: &mut Command, name: &str, log: &Path, tally: &mut Tally) -> Result<String> {
    // A backtrace is longer than what it says beyond the line of the failure.
    let passed = run_to_log(cargo.env("RUST_BACKTRACE", "0"), log)?;
    let text = fs_err::read(log)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    if passed {
        tally.check(name, Ending::Pass, "");
    } else {
        tally.check(name, Ending::Fail, &format!("{}\nall of it: {}", failed(&text), log.display()));
    }
    Ok(text)
}

/// Why tests were skipped, as they print it. The lines of `libtest` around it are left out.
pub fn skipped(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.trim().strip_prefix("skipped: "))
}

/// The ends of what failed tests printed; of the whole text where none did, as when a test does not compile.
fn failed(text: &str) -> String {
    let mut tests: Vec<Vec<&str>> = Vec::new();
    let mut of_failures = false;
    for line in text.lines() {
        match line {
            // Said twice: before what they printed, and before their names.
            "failures:" => of_failures = !of_failures,
            "successes:" => of_failures = false,
            _ if line.starts_with("test result: ") => of_failures = false,
            _ if !of_failures => {}
            _ if line.starts_with("---- ") && line.ends_with(" stdout ----") => tests.push(vec![line]),
            _ => tests.last_mut().into_iter().for_each(|test| test.push(line)),
        }
    }
    let ends = tests.iter().map(|test| {
        let output = test[1..].join("\n");
        format!("{}\n{}", test[0], last_lines(output.trim(), SHOWN))
    });
    match tests.is_empty() {
        true => last_lines(text, 3 * SHOWN),
        false => ends.collect::<Vec<_>>().join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Outcome;

    #[test]
    fn tests_say_why_they_were_skipped() {
        let text =
            "---- a::b stdout ----\nskipped: needs root\n\n  skipped: no perl  \ntest c ... FAILED: skipped: x\n";
        assert_eq!(skipped(text).collect::<Vec<_>>(), ["needs root", "no perl"]);
    }

    #[test]
    fn only_ends_of_failures_are_shown() {
        let long: String = (0..50).map(|line| format!("line {line}\n")).collect();
        let text = format!(
            "running 3 tests\n.F.\nsuccesses:\n\n---- good stdout ----\nall is well\n\n\nsuccesses:\n    good\n\nfailures:\n\n\
             ---- bad stdout ----\n{long}thread 'bad' panicked at a.rs:1\n\n---- worse stdout ----\nno\n\n\nfailures:\n    bad\n    worse\n\n\
             test result: FAILED. 1 passed; 2 failed\n\nrunning 1 test\nsuccesses:\n\n---- next stdout ----\nfine\n\ntest result: ok.\n"
        );
        let report = failed(&text);
        assert!(report.starts_with("---- bad stdout ----\nline 31\n"), "{report}");
        assert!(report.ends_with("panicked at a.rs:1\n---- worse stdout ----\nno"), "{report}");
        assert_eq!(
            failed("error[E0425]: no such name\nerror: could not compile"),
            "error[E0425]: no such name\nerror: could not compile"
        );
    }

    #[test]
    fn check_counts_failure_and_returns_output() {
        let folder = tempfile::tempdir().unwrap();
        for (code, outcome) in [(0, Outcome::Passed), (1, Outcome::Failed)] {
            let mut tally = Tally::default();
            let mut tests = Command::new("sh");
            tests.args(["-c", &format!("echo skipped: no dog; echo $RUST_BACKTRACE >&2; exit {code}")]);
            let text = check(&mut tests, "dogs", &folder.path().join("log"), &mut tally).unwrap();
            assert_eq!((tally.outcome(), text.as_str()), (outcome, "skipped: no dog\n0\n"));
        }
    }
}
