//! Uses a kernel that a user built, without changing its tree. Guests boot its bzImage. Modules are built against the tree, with the compiler
//! that its configuration names.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::{Build, Kernel, MEMORY};
use crate::arch::Arch;
use crate::run::is_installed;
use crate::{files, paths};

/// The prefix of such a kernel's name, before the release.
const PREFIX: &str = "tree-";

/// Files of a built tree, with the make target that makes each.
const IMAGE: &str = "arch/x86/boot/bzImage";
const CONFIG: &str = ".config";
const SYMBOLS: &str = "Module.symvers";
const RELEASE: &str = "include/config/kernel.release";
const LEFT_BY: [(&str, &str); 4] =
    [(CONFIG, "olddefconfig"), (IMAGE, "bzImage"), (RELEASE, "bzImage"), (SYMBOLS, "modules")];

pub fn is_name(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Registers a tree, and returns its name for `ready` and the other functions.
pub fn register_tree(tree: &Path) -> Result<String> {
    let tree = tree.canonicalize().with_context(|| format!("no kernel tree {}", tree.display()))?;
    for (file, target) in LEFT_BY {
        let path = tree.join(file);
        ensure!(
            path.is_file(),
            "{} is no built kernel tree for x86-64: it has no {file}, which `make {target}` leaves there",
            tree.display()
        );
    }
    let name = format!("{PREFIX}{}", read(&tree, RELEASE)?.trim());
    let folder = place(&name)?;
    files::recreate(&folder)?;
    std::os::unix::fs::symlink(tree.join(IMAGE), folder.join("vmlinux"))?;
    std::os::unix::fs::symlink(&tree, folder.join("build"))?;
    Ok(name)
}

pub fn ready(name: &str) -> Result<Kernel> {
    let dir = place(name)?;
    let build = dir.join("build");
    let config = read(&build, CONFIG)?;
    Ok(Kernel {
        name: name.to_owned(),
        arch: Arch::Amd64,
        release: read(&build, RELEASE)?.trim().to_owned(),
        build: Build::Here,
        compiler: compiler(&config)?,
        // Another build of the same release is another kernel.
        stamp: files::digest([&config, &read(&build, SYMBOLS)?]),
        dir,
        slower: 1,
        memory: MEMORY,
        arguments: String::new(),
    })
}

fn place(name: &str) -> Result<PathBuf> {
    Ok(paths::cache("kernels")?.join(name))
}

fn read(tree: &Path, file: &str) -> Result<String> {
    files::read(&tree.join(file))
}

/// The compiler that built the kernel. kconfig records the first line of its `--version`: in a comment before 5.8, and as an option since.
fn compiler(config: &str) -> Result<String> {
    let Some(program) = named_compiler(config) else {
        bail!("the tree's .config does not say which compiler built it")
    };
    ensure!(
        is_installed(program),
        "the kernel was built by {program}, which is not on the PATH: install it, or put a program of that name there"
    );
    Ok(program.to_owned())
}

fn named_compiler(config: &str) -> Option<&str> {
    let version_at = |line: &'_ str| -> Option<usize> {
        ["CONFIG_CC_VERSION_TEXT=\"", "# Compiler: "].iter().find(|before| line.starts_with(**before)).map(|b| b.len())
    };
    config.lines().find_map(|line| line[version_at(line)?..].split_whitespace().next())
}

#[cfg(test)]
mod tests {
    use super::{LEFT_BY, named_compiler, register_tree};

    #[test]
    fn unbuilt_tree_names_its_missing_files() {
        let tree = tempfile::tempdir().unwrap();
        for (file, target) in LEFT_BY {
            let error = format!("{:#}", register_tree(tree.path()).unwrap_err());
            assert!(error.contains(&format!("no {file}")) && error.contains(&format!("`make {target}`")), "{error}");
            let path = tree.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let gone = format!("{:#}", register_tree(&tree.path().join("gone")).unwrap_err());
        assert!(gone.contains("no kernel tree"), "{gone}");
    }

    #[test]
    fn compiler_is_read_from_old_and_new_configs() {
        let old = "# Linux/x86 5.4.286 Kernel Configuration\n#\n# Compiler: gcc-10 (Debian 10.2.1-6) 10.2.1\n";
        let new = "CONFIG_CC_VERSION_TEXT=\"gcc-14 (Debian 14.2.0-8) 14.2.0\"\n";
        assert_eq!((named_compiler(old), named_compiler(new)), (Some("gcc-10"), Some("gcc-14")));
        assert_eq!(named_compiler("CONFIG_CC_IS_GCC=y\n"), None);
    }
}
