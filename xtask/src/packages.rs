//! Checks packages for `./x test`: those that whole Debians install, and with `--full` those for arm64.

use anyhow::Result;

use crate::arch::Arch;
use crate::dist::{self, Release, newer};
use crate::guest::verdict::{Ending, Tally};
use crate::programs::Build;
use crate::{node, paths, skips};

/// Makes the packages, and checks them.
pub fn check(full: bool, tally: &mut Tally) -> Result<()> {
    // lintian and rpmlint can fail while packages are made. Later stages run all the same.
    let Some(out) = skips::available(tally, "packages", node::packages()) else { return Ok(()) };
    let mut results = dist::check::all(&out, &newer()?, env!("CARGO_PKG_VERSION"), &[Arch::Amd64]);
    if full {
        let out = paths::target("dist/arm64")?;
        let release = Release { build: Build::TESTS, arches: vec![Arch::Arm64], key: None };
        release.make(&out)?;
        results.extend(dist::check::all(&out, &newer()?, env!("CARGO_PKG_VERSION"), &release.arches));
    } else {
        tally.check("packages for arm64", Ending::Skip, "minutes of compiling: `./x test --full`");
    }
    results.iter().for_each(|(name, faults)| tally.faults(name, faults));
    Ok(())
}
