//! NVIDIA's user space of `nvidia.toml`: real nvidia-smi and NVML of several releases, unpacked under the cache's `nvidia/<version>/`.
//!
//! Knows nothing of drivers, eras or guests.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Subcommand;
use serde::Deserialize;

use crate::apt::Suite;
use crate::arch::Arch;
use crate::outcome::Outcome;
use crate::run::say;
use crate::{paths, setup};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Makes releases ready: all, or those named
    Fetch {
        versions: Vec<String>,
        /// Architecture of the guests
        #[arg(long, default_value = "amd64")]
        arch: Arch,
    },
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
    let What::Fetch { versions, arch } = &args.what;
    setup::require(setup::KERNELS)?;
    for version in if versions.is_empty() { self::versions()? } else { versions.clone() } {
        println!("{version}: {}", ready(&version, *arch)?.display());
    }
    Ok(Outcome::Passed)
}

/// All releases, oldest first.
pub fn versions() -> Result<Vec<String>> {
    Ok(table()?.into_iter().map(|row| row.version).collect())
}

/// The folder with `nvidia-smi` and `libnvidia-ml.so.1` of a release, fetched now unless the cache has it.
pub fn ready(version: &str, arch: Arch) -> Result<PathBuf> {
    let rows = table()?;
    let known = || rows.iter().map(|row| row.version.as_str()).collect::<Vec<_>>().join(", ");
    let row = rows.iter().find(|row| row.version == version);
    let row = row.with_context(|| format!("no client {version} in nvidia.toml; it has {}", known()))?;
    let dir = paths::cache("nvidia")?.join(arch.named(version));
    if dir.join("nvidia-smi").is_file() && dir.join("libnvidia-ml.so.1").is_file() {
        return Ok(dir);
    }
    say(format!("fetching nvidia-smi {} from {}", arch.named(version), row.suite));
    let partial = dir.with_extension(format!("partial-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&partial);
    let unpacked = partial.join("unpacked");
    Suite::open_for(&row.suite, arch)?.unpack(&row.packages, &unpacked)?;
    keep(&unpacked, version, "nvidia-smi", &partial.join("nvidia-smi"))?;
    keep(&unpacked, version, &format!("libnvidia-ml.so.{version}"), &partial.join("libnvidia-ml.so.1"))?;
    std::fs::remove_dir_all(&unpacked)?;
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::rename(&partial, &dir).with_context(|| format!("cannot move {} into place", partial.display()))?;
    Ok(dir)
}

fn table() -> Result<Vec<Row>> {
    Ok(toml::from_str::<Table>(include_str!("../nvidia.toml")).context("nvidia.toml")?.client)
}

/// Copies the one regular file of that name, wherever the packages put it: names its folder after the release or the flavour.
fn keep(unpacked: &Path, version: &str, name: &str, to: &Path) -> Result<()> {
    let mut left = vec![unpacked.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file()
                && entry.file_name() == *name
                && !entry.path().ends_with(format!("share/bug/{name}"))
            {
                std::fs::copy(entry.path(), to)?;
                return Ok(());
            }
        }
    }
    anyhow::bail!("the packages of {version} hold no {name}: has the archive moved on? Adjust nvidia.toml")
}
