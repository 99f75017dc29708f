//! NVIDIA's user space of `nvidia.toml`: real nvidia-smi and NVML of several releases, unpacked under the cache's `nvidia/<version>/`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Subcommand;
use serde::Deserialize;

use crate::apt::Suite;
use crate::arch::Arch;
use crate::outcome::Outcome;
use crate::run::say;
use crate::{files, paths, setup};

/// What is kept of a release.
pub const PROGRAMS: [&str; 2] = ["nvidia-smi", "libnvidia-ml.so.1"];

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Verb,
}

#[derive(Subcommand)]
enum Verb {
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
    /// The one architecture that the archive has it for, where it has not all.
    only: Option<Arch>,
}

impl Row {
    fn is_for(&self, arch: Arch) -> bool {
        self.only.is_none_or(|only| only == arch)
    }
}

pub fn nvidia(args: &Args) -> Result<Outcome> {
    let Verb::Fetch { versions, arch } = &args.what;
    setup::require(setup::KERNELS)?;
    for version in if versions.is_empty() { self::versions(*arch)? } else { versions.clone() } {
        println!("{version}: {}", ready(&version, *arch)?.display());
    }
    Ok(Outcome::Passed)
}

pub fn versions(arch: Arch) -> Result<Vec<String>> {
    Ok(table()?.into_iter().filter(|row| row.is_for(arch)).map(|row| row.version).collect())
}

/// The folder with `nvidia-smi` and `libnvidia-ml.so.1` of a release, fetched now unless the cache has it.
pub fn ready(version: &str, arch: Arch) -> Result<PathBuf> {
    let rows = table()?;
    let row = row_of(&rows, version, arch)?;
    let is_whole = |dir: &Path| PROGRAMS.iter().all(|name| dir.join(name).is_file());
    files::made(paths::cache("nvidia")?.join(arch.named(version)), is_whole, |partial| {
        say(format!("fetching nvidia-smi {} from {}", arch.named(version), row.suite));
        let unpacked = partial.join("unpacked");
        Suite::open_for(&row.suite, arch)?.unpack(&row.packages, &unpacked)?;
        keep(&unpacked, version, "nvidia-smi", &partial.join("nvidia-smi"))?;
        keep(&unpacked, version, &format!("libnvidia-ml.so.{version}"), &partial.join("libnvidia-ml.so.1"))?;
        files::remove(&unpacked)
    })
}

fn row_of<'a>(rows: &'a [Row], version: &str, arch: Arch) -> Result<&'a Row> {
    let known = || rows.iter().filter(|row| row.is_for(arch)).map(|row| row.version.as_str()).collect::<Vec<_>>();
    let row = rows.iter().find(|row| row.version == version && row.is_for(arch));
    row.with_context(|| format!("no client {version} for {arch} in nvidia.toml; it has {}", known().join(", ")))
}

fn table() -> Result<Vec<Row>> {
    Ok(toml::from_str::<Table>(include_str!("../nvidia.toml")).context("nvidia.toml")?.client)
}

/// Copies the one regular file of that name, wherever the packages put it: names its folder after the release or the flavour.
fn keep(unpacked: &Path, version: &str, name: &str, to: &Path) -> Result<()> {
    let is_it = |path: &PathBuf| path.ends_with(name) && !path.ends_with(format!("share/bug/{name}"));
    let found = files::below(unpacked)?.into_iter().find(|path| is_it(path) && !path.is_symlink());
    let found = found.with_context(|| {
        format!("the packages of {version} hold no {name}: has the archive moved on? Adjust nvidia.toml")
    })?;
    files::copy(&found, to)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Arch, row_of, table};
    use crate::{Cli, Verb};

    #[test]
    fn unavailable_client_is_refused_with_alternatives() {
        let rows = table().unwrap();
        assert!(row_of(&rows, "418.226.00", Arch::Amd64).is_ok());
        let fault = row_of(&rows, "418.226.00", Arch::Arm64).err().unwrap().to_string();
        assert!(fault.contains("418.226.00 for arm64") && fault.contains("450.248.02"), "{fault}");
    }

    /// What `x guest` plays if no client is named.
    #[test]
    fn default_client_is_had_for_every_processor() {
        let Verb::Guest(args) = Cli::parse_from(["x", "guest"]).verb else { panic!("no guest") };
        for arch in Arch::ALL {
            row_of(&table().unwrap(), args.client(), arch).unwrap();
        }
    }
}
