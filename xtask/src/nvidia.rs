//! NVIDIA's user space that guests run: unmodified nvidia-smi and NVML of several releases, from the archives' non-free parts, under the
//! cache's `nvidia/<version>/`. They are downloaded to run in tests on this machine; nothing of them is passed on.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::apt::Suite;
use crate::arch::Arch;
use crate::run::print_progress;
use crate::{files, paths};

/// The files kept of a release.
pub const PROGRAMS: [&str; 2] = ["nvidia-smi", "libnvidia-ml.so.1"];

/// Releases, oldest first: the suite and its packages.
const CLIENTS: &[(&str, &str, [&str; 2])] = &[
    ("418.226.00", "bullseye", ["nvidia-tesla-418-smi", "libnvidia-tesla-418-ml1"]),
    ("450.248.02", "bullseye", ["nvidia-tesla-450-smi", "libnvidia-tesla-450-ml1"]),
    ("460.106.00", "bullseye", ["nvidia-tesla-460-smi", "libnvidia-tesla-460-ml1"]),
    ("470.256.02", "bullseye", ["nvidia-smi", "libnvidia-ml1"]),
    ("535.261.03", "bookworm", ["nvidia-smi", "libnvidia-ml1"]),
    ("550.163.01", "trixie", ["nvidia-smi", "libnvidia-ml1"]),
    ("555.58.02", "experimental", ["nvidia-smi", "libnvidia-ml1"]),
];

/// The archive has this release for amd64 only.
const AMD64_ONLY: &str = "418.226.00";

/// The releases for an architecture.
pub fn versions(arch: Arch) -> impl Iterator<Item = &'static str> + Clone {
    CLIENTS.iter().map(|row| row.0).filter(move |version| arch == Arch::Amd64 || *version != AMD64_ONLY)
}

/// The folder with `nvidia-smi` and `libnvidia-ml.so.1` of a release, fetched now unless the cache has it.
pub fn ready(version: &str, arch: Arch) -> Result<PathBuf> {
    let row = CLIENTS.iter().find(|row| row.0 == version && versions(arch).any(|known| known == version));
    let (_, suite, packages) = row.with_context(|| {
        format!(
            "no client {version} for {arch}; xtask/src/nvidia.rs has {}",
            versions(arch).collect::<Vec<_>>().join(", ")
        )
    })?;
    files::get_or_make(paths::cache("nvidia")?.join(arch.named(version)), Path::is_dir, |partial| {
        print_progress(format!("fetching nvidia-smi {} from {suite}", arch.named(version)));
        let [smi, nvml] = PROGRAMS;
        let library = format!("libnvidia-ml.so.{version}");
        Suite::open_for(suite, arch)?.unpack_files(packages, &[smi, &library], partial)?;
        Ok(fs_err::rename(partial.join(library), partial.join(nvml))?)
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Arch, versions};
    use crate::{Cli, Verb};

    /// The default of `x guest --client`.
    #[test]
    fn default_client_is_had_for_every_processor() {
        let Verb::Guest(args) = Cli::parse_from(["x", "guest"]).verb else { panic!("no guest") };
        assert!(Arch::ALL.iter().all(|arch| versions(*arch).any(|version| version == args.client)));
    }
}
