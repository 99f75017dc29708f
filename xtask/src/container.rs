//! The executable mpu-container, as releases have it: static, so that it runs in any root and loads nothing from one.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};

use crate::arch::Arch;
use crate::run::{output, run, Once};
use crate::{foreign, lint, paths};

/// Programs that are typed by hand.
const COMPLETED: [&str; 2] = ["nvidia-ctk", "nvidia-container-cli"];

/// Builds it, quickly rather than small, and returns where it is.
pub fn quick(arch: Arch) -> Result<PathBuf> {
    static ONCE: Once = Once::new();
    let quick = [("CARGO_PROFILE_RELEASE_LTO", "off"), ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")];
    ONCE.made(arch.facts().target, || build(arch, &quick, "quick"))
}

fn build(arch: Arch, environment: &[(&str, &str)], name: &str) -> Result<PathBuf> {
    let target = arch.facts().target;
    let dir = paths::target(&format!("container/{name}"))?;
    let mut cargo = lint::cargo();
    cargo.args(["build", "--quiet", "--locked", "--release", "--package", "mpu-container", "--target", target]);
    cargo.arg("--target-dir").arg(&dir).envs(environment.iter().copied());
    cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", "-C target-feature=+crt-static");
    run(cargo.envs(arch.linker())).context("cannot build mpu-container")?;
    let program = dir.join(target).join("release/mpu-container");
    check_static(&program)?;
    Ok(program)
}

/// A program that wants a loader would take libraries from whatever root it runs in.
pub fn check_static(program: &Path) -> Result<()> {
    let headers = output(Command::new("readelf").arg("--program-headers").arg(program))?;
    ensure!(!headers.contains("INTERP"), "{} is not static", program.display());
    Ok(())
}

pub fn stage(arch: Arch, program: &Path, tree: &Path) -> Result<()> {
    let (programs, units) = (tree.join("usr/bin"), tree.join("usr/lib/systemd/system"));
    std::fs::create_dir_all(&programs)?;
    std::fs::create_dir_all(&units)?;
    std::fs::copy(program, programs.join("mpu-container")).context("cannot copy mpu-container")?;
    let installed = programs.join("mpu-container");
    run(foreign::command(arch, &installed)?.arg("links").arg(&programs))?;
    let share = tree.join("usr/share");
    run(foreign::command(arch, &installed)?.args(["man", "--all"]).arg(share.join("man/man1")))?;
    let completions = share.join("bash-completion/completions");
    std::fs::create_dir_all(&completions)?;
    for name in COMPLETED {
        let script = output(foreign::command(arch, &installed)?.args(["completions", "bash", name]))?;
        std::fs::write(completions.join(name), script).with_context(|| format!("cannot write {name}'s completions"))?;
    }
    let unit = "mpu-cdi-refresh.service";
    fs_err::copy(paths::repo().join("packaging/systemd").join(unit), units.join(unit))?;
    Ok(())
}
