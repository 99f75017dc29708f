//! Parses the output of Rust's test harness with `--show-output`: the reasons of skipped tests, and the output of failed ones.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::guest::verdict::{Ending, Tally};
use crate::run::{last_lines, run_to_log};

/// The number of lines shown of a failed test's output.
const SHOWN: usize = 20;

/// Runs `cargo test` with both outputs in a file, and counts it as one check. Returns the whole output.
pub fn check(cargo: &mut Command, name: &str, log: &Path, tally: &mut Tally) -> Result<String> {
    // A backtrace would fill the shown lines.
    let passed = run_to_log(cargo.env("RUST_BACKTRACE", "0"), log)?;
    let text = fs_err::read(log)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    if passed {
        tally.check(name, Ending::Pass, "");
    } else {
        tally.check(name, Ending::Fail, &format!("{}\nall of it: {}", failure_output(&text), log.display()));
    }
    Ok(text)
}

/// The reasons in the lines `skipped: REASON` that tests print.
pub fn skip_reasons(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.trim().strip_prefix("skipped: "))
}

/// The last lines of each failed test's output; of the whole text if no test failed, as after a compiler error.
fn failure_output(text: &str) -> String {
    let mut tests: Vec<Vec<&str>> = Vec::new();
    let mut in_failures = false;
    for line in text.lines() {
        match line {
            // libtest prints it twice: before the tests' output, and before their names.
            "failures:" => in_failures = !in_failures,
            "successes:" => in_failures = false,
            _ if line.starts_with("test result: ") => in_failures = false,
            _ if !in_failures => {}
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
    fn skip_reasons_are_read_from_output() {
        let text =
            "---- a::b stdout ----\nskipped: needs root\n\n  skipped: no perl  \ntest c ... FAILED: skipped: x\n";
        assert_eq!(skip_reasons(text).collect::<Vec<_>>(), ["needs root", "no perl"]);
    }

    #[test]
    fn failure_output_has_last_lines_only() {
        let long: String = (0..50).map(|line| format!("line {line}\n")).collect();
        let text = format!(
            "running 3 tests\n.F.\nsuccesses:\n\n---- good stdout ----\nall is well\n\n\nsuccesses:\n    good\n\nfailures:\n\n\
             ---- bad stdout ----\n{long}thread 'bad' panicked at a.rs:1\n\n---- worse stdout ----\nno\n\n\nfailures:\n    bad\n    worse\n\n\
             test result: FAILED. 1 passed; 2 failed\n\nrunning 1 test\nsuccesses:\n\n---- next stdout ----\nfine\n\ntest result: ok.\n"
        );
        let report = failure_output(&text);
        assert!(report.starts_with("---- bad stdout ----\nline 31\n"), "{report}");
        assert!(report.ends_with("panicked at a.rs:1\n---- worse stdout ----\nno"), "{report}");
        assert_eq!(
            failure_output("error[E0425]: no such name\nerror: could not compile"),
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
