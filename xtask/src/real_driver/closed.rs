//! The closed driver of a release, from Debian's package for DKMS: a kernel-independent object, and the interface to the kernel, which is
//! compiled here. The object's names are not stable, so nothing in it is overridden.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::source::{Driver, build_module, check_compiler, row};
use crate::apt::Suite;
use crate::kernels::Kernel;
use crate::run::{print_progress, run};
use crate::{files, paths, setup};

/// Raised when the cached files change.
const RECIPE: &str = "recipe 1";

/// A file with the package's name and version in the archive: a new revision can have other patches.
const VERSION: &str = "version";

/// dkms.conf, a shell script, lists the patches.
const PATCHED: &str = ". ./dkms.conf; for name in \"${PATCH[@]}\"; do patch -s -p1 -i \"patches/$name\"; done";

/// The package of a release of drivers.toml, unpacked, fetched unless the cache has it.
pub fn fetch(release: &str) -> Result<PathBuf> {
    let row = row(release, true)?;
    files::get_or_make(paths::cache("real-driver")?.join(format!("package-{release}")), Path::is_dir, |partial| {
        print_progress(format!("fetching NVIDIA's closed driver {release} from {}", row.suite));
        let versions = Suite::open(&row.suite)?.unpack(std::slice::from_ref(&row.package), partial)?;
        let is_it = versions.iter().any(|version| version.contains(&format!("={release}-")));
        ensure!(is_it, "{} has {}, and no {release}: adjust drivers.toml", row.suite, versions.join(", "));
        Ok(fs_err::write(partial.join(VERSION), versions.join("\n"))?)
    })
}

/// The driver of a release, built for a kernel unless the cache has it.
pub fn build(kernel: &Kernel, release: &str) -> Result<Driver> {
    check_compiler(kernel)?;
    let package = fetch(release)?;
    let version = files::read(&package.join(VERSION))?;
    let key = files::digest([RECIPE, PATCHED, &kernel.stamp, &version]);
    let cached = paths::cache("real-driver")?.join(format!("closed-{release}-{}-{}", kernel.name, &key[..16]));
    let cached = files::get_or_make(cached, Path::is_dir, |partial| {
        print_progress(format!("building NVIDIA's closed driver {release} for {}, once: some minutes", kernel.release));
        setup::require(setup::KERNELS)?;
        let work = partial.join("tree");
        run(Command::new("cp").arg("-r").arg(sources(&package)?).arg(&work))?;
        // As DKMS does: the patches make an old release build for this kernel.
        run(Command::new("bash").args(["-ec", PATCHED]).env("kernelver", &kernel.release).current_dir(&work))?;
        build_module(kernel, &work, partial)?;
        files::remove(&work)
    })?;
    Ok(Driver { release: release.to_owned(), module: cached.join("nvidia.ko"), internals: None })
}

/// The one folder of sources in a package for DKMS.
fn sources(package: &Path) -> Result<PathBuf> {
    let folder = package.join("usr/src");
    let found = files::entries(&folder)?;
    ensure!(found.len() == 1, "{} holds {} folders of sources", folder.display(), found.len());
    found.into_iter().next().context("no folder of sources")
}
