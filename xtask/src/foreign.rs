//! Builds programs for another architecture, and runs them here in an emulator.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::arch::Arch;
use crate::run::{find_program, output};
use crate::setup;

pub fn require(arch: Arch) -> Result<()> {
    if arch == Arch::Amd64 {
        return Ok(());
    }
    [setup::ARM64, setup::ARM64_OBJECTS, setup::EMULATED].into_iter().try_for_each(setup::require)?;
    setup::rust_target(arch)
}

/// Kills a test program that hangs: all tests of a crate take a minute or two.
const LIMIT: &str = "timeout --foreground --kill-after=5 900";

/// Sets cargo's linker and runner for an architecture.
pub fn configure_cargo(arch: Arch, cargo: &mut Command) -> Result<()> {
    let emulator = emulator(arch)?;
    if !emulator.is_empty() {
        let target = arch.facts().target.replace('-', "_").to_uppercase();
        cargo
            .envs(arch.linker())
            .env(format!("CARGO_TARGET_{target}_RUNNER"), format!("{LIMIT} {}", emulator.join(" ")));
    }
    Ok(())
}

/// The command that starts a program of an architecture here.
pub fn command(arch: Arch, program: &Path) -> Result<Command> {
    let mut words = emulator(arch)?.into_iter();
    let Some(first) = words.next() else { return Ok(Command::new(program)) };
    let mut command = Command::new(first);
    command.args(words).arg(program);
    Ok(command)
}

pub fn emulator_version(arch: Arch) -> Result<(u32, u32)> {
    let words = emulator(arch)?;
    let program = words.first().context("what is at home is not emulated")?;
    let output_text = output(Command::new(program).arg("--version"))?;
    version_in(&output_text).with_context(|| format!("{program} does not say its version: {output_text}"))
}

/// "qemu-aarch64 version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1)"
fn version_in(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(' ').nth(2)?.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Checks a program's architecture: otherwise a wrong one would be noticed on a node only.
pub fn check_machine(arch: Arch, program: &Path) -> Result<()> {
    let expected = arch.facts().elf;
    let header = output(Command::new("readelf").arg("--file-header").arg(program))?;
    let machine = header.lines().find_map(|line| line.trim().strip_prefix("Machine:")).unwrap_or("no machine").trim();
    ensure!(machine == expected, "{} is for {machine}, not for {expected}", program.display());
    Ok(())
}

/// The command prefix that starts a program here; empty for this machine's architecture.
fn emulator(arch: Arch) -> Result<Vec<String>> {
    if arch == Arch::Amd64 {
        return Ok(Vec::new());
    }
    // Debian 13 calls the same program by the name without "static".
    let names = ["-static", ""].map(|end| format!("qemu-{}{end}", arch.facts().machine_name));
    let found = names.iter().find_map(|name| find_program(name));
    let emulator = found.with_context(|| format!("no {} here: install qemu-user-static", names[0]))?;
    Ok(vec![emulator.display().to_string(), "-L".into(), format!("/usr/{}", arch.facts().multiarch)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_of_other_architecture_is_rejected() {
        let this = std::env::current_exe().unwrap();
        assert!(check_machine(Arch::Amd64, &this).is_ok());
        let refused = check_machine(Arch::Arm64, &this).unwrap_err().to_string();
        assert!(refused.ends_with("is for Advanced Micro Devices X86-64, not for AArch64"), "{refused}");
    }
}
