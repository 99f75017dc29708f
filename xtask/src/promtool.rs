//! promtool, Prometheus' checker of metrics and alerts, unpacked from Debian's package into the cache. Not installed: the package would
//! start a Prometheus on this machine.

use std::path::PathBuf;

use anyhow::Result;

use crate::apt::Suite;
use crate::run::say;
use crate::{files, paths};

/// What `cargo test` looks at to find it.
pub const VARIABLE: &str = "MPU_PROMTOOL";

const SUITE: &str = "bookworm";

pub fn ready() -> Result<PathBuf> {
    let dir = files::made(
        paths::cache("")?.join("promtool"),
        |dir| dir.join("promtool").is_file(),
        |partial| {
            say("fetching promtool (19 MB)");
            let unpacked = partial.join("unpacked");
            Suite::open(SUITE)?.unpack(&["prometheus".to_owned()], &unpacked)?;
            fs_err::rename(unpacked.join("usr/bin/promtool"), partial.join("promtool"))?;
            files::remove(&unpacked)
        },
    )?;
    Ok(dir.join("promtool"))
}
