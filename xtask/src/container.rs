//! Installs mpu-container into a package's tree.

use std::path::Path;

use anyhow::Result;

use crate::arch::Arch;
use crate::run::{output, run};
use crate::{files, foreign, paths};

/// Programs with shell completions.
const COMPLETED: [&str; 2] = ["nvidia-ctk", "nvidia-container-cli"];

pub fn stage(arch: Arch, program: &Path, tree: &Path) -> Result<()> {
    let (programs, share) = (tree.join("usr/bin"), tree.join("usr/share"));
    let installed = programs.join("mpu-container");
    files::copy(program, &installed)?;
    run(foreign::command(arch, &installed)?.arg("links").arg(&programs))?;
    run(foreign::command(arch, &installed)?.args(["man", "--all"]).arg(share.join("man/man1")))?;
    for name in COMPLETED {
        let script = output(foreign::command(arch, &installed)?.args(["completions", "bash", name]))?;
        files::write(&share.join("bash-completion/completions").join(name), script, 0o644)?;
    }
    let unit = "mpu-cdi-refresh.service";
    let units = tree.join("usr/lib/systemd/system");
    files::copy(&paths::repo().join("packaging/systemd").join(unit), &units.join(unit))
}
