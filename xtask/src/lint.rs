//! Formatting and lints, as `./x test` runs them. Distribution compilers may come without rustfmt or clippy: then the check is skipped
//! with that reason, which the caller counts.

use std::process::Command;

use anyhow::Result;

use crate::outcome::Outcome;
use crate::paths;
use crate::run::{output, passes, say};

/// The newest Rust (1.N) whose lints these sources were read with. A later one may find more, which says nothing about the product.
const NEWEST: u32 = 96;

/// Formats the sources.
pub fn fmt() -> Result<Outcome> {
    Ok(outcome(passes(cargo().args(["fmt", "--all"]))?))
}

/// Checks formatting, then lints; stops at neither.
pub fn lint() -> Result<Outcome> {
    let mut result = Outcome::Passed;
    for check in [formatting()?, lints()?] {
        match check {
            Some(Outcome::Passed) => {}
            Some(Outcome::Failed) => result = Outcome::Failed,
            None => say("a check was skipped: this Rust came without its component, or is newer than 1.96"),
        }
    }
    Ok(result)
}

/// Whether all is formatted; none without rustfmt.
pub fn formatting() -> Result<Option<Outcome>> {
    if output(cargo().args(["fmt", "--version"])).is_err() {
        return Ok(None);
    }
    Ok(Some(outcome(passes(cargo().args(["fmt", "--all", "--check"]))?)))
}

/// Whether clippy is silent; none without clippy, or with one that these sources have not met.
pub fn lints() -> Result<Option<Outcome>> {
    // "clippy 0.1.95 (59807616e1 2026-04-14)"
    let version = output(cargo().args(["clippy", "--version"])).unwrap_or_default();
    let minor = version.split([' ', '.']).nth(3).and_then(|minor| minor.parse().ok());
    if minor.is_none_or(|minor: u32| minor > NEWEST) {
        return Ok(None);
    }
    let host = ["clippy", "--quiet", "--locked", "--all-targets", "--", "-D", "warnings"];
    Ok(Some(outcome(passes(cargo().args(host))?)))
}

/// Cargo, in the repository.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(paths::repo());
    command
}

fn outcome(passed: bool) -> Outcome {
    if passed {
        Outcome::Passed
    } else {
        Outcome::Failed
    }
}
