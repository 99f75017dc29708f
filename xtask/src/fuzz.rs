//! Runs a target of `fuzz/` for a while. cargo-fuzz needs a nightly compiler; it is not part of `x test`.

use anyhow::{Result, bail};

use crate::outcome::Outcome;
use crate::run::{output, passes};
use crate::{lint, paths};

#[derive(clap::Args)]
pub struct Args {
    /// A target of fuzz/; the first one unless named
    target: Option<String>,
    /// For how many seconds
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

pub fn fuzz(args: &Args) -> Result<Outcome> {
    let dir = paths::repo().join("fuzz");
    if output(lint::cargo().args(["fuzz", "--version"])).is_err() {
        bail!("cargo-fuzz is missing: `cargo install cargo-fuzz --locked`");
    }
    let listed = output(lint::cargo().args(["+nightly", "fuzz", "list"]).current_dir(&dir))?;
    let Some(target) = args.target.as_deref().or_else(|| listed.lines().next()) else { bail!("fuzz/ has no target") };
    let limit = format!("-max_total_time={}", args.seconds);
    let passed = passes(lint::cargo().args(["+nightly", "fuzz", "run", target, "--", &limit]).current_dir(&dir))?;
    Ok(Outcome::of(passed))
}
