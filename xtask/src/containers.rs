//! `./x containers`: runs the tests of mpu-container that need real engines, on the trees of `rig`.

use std::process::Command;

use anyhow::{Context, Result};

use crate::arch::Arch;
use crate::guest::verdict::{Ending, Tally};
use crate::outcome::Outcome;
use crate::programs::Build;
use crate::run::{is_root, output, print_progress, run};
use crate::skips::available;
use crate::{libtest, lint, paths, rig};

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

/// Times starts of containers with the release build.
pub fn bench() -> Result<()> {
    let mut cargo: Command = lint::cargo();
    cargo.args(["test", "--quiet", "--locked", "-p", "mpu-container", "--test", "rig", "--"]);
    cargo.args(["--ignored", "--exact", "--nocapture", "bench::starts"]);
    cargo.env("MPU_CONTAINER", Build::RELEASE.program(Arch::Amd64, "mpu-container")?).env(rig::VARIABLE, rig::ready()?);
    let text = output(&mut cargo).context("the starts cannot be timed")?;
    let rows: Vec<&str> =
        text.lines().filter(|line| line.starts_with("start: ") || line.contains("skipped: ")).collect();
    anyhow::ensure!(!rows.is_empty(), "nothing was timed:\n{text}");
    println!("{}", rows.join("\n"));
    Ok(())
}

/// Runs the tests, and counts skips with their reasons.
pub fn check(filter: Option<&str>, full: bool, tally: &mut Tally) -> Result<()> {
    if !is_root() {
        tally.check("containers", Ending::Skip, rig::ROOT_ONLY);
        return Ok(());
    }
    let Some(trees) = available(tally, "containers", rig::ready()) else { return Ok(()) };
    print_progress("containers");
    let mut cargo: Command = lint::linting_cargo();
    // No `--package`: it would select other features, and compile the libraries again.
    cargo.args(["test", "--quiet", "--locked", "--no-fail-fast"]);
    cargo.args(["--test", "rig", "--test", "cdi_hooks", "--test", "parity", "--"]);
    // Only a static executable, as in releases, shows what an image's environment does to a hook.
    cargo.args(filter).env("MPU_CONTAINER", Build::TESTS.program(Arch::Amd64, "mpu-container")?);
    // The NRI plugin, for a real engine. `--test rig` selects the features of `cargo test`, which has compiled it.
    run(lint::linting_cargo().args(["build", "--quiet", "--locked", "--bin", "mpu", "--test", "rig"]))?;
    cargo.env("MPU_PROGRAM", paths::target("debug")?.join("mpu"));
    if full {
        // Of the ignored tests, two are tools; the others take long.
        cargo.args(["--include-ignored", "--skip", "plain::script", "--skip", "bench::starts"]);
    }
    cargo.args(["--show-output", "--test-threads=2"]).env(rig::VARIABLE, trees);
    let text = libtest::check(&mut cargo, "containers", &paths::target("log")?.join("containers-test.log"), tally)?;
    for reason in libtest::skip_reasons(&text) {
        tally.check("containers", Ending::Skip, reason);
    }
    Ok(())
}
