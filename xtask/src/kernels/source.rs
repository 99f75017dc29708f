//! Builds a kernel once from an archive's source package with a configuration fragment, and checks that kconfig accepted each line.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::run::{build_to_log, last_lines, output};
use crate::{files, paths, run, setup};

/// Two jobs, niced: a build takes a quarter of an hour, and people go on working.
const JOBS: &str = "-j2";

/// KCSAN checks modules only: the kernel's own data races are many, and known.
const UNWATCHED: [&str; 1] = ["KCSAN_SANITIZE=n"];

/// The folders of a built tree that module builds need. The rest is a gigabyte of sources and objects.
const TREE_FOLDERS: [&str; 4] = ["arch", "include", "scripts", "tools"];

/// The options that guests need in every kernel that is built here.
const BASE: &str = "guest.config";

/// The configuration: the guests' options, and the debugging options of the named file.
pub fn fragment(name: &str) -> Result<String> {
    let read = |name: &str| files::read(&paths::repo().join("xtask").join(name));
    Ok(read(BASE)? + &read(name)?)
}

/// The stamp's line with the fragment's digest: another fragment makes another kernel.
pub fn mark(fragment: &str) -> String {
    format!("fragment={}", files::sha256(fragment))
}

/// Builds the source package unpacked below `root` into `tree`, and the kernel into `vmlinux`. Returns the release.
pub fn build(root: &Path, config: &str, tree: &Path, vmlinux: &Path) -> Result<String> {
    setup::require(setup::SOURCES)?;
    let archive = archive(root)?;
    std::fs::create_dir_all(tree)?;
    output(Command::new("tar").arg("-xJf").arg(&archive).arg("-C").arg(tree).arg("--strip-components=1"))?;
    std::fs::remove_file(&archive)?;

    let fragment_text = fragment(config)?;
    let fragment = tree.join("fragment.config");
    std::fs::write(&fragment, &fragment_text)?;
    output(make(tree).arg(format!("KCONFIG_ALLCONFIG={}", fragment.display())).arg("allnoconfig"))?;
    let got = std::fs::read_to_string(tree.join(".config")).context("kconfig left no .config")?;
    let refused = rejected_lines(&fragment_text, &got);
    ensure!(refused.is_empty(), "this source does not take these lines of {config}:\n{}", refused.join("\n"));

    let log = vmlinux.with_extension("log");
    let built = build_to_log(make(tree).args([JOBS, "vmlinux", "modules"]).args(UNWATCHED), &log, "the kernel")?;
    ensure!(built, "the kernel does not build:\n{}", last_lines(&std::fs::read_to_string(&log)?, 40));
    let release = std::fs::read_to_string(tree.join("include/config/kernel.release")).context("no kernel.release")?;
    std::fs::rename(tree.join("vmlinux"), vmlinux).context("the build left no vmlinux")?;
    prune(tree)?;
    Ok(release.trim().to_owned())
}

/// The fragment's lines that are missing in a configuration: kconfig silently drops options with unmet dependencies.
fn rejected_lines<'a>(fragment: &'a str, config: &str) -> Vec<&'a str> {
    let has = |line: &str| config.lines().any(|has| has == line);
    fragment.lines().filter(|line| line.starts_with("CONFIG_") && !has(line)).collect()
}

fn archive(root: &Path) -> Result<PathBuf> {
    let mut files = files::entries(&root.join("usr/src"))?;
    files.retain(|path| path.to_string_lossy().ends_with(".tar.xz"));
    ensure!(files.len() == 1, "a source package holds one .tar.xz, not {}", files.len());
    Ok(files.remove(0))
}

fn make(tree: &Path) -> Command {
    let mut command = run::make(tree);
    command.arg("HOSTCC=gcc-12").env("KBUILD_BUILD_USER", "mpu").env("KBUILD_BUILD_HOST", "guest");
    command
}

/// Deletes what module builds do not need, as Debian's header packages do.
fn prune(tree: &Path) -> Result<()> {
    for (folder, kept) in [("", &TREE_FOLDERS[..]), ("arch", &["x86"]), ("tools", &["objtool"])] {
        for path in files::entries(&tree.join(folder))?.iter().filter(|path| path.is_dir() && !path.is_symlink()) {
            if !kept.iter().any(|name| path.ends_with(name)) {
                files::remove(path)?;
            }
        }
    }
    let is_object = |path: &&PathBuf| [".o", ".a", ".cmd"].iter().any(|end| path.to_string_lossy().ends_with(end));
    let mut objects = [files::below(&tree.join("arch/x86"))?, files::below(&tree.join("tools/objtool"))?].concat();
    for folder in ["", "arch", "tools"] {
        objects.extend(files::entries(&tree.join(folder))?);
    }
    objects.iter().filter(is_object).try_for_each(|path| Ok(fs_err::remove_file(path)?))
}

#[cfg(test)]
mod tests {
    use super::rejected_lines;

    #[test]
    fn config_line_dropped_by_kconfig_is_found() {
        let fragment_text = "# a guard\nCONFIG_KASAN=y\nCONFIG_NR_CPUS=8\n";
        assert!(rejected_lines(fragment_text, "CONFIG_KASAN=y\nCONFIG_NR_CPUS=8\n").is_empty());
        assert_eq!(rejected_lines(fragment_text, "# CONFIG_KASAN is not set\nCONFIG_NR_CPUS=80\n").len(), 2);
    }
}
