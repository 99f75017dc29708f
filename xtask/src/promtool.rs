//! Prometheus, and promtool, its checker of metrics and alerts, unpacked from Debian's package into the cache. Not installed: the package
//! would start a Prometheus on this machine.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::apt::Suite;
use crate::run::print_progress;
use crate::{files, paths};

/// The environment variable by which `cargo test` finds promtool.
pub const VARIABLE: &str = "MPU_PROMTOOL";

const SUITE: &str = "bookworm";

pub fn ready() -> Result<PathBuf> {
    Ok(programs()?.join("promtool"))
}

pub fn server() -> Result<PathBuf> {
    Ok(programs()?.join("prometheus"))
}

fn programs() -> Result<PathBuf> {
    files::get_or_make(paths::cache("")?.join("prometheus"), Path::is_dir, |partial| {
        print_progress("fetching Prometheus (19 MB)");
        Suite::open(SUITE)?.unpack_files(&["prometheus"], &["bin/promtool", "bin/prometheus"], partial)
    })
}
