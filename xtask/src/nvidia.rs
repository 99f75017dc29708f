//! NVIDIA's user space of `nvidia.toml`: real nvidia-smi and NVML of several releases, unpacked under the cache's `nvidia/<version>/`.
//!
//! Knows nothing of drivers, eras or guests.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Subcommand;
use serde::Deserialize;

use crate::apt::Suite;
use crate::run::say;
use crate::{paths, setup, Outcome};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Makes releases ready: all, or those named
    Fetch { versions: Vec<String> },
}

#[derive(Deserialize)]
struct Table {
    client: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    version: String,
    suite: String,
    packages: Vec<String>,
}

/// The verb.
pub fn nvidia(args: &Args) -> Result<Outcome> {
    let What::Fetch { versions } = &args.what;
    setup::require(setup::KERNELS)?;
    for version in if versions.is_empty() { self::versions()? } else { versions.clone() } {
        println!("{version}: {}", ready(&version)?.display());
    }
    Ok(Outcome::Passed)
}

/// All releases, oldest first.
pub fn versions() -> Result<Vec<String>> {
    Ok(table()?.into_iter().map(|row| row.version).collect())
}

/// The folder with `nvidia-smi` and `libnvidia-ml.so.1` of a release, fetched now unless the cache has it.
pub fn ready(version: &str) -> Result<PathBuf> {
    let rows = table()?;
    let known = || rows.iter().map(|row| row.version.as_str()).collect::<Vec<_>>().join(", ");
    let row = rows.iter().find(|row| row.version == version);
    let row = row.with_context(|| format!("no client {version} in nvidia.toml; it has {}", known()))?;
    let dir = paths::cache("nvidia")?.join(version);
    if dir.join("nvidia-smi").is_file() && dir.join("libnvidia-ml.so.1").is_file() {
        return Ok(dir);
    }
    say(format!("fetching nvidia-smi {version} from {}", row.suite));
    let partial = dir.with_extension(format!("partial-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&partial);
    let unpacked = partial.join("unpacked");
    Suite::open(&row.suite)?.unpack(&row.packages, &unpacked)?;
    keep(&unpacked, version, "nvidia-smi", &partial.join("nvidia-smi"))?;
    let library = keep(&unpacked, version, "libnvidia-ml.so.", &partial.join("libnvidia-ml.so.1"))?;
    if !library.ends_with(version) {
        say(format!("{} has moved past {version}: taking {library}", row.suite));
    }
    std::fs::remove_dir_all(&unpacked)?;
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::rename(&partial, &dir).with_context(|| format!("cannot move {} into place", partial.display()))?;
    Ok(dir)
}

fn table() -> Result<Vec<Row>> {
    Ok(toml::from_str::<Table>(include_str!("../nvidia.toml")).context("nvidia.toml")?.client)
}

/// Copies the one regular file whose name begins so, wherever the packages put it: they name its folder after release or flavour.
/// Returns its name.
fn keep(unpacked: &Path, version: &str, prefix: &str, to: &Path) -> Result<String> {
    let mut left = vec![unpacked.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_wanted = if prefix.ends_with('.') { name.starts_with(prefix) } else { name == prefix };
            // Documentation and 32-bit twins bear the same names.
            let elsewhere =
                ["share", "i386-linux-gnu"].iter().any(|part| entry.path().iter().any(|folder| folder == *part));
            if entry.file_type()?.is_dir() {
                left.push(entry.path());
            } else if entry.file_type()?.is_file() && is_wanted && !elsewhere {
                std::fs::copy(entry.path(), to)?;
                return Ok(name);
            }
        }
    }
    anyhow::bail!("the packages of {version} hold no {prefix}: has the archive moved on? Adjust nvidia.toml")
}
