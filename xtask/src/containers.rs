//! `./x containers`: the tests of mpu-container that need real engines, on the trees of `rig`.
//!
//! Knows nothing of the tests but their name, and how they say that one was skipped.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::arch::Arch;
use crate::guest::verdict::{Ending, Tally};
use crate::outcome::Outcome;
use crate::run::{output, say};
use crate::{container, lint, rig};

#[derive(clap::Args)]
pub struct Args {
    /// Only the tests whose names have this in them
    filter: Option<String>,
    /// Also what takes long
    #[arg(long)]
    full: bool,
    /// Make the trees, print where they are, and run nothing
    #[arg(long)]
    trees: bool,
}

/// The verb.
pub fn containers(args: &Args) -> Result<Outcome> {
    if args.trees {
        println!("{}={}", rig::VARIABLE, rig::ready()?.display());
        return Ok(Outcome::Passed);
    }
    let mut tally = Tally::default();
    check(args.filter.as_deref(), args.full, &mut tally)?;
    tally.print();
    Ok(tally.outcome())
}

/// Times starts of containers with the executable as releases have it.
pub fn bench() -> Result<()> {
    let mut cargo: Command = lint::cargo();
    cargo.args(["test", "--quiet", "--locked", "-p", "mpu-container", "--test", "rig", "--"]);
    cargo.args(["--ignored", "--exact", "--nocapture", "bench::starts"]);
    cargo.env("MPU_CONTAINER", container::quick(Arch::Amd64)?).env(rig::VARIABLE, rig::ready()?);
    let text = output(&mut cargo).context("the starts cannot be timed")?;
    let rows: Vec<&str> =
        text.lines().filter(|line| line.starts_with("start: ") || line.contains("skipped: ")).collect();
    anyhow::ensure!(!rows.is_empty(), "nothing was timed:\n{text}");
    println!("{}", rows.join("\n"));
    Ok(())
}

/// Runs the tests, and counts what was skipped and why.
pub fn check(filter: Option<&str>, full: bool, tally: &mut Tally) -> Result<()> {
    let trees = match rig::ready() {
        Ok(trees) => trees,
        Err(error) => {
            tally.check("containers", Ending::Skip, &format!("{error:#}"));
            return Ok(());
        }
    };
    say("containers");
    let mut cargo: Command = lint::cargo();
    cargo.args(["test", "--quiet", "--locked", "-p", "mpu-container"]);
    cargo.args(["--test", "rig", "--test", "cdi_hooks", "--test", "parity", "--"]);
    // What an image's environment does to a hook, only the static executable of a release can show.
    cargo.args(filter).env("MPU_CONTAINER", container::quick(Arch::Amd64)?);
    if full {
        // Ignored are, besides what takes long, two tools.
        cargo.args(["--include-ignored", "--skip", "plain::script", "--skip", "bench::starts"]);
    }
    // Skips are lines of the tests' own output.
    cargo.args(["--nocapture", "--test-threads=2"]).env(rig::VARIABLE, trees).stdout(Stdio::piped());
    let done = cargo.spawn().and_then(|child| child.wait_with_output()).context("cannot run cargo")?;
    let text = String::from_utf8_lossy(&done.stdout);
    print!("{text}");
    for reason in text.lines().filter_map(|line| line.trim().split_once("skipped: ")) {
        tally.check("containers", Ending::Skip, reason.1);
    }
    tally.check("containers", if done.status.success() { Ending::Pass } else { Ending::Fail }, "see above");
    Ok(())
}
