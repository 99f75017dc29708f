//! The files of a package, as every family of packages has them: what the program stages by itself, and what is said about it.
//!
//! Knows no family: which files one of them has besides is in its own file, and the differences are a table of `check`.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};

use crate::arch::Arch;
use crate::paths;
use crate::run::output;

/// One program with everything that belongs to it, for one kind of machine.
pub struct Package<'a> {
    /// Its name.
    pub name: &'static str,
    /// The machine.
    pub arch: Arch,
    /// Its version.
    pub version: &'a str,
    /// The time that all of it bears, in seconds.
    pub epoch: &'a str,
    /// What is in its program.
    pub bom: &'a str,
    /// Puts its files below a root.
    pub stage: &'a dyn Fn(&Path) -> Result<()>,
}

/// Files of the repository that a package has as they are: package, file, place.
const AS_THEY_ARE: [(&str, &str, &str); 1] =
    [("mpu", "packaging/selinux/mpu.cil", "usr/share/selinux/packages/mpu.cil")];

impl Package<'_> {
    /// Puts what every family has into an emptied folder.
    pub fn lay(&self, tree: &Path) -> Result<()> {
        let _ = std::fs::remove_dir_all(tree);
        std::fs::create_dir_all(tree)?;
        (self.stage)(tree).with_context(|| format!("cannot stage {}'s files", self.name))?;
        let doc = tree.join("usr/share/doc").join(self.name);
        put(&doc.join(format!("{}.cdx.json", self.name)), self.bom.as_bytes(), 0o644)?;
        put(&doc.join("README.md"), &std::fs::read(paths::repo().join("README.md"))?, 0o644)?;
        for (_, file, place) in AS_THEY_ARE.iter().filter(|(package, ..)| *package == self.name) {
            put(&tree.join(place), &std::fs::read(paths::repo().join(file))?, 0o644)?;
        }
        if tree.join("usr/share/man").exists() {
            for page in files(&tree.join("usr/share/man"))? {
                gzip(&page)?;
            }
        }
        Ok(())
    }

    /// A script for the package's manager: a template with what all of them share, in the words of one family.
    pub fn script(&self, family: &str, template: &str) -> Result<String> {
        let folder = paths::repo().join("packaging/scripts");
        let mut shared = String::new();
        for name in ["every", family, self.name] {
            let path = folder.join(format!("{name}.sh"));
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            shared += &(text + "\n");
        }
        Ok(self.filled(&template.replace("@SCRIPTS@\n", &shared)))
    }

    /// A template with this package's own words.
    pub fn filled(&self, template: &str) -> String {
        template
            .replace("@NAME@", self.name)
            .replace("@VERSION@", self.version)
            .replace("@ARCH@", self.arch.facts().debian)
    }
}

/// Writes a file and the folders above it.
pub fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    std::fs::create_dir_all(path.parent().context("no parent")?)?;
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?)
}

/// Every file below a folder, in order of name.
pub fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() && !path.is_symlink() {
                left.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Every folder below one that has nothing in it.
pub fn empty_folders(dir: &Path) -> Result<Vec<PathBuf>> {
    let inside: Vec<PathBuf> = std::fs::read_dir(dir)?.flatten().map(|entry| entry.path()).collect();
    let mut found = if inside.is_empty() { vec![dir.to_owned()] } else { Vec::new() };
    for folder in inside.iter().filter(|path| path.is_dir() && !path.is_symlink()) {
        found.extend(empty_folders(folder)?);
    }
    Ok(found)
}

/// The modes of folders are nobody's umask.
pub fn directories_to_0755(dir: &Path) -> Result<()> {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755))?;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            directories_to_0755(&path)?;
        }
    }
    Ok(())
}

/// A time as `date` writes it.
pub fn date(epoch: &str, format: &str) -> Result<String> {
    let mut date = Command::new("date");
    Ok(output(date.env("LC_ALL", "C").args(["-u", "-d", &format!("@{epoch}"), format]))?.trim().to_owned())
}

/// Packs a file in place, without its name and time.
pub fn gzip(path: &Path) -> Result<()> {
    let bytes = std::fs::read(path)?;
    let mut child = Command::new("gzip").args(["-9n"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().context("no pipe")?.write_all(&bytes)?;
    let packed = child.wait_with_output()?;
    ensure!(packed.status.success(), "gzip failed");
    let to = PathBuf::from(format!("{}.gz", path.display()));
    put(&to, &packed.stdout, 0o644)?;
    Ok(std::fs::remove_file(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The machine's own /run may be mounted in a chroot, and its description with it.
    #[test]
    fn a_removal_in_a_chroot_leaves_the_machines_cdi_file() {
        let folder = tempfile::tempdir().unwrap();
        put(&folder.path().join("mpu-container"), b"#!/bin/sh\necho \"$@\"\n", 0o755).unwrap();
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
