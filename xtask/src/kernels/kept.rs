//! Modules of a Debian kernel that a guest is not given by itself, because it has no device for them: taken out of the kernel's package again
//! when something that is loaded there wants them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};

use super::Kernel;
use crate::apt::Suite;
use crate::run::{output, say};

/// The kernel's own modules that `module` wants, and what these want, in the order in which they are loaded. `there` is there by other means.
pub fn wanted_by(kernel: &Kernel, module: &Path, there: &[&str]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for name in wants(module)?.iter().filter(|name| !there.contains(&name.as_str())) {
        take(kernel, name, &mut found)?;
    }
    Ok(found)
}

fn take(kernel: &Kernel, name: &str, found: &mut Vec<PathBuf>) -> Result<()> {
    let kept = kernel.dir.join("kept").join(format!("{name}.ko"));
    if found.contains(&kept) {
        return Ok(());
    }
    if !kept.exists() {
        fetch(kernel, name, &kept)?;
    }
    for other in wants(&kept)? {
        take(kernel, &other, found)?;
    }
    found.push(kept);
    Ok(())
}

fn fetch(kernel: &Kernel, name: &str, kept: &Path) -> Result<()> {
    let package = kernel.stamp.lines().find(|line| line.starts_with("linux-image-"));
    let package = package.with_context(|| format!("kernel {} is none of Debian's packages", kernel.name))?;
    let row = super::table()?.into_iter().find(|row| row.name == kernel.name).context("no such kernel")?;
    say(format!("kernel {}: taking {name} out of its package", kernel.name));
    let unpacked = kernel.dir.join(format!("kept.partial-{}", std::process::id()));
    let bare_name = package.split('=').next().unwrap_or(package).to_owned();
    let versions = Suite::open(&row.suite)?.unpack(&[bare_name], &unpacked)?;
    ensure!(versions == [package], "{} has {versions:?} now, and the kernel is {package}", row.suite);
    // Files are called with either of two signs, modules with one.
    let listed =
        output(Command::new("find").arg(&unpacked).args(["-name", &format!("{}.ko", name.replace('_', "?"))]))?;
    let file = listed.lines().next().with_context(|| format!("{package} has no module {name}"))?;
    std::fs::create_dir_all(kept.parent().context("no folder")?)?;
    std::fs::copy(file, kept)?;
    std::fs::remove_dir_all(&unpacked)?;
    Ok(())
}

fn wants(module: &Path) -> Result<Vec<String>> {
    let told = output(Command::new("/sbin/modinfo").args(["-F", "depends"]).arg(module))?;
    Ok(told.trim().split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect())
}
