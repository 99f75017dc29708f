//! A Debian package: files that are staged elsewhere, with dpkg's own beside them.
//!
//! Knows no path of an installation but dpkg's. Built by dpkg-deb, so that its format is never ours to follow.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};

use crate::paths;
use crate::run::{have, output, run, say};

/// One package.
pub struct Package<'a> {
    /// Its name.
    pub name: &'a str,
    /// The folder of its templates below packaging/.
    pub templates: &'a str,
    /// What is in its program.
    pub bom: &'a str,
    /// Puts its files below a root.
    pub stage: &'a dyn Fn(&Path) -> Result<()>,
}

/// Packs `NAME_VERSION_amd64.deb` into `out`.
pub fn pack(package: &Package, out: &Path, version: &str, epoch: &str) -> Result<PathBuf> {
    let name = package.name;
    let tree = paths::target("dist")?.join(format!("deb-{name}"));
    let _ = std::fs::remove_dir_all(&tree);
    std::fs::create_dir_all(tree.join("DEBIAN"))?;
    (package.stage)(&tree).with_context(|| format!("cannot stage {name}'s files"))?;
    let date = output(Command::new("date").args(["-u", "-R", "-d", &format!("@{epoch}")]))?;
    let fill = |text: &str, size: &str| {
        let mit = std::fs::read_to_string(paths::repo().join("LICENSES/MIT.txt")).unwrap_or_default();
        text.replace("@DATE@", date.trim())
            .replace("@NAME@", name)
            .replace("@VERSION@", version)
            .replace("@SIZE@", size)
            .replace("@MIT@", mit.trim_end())
    };
    // What packages have in common lies in the first one's folder.
    let template = |file: &str| {
        let own = paths::repo().join("packaging").join(package.templates).join(file);
        let path = if own.exists() { own } else { paths::repo().join("packaging/debian").join(file) };
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let doc = tree.join("usr/share/doc").join(name);
    put(&doc.join("copyright"), fill(&template("copyright")?, "").as_bytes(), 0o644)?;
    put(&doc.join(format!("{name}.cdx.json")), package.bom.as_bytes(), 0o644)?;
    put(&doc.join("README.md"), &std::fs::read(paths::repo().join("README.md"))?, 0o644)?;
    put(&doc.join("changelog"), fill(&template("changelog")?, "").as_bytes(), 0o644)?;
    gzip(&doc.join("changelog"))?;
    put(&tree.join("usr/share/lintian/overrides").join(name), template("lintian-overrides")?.as_bytes(), 0o644)?;
    if tree.join("usr/share/man").exists() {
        for page in files(&tree.join("usr/share/man"))? {
            gzip(&page)?;
        }
    }
    // The executable is among them: a size in KiB, as policy 5.6.20 asks.
    let all = files(&tree)?;
    let size: u64 =
        all.iter().filter_map(|path| Some(std::fs::symlink_metadata(path).ok()?.len().div_ceil(1024))).sum();
    put(&tree.join("DEBIAN/control"), fill(&template("control")?, &size.to_string()).as_bytes(), 0o644)?;
    for script in ["postinst", "prerm", "postrm"] {
        put(&tree.join("DEBIAN").join(script), fill(&template(script)?, "").as_bytes(), 0o755)?;
    }
    let mut sums = String::new();
    let mut configuration = String::new();
    for path in all.iter().filter(|path| !path.starts_with(tree.join("DEBIAN")) && !path.is_symlink()) {
        let name = path.strip_prefix(&tree)?.display();
        if path.starts_with(tree.join("etc")) {
            configuration += &format!("/{name}\n");
        } else {
            let digest: String = md5_of(path)?;
            sums += &format!("{digest}  {name}\n");
        }
    }
    if !configuration.is_empty() {
        put(&tree.join("DEBIAN/conffiles"), configuration.as_bytes(), 0o644)?;
    }
    put(&tree.join("DEBIAN/md5sums"), sums.as_bytes(), 0o644)?;
    directories_to_0755(&tree)?;
    let package = out.join(format!("{name}_{version}_amd64.deb"));
    let mut dpkg = Command::new("dpkg-deb");
    // One thread: with several, xz cuts the data into blocks by their number.
    dpkg.args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"]).arg(&tree).arg(&package);
    run(dpkg.env("SOURCE_DATE_EPOCH", epoch).stdout(Stdio::null())).context("dpkg-deb cannot pack")?;
    lintian(&package)?;
    Ok(package)
}

/// Debian's own checks, if they are installed.
fn lintian(package: &Path) -> Result<()> {
    if !have("lintian") {
        say("no lintian here: the package is not checked by it");
        return Ok(());
    }
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "none", "--display-level", ">=warning", "--no-tag-display-limit"]);
    let said = output(lintian.arg(package))?;
    said.lines().for_each(say);
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("E: ")).collect();
    ensure!(errors.is_empty(), "lintian finds errors:\n{}", errors.join("\n"));
    Ok(())
}

fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    std::fs::create_dir_all(path.parent().context("no parent")?)?;
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?)
}

/// Every file below a folder, in order of name.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
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

fn directories_to_0755(dir: &Path) -> Result<()> {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755))?;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            directories_to_0755(&path)?;
        }
    }
    Ok(())
}

/// Packs a file in place, without its name and time.
fn gzip(path: &Path) -> Result<()> {
    let bytes = std::fs::read(path)?;
    let mut child = Command::new("gzip").args(["-9n"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().context("no pipe")?.write_all(&bytes)?;
    let packed = child.wait_with_output()?;
    ensure!(packed.status.success(), "gzip failed");
    let to = PathBuf::from(format!("{}.gz", path.display()));
    put(&to, &packed.stdout, 0o644)?;
    Ok(std::fs::remove_file(path)?)
}

/// What dpkg --verify compares; a checksum against accidents, not against people.
fn md5_of(path: &Path) -> Result<String> {
    let said = output(Command::new("md5sum").arg(path))?;
    Ok(said.split_whitespace().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    /// Every template of every package.
    fn templates() -> Vec<std::path::PathBuf> {
        let folders = ["packaging/debian", "packaging/debian-container"];
        let files = folders.iter().flat_map(|folder| std::fs::read_dir(crate::paths::repo().join(folder)).unwrap());
        files.map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn every_template_names_only_what_is_filled() {
        for path in templates() {
            let mut text = std::fs::read_to_string(&path).unwrap();
            for name in ["@NAME@", "@VERSION@", "@SIZE@", "@MIT@", "@DATE@", "mpu@users"] {
                text = text.replace(name, "");
            }
            assert!(!text.contains('@'), "{}", path.display());
        }
    }

    #[test]
    fn maintainer_scripts_are_sound_shell() {
        let mut scripts = 0;
        for path in templates().iter().filter(|path| std::fs::read_to_string(path).unwrap().starts_with("#!/bin/sh")) {
            let checked = std::process::Command::new("sh").arg("-n").arg(path).status().unwrap();
            assert!(checked.success(), "{}", path.display());
            scripts += 1;
        }
        assert_eq!(scripts, 6);
    }
}
