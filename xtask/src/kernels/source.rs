//! A kernel of our own: an archive's source package, configured by a fragment that lies here, built once.
//!
//! Knows which lines a fragment may ask for and how to tell that kconfig took them; knows nothing of what the options are for.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};
use sha2::{Digest, Sha256};

use crate::run::{output, tail, watched};
use crate::{paths, setup};

/// Two at a time, behind everything else: a build takes a quarter of an hour, and people go on working.
const JOBS: &str = "-j2";

/// Data races are looked for in modules alone: the kernel's own are many, and known.
const UNWATCHED: [&str; 1] = ["KCSAN_SANITIZE=n"];

/// What building a module needs of a built tree, by the folders that stay; everything else is a gigabyte of sources and objects.
const KEPT: [&str; 4] = ["arch", "include", "scripts", "tools"];

/// What every guest needs of a kernel that is built here.
const BASE: &str = "guest.config";

/// The configuration: what guests need, and the guards of the named file.
pub fn fragment(name: &str) -> Result<String> {
    let read = |name: &str| {
        let path = paths::repo().join("xtask").join(name);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    Ok(read(BASE)? + &read(name)?)
}

/// A line for the kernel's stamp: another fragment is another kernel.
pub fn mark(fragment: &str) -> String {
    let digest: String = Sha256::digest(fragment.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("fragment={digest}")
}

/// Builds the source package unpacked below `root` into `tree`, with `vmlinux` beside it, and returns what `uname -r` will say.
pub fn build(root: &Path, config: &str, tree: &Path, vmlinux: &Path) -> Result<String> {
    setup::require(setup::SOURCES)?;
    let archive = archive(root)?;
    std::fs::create_dir_all(tree)?;
    output(Command::new("tar").arg("-xJf").arg(&archive).arg("-C").arg(tree).arg("--strip-components=1"))?;
    std::fs::remove_file(&archive)?;

    let wanted = fragment(config)?;
    let fragment = tree.join("fragment.config");
    std::fs::write(&fragment, &wanted)?;
    output(make(tree).arg(format!("KCONFIG_ALLCONFIG={}", fragment.display())).arg("allnoconfig"))?;
    let got = std::fs::read_to_string(tree.join(".config")).context("kconfig left no .config")?;
    let refused = refused(&wanted, &got);
    ensure!(refused.is_empty(), "this source does not take these lines of {config}:\n{}", refused.join("\n"));

    let log = vmlinux.with_extension("log");
    let built = watched(make(tree).args([JOBS, "vmlinux", "modules"]).args(UNWATCHED), &log, "the kernel", 250)?;
    ensure!(built, "the kernel does not build:\n{}", tail(&std::fs::read_to_string(&log)?, 40));
    let release = std::fs::read_to_string(tree.join("include/config/kernel.release")).context("no kernel.release")?;
    std::fs::rename(tree.join("vmlinux"), vmlinux).context("the build left no vmlinux")?;
    prune(tree)?;
    Ok(release.trim().to_owned())
}

/// Lines of a fragment that a configuration does not have: kconfig leaves out what misses a dependency, without a word.
fn refused<'a>(fragment: &'a str, config: &str) -> Vec<&'a str> {
    let has = |line: &str| config.lines().any(|has| has == line);
    fragment.lines().filter(|line| line.starts_with("CONFIG_") && !has(line)).collect()
}

fn archive(root: &Path) -> Result<PathBuf> {
    let folder = root.join("usr/src");
    let files = std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files = files.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|path| path.to_string_lossy().ends_with(".tar.xz"));
    match &files[..] {
        [one] => Ok(one.clone()),
        others => bail!("a source package holds one .tar.xz, not {}", others.len()),
    }
}

fn make(tree: &Path) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "10", "make", "-C"]).arg(tree).args(["CC=gcc-12", "HOSTCC=gcc-12"]);
    command.env("LC_ALL", "C").env("KBUILD_BUILD_USER", "mpu").env("KBUILD_BUILD_HOST", "guest");
    command.env_remove("MAKEFLAGS").env_remove("CC");
    command
}

/// Leaves what modules are built against, as Debian's header packages do.
fn prune(tree: &Path) -> Result<()> {
    remove_but(tree, |name, is_folder| !is_folder || KEPT.contains(&name))?;
    remove_but(&tree.join("arch"), |name, is_folder| !is_folder || name == "x86")?;
    remove_but(&tree.join("tools"), |name, is_folder| !is_folder || name == "objtool")?;
    for folder in ["arch/x86", "tools/objtool"] {
        objects(&tree.join(folder))?;
    }
    Ok(())
}

fn remove_but(folder: &Path, stays: impl Fn(&str, bool) -> bool) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let is_folder = entry.file_type()?.is_dir();
        let name = entry.file_name().to_string_lossy().into_owned();
        if stays(&name, is_folder) && !is_object(&name) {
            continue;
        }
        let path = entry.path();
        if is_folder { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) }
            .with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

fn objects(folder: &Path) -> Result<()> {
    let mut left = vec![folder.to_owned()];
    while let Some(folder) = left.pop() {
        remove_but(&folder, |_, _| true)?;
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                left.push(entry.path());
            }
        }
    }
    Ok(())
}

fn is_object(name: &str) -> bool {
    [".o", ".a", ".cmd"].iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::{fragment, mark, refused};

    #[test]
    fn a_line_that_kconfig_leaves_out_is_found() {
        let wanted = "# a guard\nCONFIG_KASAN=y\nCONFIG_NR_CPUS=8\n";
        assert!(refused(wanted, "CONFIG_KASAN=y\nCONFIG_NR_CPUS=8\n").is_empty());
        assert_eq!(refused(wanted, "# CONFIG_KASAN is not set\nCONFIG_NR_CPUS=80\n").len(), 2);
    }

    #[test]
    fn another_fragment_is_another_kernel() {
        assert_eq!(mark("CONFIG_A=y\n"), mark("CONFIG_A=y\n"));
        assert_ne!(mark("CONFIG_A=y\n"), mark("CONFIG_B=y\n"));
    }

    #[test]
    fn kernels_have_guards_that_pages_name() {
        let of_debug =
            ["KASAN", "SLUB_DEBUG_ON", "PROVE_LOCKING", "PROVE_RCU", "DEBUG_ATOMIC_SLEEP", "FAILSLAB", "PREEMPT"];
        for (config, guards) in [("debug.config", &of_debug[..]), ("kcsan.config", &["KCSAN", "PREEMPT", "MODULES"])] {
            let text = fragment(config).unwrap();
            for guard in guards {
                assert!(text.lines().any(|line| line == format!("CONFIG_{guard}=y")), "{config}: {guard}");
            }
        }
    }
}
