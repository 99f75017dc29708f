//! The closed driver of a release, from Debian's package for DKMS: an object that knows no kernel, and around it the side that faces one,
//! which is compiled here.
//!
//! Knows the package's layout. Nothing inside that object has a name that could be relied on, so nothing of it is overridden.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};
use serde::Deserialize;

use super::source::{digest, done, fits, module, Driver};
use crate::apt::Suite;
use crate::kernels::Kernel;
use crate::run::{run, say};
use crate::{paths, setup};

/// Raised when what is kept changes.
const RECIPE: &str = "recipe 1";

/// Beside the unpacked package: its name and its version in the archive, whose revision brings patches.
const VERSION: &str = "version";

/// The package says in a shell's words which patches it wants.
const PATCHED: &str = ". ./dkms.conf; for name in \"${PATCH[@]}\"; do patch -s -p1 -i \"patches/$name\"; done";

#[derive(Deserialize)]
struct Table {
    closed: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    release: String,
    suite: String,
    package: String,
}

/// The package of a release of drivers.toml, unpacked, fetched unless the cache has it.
pub fn fetched(release: &str) -> Result<PathBuf> {
    let rows = toml::from_str::<Table>(include_str!("../../drivers.toml")).context("drivers.toml")?.closed;
    let known = || rows.iter().map(|row| row.release.as_str()).collect::<Vec<_>>().join(", ");
    let row = rows.iter().find(|row| row.release == release);
    let row = row.with_context(|| format!("no closed driver {release} in drivers.toml, which has {}", known()))?;
    let kept = paths::cache("real-driver")?.join(format!("package-{release}"));
    if !kept.join("done").exists() || !kept.join(VERSION).exists() {
        say(format!("fetching NVIDIA's closed driver {release} from {}", row.suite));
        let partial = PathBuf::from(format!("{}.partial", kept.display()));
        let _ = std::fs::remove_dir_all(&partial);
        let versions = Suite::open(&row.suite)?.unpack(std::slice::from_ref(&row.package), &partial)?;
        let is_it = versions.iter().any(|version| version.contains(&format!("={release}-")));
        ensure!(is_it, "{} has {}, and no {release}: adjust drivers.toml", row.suite, versions.join(", "));
        std::fs::write(partial.join(VERSION), versions.join("\n"))?;
        done(&partial, &kept)?;
    }
    Ok(kept)
}

/// The driver of a release, built for a kernel unless the cache has it.
pub fn built(kernel: &Kernel, release: &str) -> Result<Driver> {
    fits(kernel)?;
    let package = fetched(release)?;
    let version = super::parts::read(&package.join(VERSION))?;
    let key = digest(&[RECIPE, PATCHED, &kernel.stamp, &version].map(|part| part.as_bytes().to_vec()));
    let kept = paths::cache("real-driver")?.join(format!("closed-{release}-{}-{}", kernel.name, &key[..16]));
    if !kept.join("done").exists() {
        say(format!("building NVIDIA's closed driver {release} for {}, once: some minutes", kernel.release));
        setup::require(setup::KERNELS)?;
        let partial = PathBuf::from(format!("{}.partial", kept.display()));
        let _ = std::fs::remove_dir_all(&partial);
        std::fs::create_dir_all(&partial)?;
        let work = partial.join("tree");
        run(Command::new("cp").arg("-r").arg(sources(&package)?).arg(&work))?;
        // What DKMS does with the package: its patches are what lets an old release fit to this kernel.
        run(Command::new("bash").args(["-ec", PATCHED]).env("kernelver", &kernel.release).current_dir(&work))?;
        module(kernel, &work, &partial)?;
        std::fs::remove_dir_all(&work)?;
        done(&partial, &kept)?;
    }
    Ok(Driver { release: release.to_owned(), module: kept.join("nvidia.ko"), inside: None })
}

/// The one folder of sources in a package for DKMS.
fn sources(package: &Path) -> Result<PathBuf> {
    let folder = package.join("usr/src");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let found: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    ensure!(found.len() == 1, "{} holds {} folders of sources", folder.display(), found.len());
    found.into_iter().next().context("no folder of sources")
}
