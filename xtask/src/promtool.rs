//! promtool, Prometheus' own check of metrics and alerts: from Debian's package, unpacked into the cache without the server beside it.
//!
//! Knows nothing of our metrics. Not installed: the package would start a Prometheus on this machine.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::apt::Suite;
use crate::paths;
use crate::run::say;

/// What `cargo test` looks at to find it.
pub const VARIABLE: &str = "MPU_PROMTOOL";

const SUITE: &str = "bookworm";

/// The program, fetched now unless the cache has it.
pub fn ready() -> Result<PathBuf> {
    let dir = paths::cache("promtool")?;
    let program = dir.join("promtool");
    if program.is_file() {
        return Ok(program);
    }
    say("fetching promtool (19 MB)");
    let unpacked = dir.join(format!("partial-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&unpacked);
    Suite::open(SUITE)?.unpack(&["prometheus".to_owned()], &unpacked)?;
    std::fs::rename(unpacked.join("usr/bin/promtool"), &program).context("the package prometheus has no promtool")?;
    std::fs::remove_dir_all(&unpacked)?;
    Ok(program)
}
