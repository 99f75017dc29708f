//! The files of a package that both families share. The program stages them itself. `check` has a table of the differences.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::arch::Arch;
use crate::files::{self, write};
use crate::paths;
use crate::run::output;

/// One program's package for one architecture.
pub struct Package<'a> {
    pub name: &'static str,
    pub arch: Arch,
    pub version: &'a str,
    /// The timestamp of all files, in seconds.
    pub epoch: &'a str,
    pub bom: &'a str,
    pub stage: &'a dyn Fn(&Path) -> Result<()>,
}

impl Package<'_> {
    /// Recreates `tree` with the files that both families share.
    pub fn stage_files(&self, tree: &Path) -> Result<()> {
        files::recreate(tree)?;
        (self.stage)(tree).with_context(|| format!("cannot stage {}'s files", self.name))?;
        let doc = tree.join("usr/share/doc").join(self.name);
        write(&doc.join(format!("{}.cdx.json", self.name)), self.bom.as_bytes(), 0o644)?;
        write(&doc.join("README.md"), &std::fs::read(paths::repo().join("README.md"))?, 0o644)?;
        if self.name == "mpu" {
            let policy = std::fs::read(paths::repo().join("packaging/selinux/mpu.cil"))?;
            write(&tree.join("usr/share/selinux/packages/mpu.cil"), policy, 0o644)?;
        }
        if tree.join("usr/share/man").exists() {
            for page in files::below(&tree.join("usr/share/man"))? {
                gzip(&page)?;
            }
        }
        Ok(())
    }

    /// A maintainer script: a template with the functions of both families, of one family, and of the program.
    pub fn script(&self, family: &str, template: &str) -> Result<String> {
        let folder = paths::repo().join("packaging/scripts");
        let mut shared = String::new();
        for name in ["every", family, self.name] {
            shared += &(files::read(&folder.join(format!("{name}.sh")))? + "\n");
        }
        Ok(self.fill(&template.replace("@SCRIPTS@\n", &shared)))
    }

    pub fn fill(&self, template: &str) -> String {
        template
            .replace("@NAME@", self.name)
            .replace("@VERSION@", self.version)
            .replace("@ARCH@", self.arch.facts().debian)
    }
}

/// The empty folders below a folder, and the folder itself if it is empty.
pub fn empty_folders(dir: &Path) -> Result<Vec<PathBuf>> {
    let folders = walkdir::WalkDir::new(dir).into_iter().filter_entry(|entry| entry.file_type().is_dir());
    let mut found = folders.map(|entry| Ok(entry?.into_path())).collect::<Result<Vec<_>>>()?;
    found.retain(|folder| files::entries(folder).is_ok_and(|inside| inside.is_empty()));
    Ok(found)
}

/// Sets all folders to mode 0755, whatever the umask is.
pub fn directories_to_0755(dir: &Path) -> Result<()> {
    for entry in walkdir::WalkDir::new(dir).into_iter().filter_entry(|entry| entry.file_type().is_dir()) {
        fs_err::set_permissions(entry?.path(), std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

pub fn date(epoch: &str, format: &str) -> Result<String> {
    let mut date = Command::new("date");
    Ok(output(date.env("LC_ALL", "C").args(["-u", "-d", &format!("@{epoch}"), format]))?.trim().to_owned())
}

/// Compresses a file in place, without its name and time.
pub fn gzip(path: &Path) -> Result<()> {
    // -f: of a link, gzip compresses its target.
    output(Command::new("gzip").arg("-9nf").arg(path))?;
    let packed = format!("{}.gz", path.display());
    Ok(fs_err::set_permissions(packed, std::fs::Permissions::from_mode(0o644))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The machine's own /run may be mounted in a chroot, and its description with it.
    #[test]
    fn removal_in_chroot_leaves_machines_cdi_file() {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("mpu-container"), b"#!/bin/sh\necho \"$@\"\n", 0o755).unwrap();
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        let scripts = paths::repo().join("packaging/scripts");
        let called = |ours: &str| {
            let script = format!(
                "set -e; cd \"$0\"; . ./every.sh; . ./mpu-container.sh; systemd_runs() {{ false; }}; \
                 kernel_is_ours() {{ {ours}; }}; service_stops"
            );
            output(Command::new("sh").args(["-c", &script]).arg(&scripts).env("PATH", &path)).unwrap()
        };
        assert_eq!(called("true").trim(), "refresh --remove");
        assert_eq!(called("false").trim(), "");
    }
}
