//! Runs tests of user space for arm64 under QEMU's user emulation. Tests that it cannot run are rows of `xtask/emulated.toml`, each with its
//! reason, counted as skipped. System calls reach this machine's kernel: an arm64 kernel's behaviour is tested in guests.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::process::Command;

use crate::arch::Arch;
use crate::guest::verdict::{Ending, Tally};
use crate::run::{output, print_progress};
use crate::{foreign, libtest, lint, paths, setup};

const TABLE: &str = include_str!("../emulated.toml");

/// The oldest emulator for which the rows hold: older ones lack openat2.
const OLDEST: (u32, u32) = (9, 1);

#[derive(Deserialize)]
struct Table {
    package: BTreeMap<String, Package>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Package {
    /// Whether its tests run every time, or only with `--full`.
    quick: bool,
    #[serde(default)]
    skip: Vec<Skip>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Skip {
    why: String,
    tests: Vec<String>,
}

fn table() -> Result<BTreeMap<String, Package>> {
    Ok(toml::from_str::<Table>(TABLE).context("xtask/emulated.toml is malformed")?.package)
}

pub fn check(full: bool, tally: &mut Tally) -> Result<()> {
    let all = "arm64 user space, emulated";
    if let Err(error) = foreign::require(Arch::Arm64) {
        tally.check(all, Ending::Skip, &format!("nothing is built for arm64 here: {error:#}"));
        return Ok(());
    }
    if foreign::emulator_version(Arch::Arm64)? < OLDEST {
        // Debian 12 has a newer one in its backports.
        let _ = setup::install(&["qemu-user-static"]);
    }
    let version = foreign::emulator_version(Arch::Arm64)?;
    if version < OLDEST {
        let (major, minor) = version;
        tally.check(all, Ending::Skip, &format!("QEMU {major}.{minor} is older than 9.1, and knows no openat2"));
        return Ok(());
    }
    for (name, package) in table()? {
        let label = format!("{name} for arm64, emulated");
        if !package.quick && !full {
            tally.check(&label, Ending::Skip, "minutes of compiling: `./x test --full`");
            continue;
        }
        print_progress(format!("building and running the tests of {label}"));
        run(&name, &package, &label, tally)?;
        for skip in &package.skip {
            let which = format!("{} tests of {name} for arm64", skip.tests.len());
            tally.check(&which, Ending::Skip, &skip.why);
        }
    }
    Ok(())
}

fn run(name: &str, package: &Package, label: &str, tally: &mut Tally) -> Result<()> {
    let skipped: Vec<&str> = package.skip.iter().flat_map(|skip| &skip.tests).map(String::as_str).collect();
    let listed = output(tests(name)?.args(["--", "--list"]))?;
    let known: Vec<&str> = listed.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    ensure!(!known.is_empty(), "{name} has no tests");
    if let Some(gone) = skipped.iter().find(|test| !known.contains(test)) {
        tally.check(label, Ending::Fail, &format!("xtask/emulated.toml skips {gone}, which is no test of {name}"));
        return Ok(());
    }
    let mut command = tests(name)?;
    // A fork beside another thread can hang in QEMU's user emulation: the child waits for a lock that the other thread held.
    command.args(["--", "--test-threads=1"]);
    for test in skipped {
        command.args(["--skip", test]);
    }
    libtest::check(&mut command, label, &paths::target("log")?.join(format!("arm64-{name}.log")), tally).map(drop)
}

/// The unit tests. Tests in `tests/` start programs, which needs binfmt_misc on this machine.
fn tests(name: &str) -> Result<Command> {
    let mut cargo = lint::cargo();
    cargo.args(["test", "--quiet", "--locked", "--lib", "--package", name, "--target", Arch::Arm64.facts().target]);
    // A separate target folder, so that no build waits for the other. No backtraces: resolving their names takes minutes.
    cargo.arg("--target-dir").arg(paths::target("arm64")?).env("RUST_BACKTRACE", "0").env("CARGO_INCREMENTAL", "0");
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
    foreign::configure_cargo(Arch::Arm64, &mut cargo)?;
    Ok(cargo)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test that was renamed or moved would otherwise be missed only where the emulator runs.
    #[test]
    fn every_skipped_test_is_in_its_package() {
        for (name, package) in table().unwrap() {
            for test in package.skip.iter().flat_map(|skip| &skip.tests) {
                let (module, function) = test.rsplit_once("::").unwrap();
                let module = module.strip_suffix("::tests").unwrap_or(module).replace("::", "/");
                let source = paths::repo().join("crates").join(&name).join("src");
                let files = [format!("{module}.rs"), format!("{module}/mod.rs"), format!("{module}/tests.rs")];
                let function = format!("fn {function}(");
                let has_test =
                    |file| std::fs::read_to_string(source.join(file)).is_ok_and(|text| text.contains(&function));
                assert!(files.iter().any(has_test), "xtask/emulated.toml skips {test}, which is no test of {name}");
            }
        }
    }
}
