//! The driver itself, built once for a kernel from a source tree: a person's, or Debian's of a release in drivers.toml.
//!
//! Calls the tree's own makefiles and knows two of their targets. What is kept: nvidia.ko, the headers, and the flags its objects were
//! compiled with, for objects that have to fit to them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::parts::read;
use crate::apt::Suite;
use crate::kernels::{Build, Kernel};
use crate::run::{output, say, tail, watched};
use crate::{paths, setup};

/// Raised when what is kept changes.
const RECIPE: &str = "recipe 1";

/// Parts of the driver that have a module of their own, which no guest loads.
pub const LEFT_OUT: &str = "nvidia-uvm nvidia-drm nvidia-modeset nvidia-peermem";

#[derive(Deserialize)]
struct Table {
    driver: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    release: String,
    suite: String,
    package: String,
}

/// A driver that is built.
pub struct Driver {
    /// As the tree names it.
    pub release: String,
    /// The module, without what debuggers want.
    pub module: PathBuf,
    /// What is needed to compile for its inside; none of a closed driver.
    pub inside: Option<Inside>,
}

/// The inside of an open driver.
pub struct Inside {
    /// The folder that the flags are meant in: its headers are found from there.
    pub folder: PathBuf,
    /// What its objects were compiled with.
    pub flags: Vec<String>,
}

/// The source tree of a release of drivers.toml, fetched unless the cache has it.
pub fn fetched(release: &str) -> Result<PathBuf> {
    let rows = toml::from_str::<Table>(include_str!("../../drivers.toml")).context("drivers.toml")?.driver;
    let known = || rows.iter().map(|row| row.release.as_str()).collect::<Vec<_>>().join(", ");
    let row = rows.iter().find(|row| row.release == release).with_context(|| {
        format!("no driver {release} in drivers.toml, which has {}; name another's source tree by --source", known())
    })?;
    let tree = paths::cache("real-driver")?.join(format!("source-{release}"));
    if !tree.join("version.mk").is_file() {
        say(format!("fetching the sources of NVIDIA's open driver {release} from {}", row.suite));
        let partial = PathBuf::from(format!("{}.partial", tree.display()));
        let _ = std::fs::remove_dir_all(&partial);
        Suite::open_sources(&row.suite)?.unpack_source(&row.package, release, &partial)?;
        let _ = std::fs::remove_dir_all(&tree);
        std::fs::rename(&partial, &tree).with_context(|| format!("cannot move {} into place", partial.display()))?;
    }
    Ok(tree)
}

/// Any source tree. It is read, and built elsewhere.
pub fn of_tree(kernel: &Kernel, tree: &Path) -> Result<Driver> {
    fits(kernel)?;
    let release = release(tree)?;
    let sources = sources(tree)?;
    let key = key(kernel, tree, &sources)?;
    let kept = paths::cache("real-driver")?.join(format!("{release}-{}-{}", kernel.name, &key[..16]));
    if !kept.join("done").exists() {
        build(kernel, &release, tree, &sources, &kept)?;
    }
    let flags = read(&kept.join("flags"))?.split_whitespace().map(str::to_owned).collect();
    let inside = Some(Inside { folder: kept.join("tree/src/nvidia"), flags });
    Ok(Driver { release, module: kept.join("nvidia.ko"), inside })
}

/// The driver's makefiles take the compiler of this machine.
pub fn fits(kernel: &Kernel) -> Result<()> {
    ensure!(
        kernel.build == Build::Here,
        "kernel {} builds its modules with another compiler than this machine's, which the driver's makefiles do not do",
        kernel.name
    );
    Ok(())
}

fn release(tree: &Path) -> Result<String> {
    let text = read(&tree.join("version.mk")).context("this is no source tree of NVIDIA's open kernel modules")?;
    let line = text.lines().find_map(|line| line.strip_prefix("NVIDIA_VERSION"));
    let release = line.map(|line| line.trim_start_matches([' ', ':', '?', '=']).trim().to_owned());
    release.filter(|release| !release.is_empty()).with_context(|| format!("{} has no version", tree.display()))
}

/// The tree's files, without what a build or a version control left there.
fn sources(tree: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut left) = (Vec::new(), vec![tree.to_owned()]);
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') || ["_out", "debian"].contains(&name.as_str()) {
                continue;
            }
            let is_product = [".o", ".ko", ".o_binary", ".d"].iter().any(|end| name.ends_with(end));
            if entry.file_type()?.is_dir() {
                left.push(entry.path());
            } else if entry.file_type()?.is_file() && !is_product {
                found.push(entry.path().strip_prefix(tree)?.to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn key(kernel: &Kernel, tree: &Path, sources: &[PathBuf]) -> Result<String> {
    let mut parts = vec![RECIPE.as_bytes().to_vec(), kernel.stamp.clone().into_bytes()];
    for path in sources {
        parts.push(path.to_string_lossy().into_owned().into_bytes());
        parts.push(std::fs::read(tree.join(path)).with_context(|| format!("cannot read {}", path.display()))?);
    }
    Ok(digest(&parts))
}

/// What a build is kept by.
pub fn digest(parts: &[Vec<u8>]) -> String {
    let mut hash = Sha256::new();
    for bytes in parts {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn build(kernel: &Kernel, release: &str, tree: &Path, sources: &[PathBuf], kept: &Path) -> Result<()> {
    say(format!("building NVIDIA's open driver {release} for {}, once: some minutes", kernel.release));
    setup::require(setup::KERNELS)?;
    let partial = PathBuf::from(format!("{}.partial", kept.display()));
    let _ = std::fs::remove_dir_all(&partial);
    let work = partial.join("tree");
    for path in sources {
        let to = work.join(path);
        std::fs::create_dir_all(to.parent().context("no parent")?)?;
        std::fs::copy(tree.join(path), &to).with_context(|| format!("cannot write {}", to.display()))?;
    }
    // The part that knows no kernel, and then the module around it, as the tree's own makefile does it for all its modules.
    step(
        make(&work).arg("kernel-open/nvidia/nv-kernel.o_binary"),
        &partial.join("log.kernel"),
        "the part that knows no kernel (about 1300 steps)",
    )?;
    module(kernel, &work.join("kernel-open"), &partial)?;
    keep(&work, &partial)?;
    done(&partial, kept)
}

/// Makes `nvidia.ko` around the part that knows no kernel; without what debuggers want, and with its log, it lies in `to`.
pub fn module(kernel: &Kernel, inside: &Path, to: &Path) -> Result<()> {
    let headers = kernel.dir.join("build").canonicalize().context("the kernel has no headers")?;
    let common = headers.to_string_lossy().replace("-amd64", "-common");
    let source = if Path::new(&common).is_dir() { common } else { headers.to_string_lossy().into_owned() };
    let mut module = make(inside);
    module.arg("modules").arg(format!("SYSSRC={source}")).arg(format!("SYSOUT={}", headers.display()));
    module.arg("IGNORE_CC_MISMATCH=1").arg(format!("NV_EXCLUDE_KERNEL_MODULES={LEFT_OUT}"));
    step(&mut module, &to.join("log.module"), "nvidia.ko (about 600 steps)")?;
    let mut strip = Command::new("objcopy");
    strip.arg("--strip-debug").arg(inside.join("nvidia.ko")).arg(to.join("nvidia.ko"));
    output(&mut strip).map(drop).context("the driver's makefiles left no nvidia.ko that can be read")
}

/// What was made in `partial` is kept from here on.
pub fn done(partial: &Path, kept: &Path) -> Result<()> {
    std::fs::write(partial.join("done"), "")?;
    let _ = std::fs::remove_dir_all(kept);
    std::fs::rename(partial, kept).with_context(|| format!("cannot move {} into place", partial.display()))
}

/// The flags, and of the tree the headers.
fn keep(work: &Path, to: &Path) -> Result<()> {
    let inside = work.join("src/nvidia");
    let asked = ["--no-print-directory", "--silent", "--eval=mpu-flags: ; @echo $(CFLAGS)", "mpu-flags"];
    std::fs::write(to.join("flags"), output(make(&inside).args(asked))?)?;
    for folder in ["kernel-open", "src/nvidia-modeset", "src/nvidia/_out"] {
        std::fs::remove_dir_all(work.join(folder)).with_context(|| format!("the tree has no {folder}"))?;
    }
    Ok(())
}

fn make(inside: &Path) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "10", "make", "-j3", "-C"]).arg(inside).arg("CC=gcc-12").env("LC_ALL", "C");
    // A wrapper meant for this machine's own compiler must not reach it.
    command.env_remove("MAKEFLAGS").env_remove("CC");
    command
}

fn step(command: &mut Command, log: &Path, what: &str) -> Result<()> {
    let built = watched(command, log, what, 100)?;
    ensure!(built, "the driver does not build:\n{}", tail(&std::fs::read_to_string(log).unwrap_or_default(), 30));
    Ok(())
}
