//! Builds mpu-container as releases do: static, so that it runs in any root and loads nothing from one.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::arch::Arch;
use crate::run::{Once, output, run};
use crate::{files, foreign, lint, paths};

/// Programs that are typed by hand.
const COMPLETED: [&str; 2] = ["nvidia-ctk", "nvidia-container-cli"];

/// Builds it, quickly rather than small, and returns where it is.
pub fn quick(arch: Arch) -> Result<PathBuf> {
    static ONCE: Once = Once::new();
    let target = arch.facts().target;
    ONCE.made(target, || {
        let dir = paths::target("container/quick")?;
        let mut cargo = lint::cargo();
        cargo.args([
            "build",
            "--quiet",
            "--locked",
            "--profile=quick",
            "--package",
            "mpu-container",
            "--target",
            target,
        ]);
        cargo.arg("--target-dir").arg(&dir).env_remove("CARGO_ENCODED_RUSTFLAGS");
        cargo.env("RUSTFLAGS", "-C target-feature=+crt-static").envs(arch.linker());
        run(&mut cargo).context("cannot build mpu-container")?;
        let program = dir.join(target).join("quick/mpu-container");
        check_static(&program)?;
        Ok(program)
    })
}

/// A program that wants a loader would take libraries from whatever root it runs in.
pub fn check_static(program: &Path) -> Result<()> {
    let headers = output(Command::new("readelf").arg("--program-headers").arg(program))?;
    ensure!(!headers.contains("INTERP"), "{} is not static", program.display());
    Ok(())
}

pub fn stage(arch: Arch, program: &Path, tree: &Path) -> Result<()> {
    let (programs, share) = (tree.join("usr/bin"), tree.join("usr/share"));
    let installed = programs.join("mpu-container");
    files::copy(program, &installed)?;
    run(foreign::command(arch, &installed)?.arg("links").arg(&programs))?;
    run(foreign::command(arch, &installed)?.args(["man", "--all"]).arg(share.join("man/man1")))?;
    for name in COMPLETED {
        let script = output(foreign::command(arch, &installed)?.args(["completions", "bash", name]))?;
        files::put(&share.join("bash-completion/completions").join(name), script, 0o644)?;
    }
    let unit = "mpu-cdi-refresh.service";
    let units = tree.join("usr/lib/systemd/system");
    files::copy(&paths::repo().join("packaging/systemd").join(unit), &units.join(unit))
}
