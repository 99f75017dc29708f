//! Builds an open driver once per kernel from a source tree: a person's, or Debian's of a release in drivers.toml. Calls two targets of the
//! tree's makefiles. Keeps nvidia.ko, the headers, and the compiler flags for objects that must fit.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::abi::release;
use crate::apt::Suite;
use crate::files::read;
use crate::kernels::{Build, Kernel};
use crate::run::{build_to_log, last_lines, output, print_progress};
use crate::{files, paths, run, setup};

/// Raised when the cached files change.
const RECIPE: &str = "recipe 1";

/// The driver's other modules, which no guest loads.
pub const EXCLUDED_MODULES: &str = "nvidia-uvm nvidia-drm nvidia-modeset nvidia-peermem";

#[derive(Deserialize)]
struct Table {
    driver: Vec<Row>,
    closed: Vec<Row>,
}

#[derive(Deserialize)]
pub struct Row {
    release: String,
    pub suite: String,
    pub package: String,
}

pub fn row(release: &str, is_closed: bool) -> Result<Row> {
    let table = toml::from_str::<Table>(include_str!("../../drivers.toml")).context("drivers.toml")?;
    let (rows, kind) = if is_closed { (table.closed, "closed") } else { (table.driver, "open") };
    let known = rows.iter().map(|row| row.release.as_str()).collect::<Vec<_>>().join(", ");
    rows.into_iter().find(|row| row.release == release).with_context(|| {
        format!(
            "no {kind} driver {release} in drivers.toml, which has {known}; --source takes any open one's source tree"
        )
    })
}

pub struct Driver {
    pub release: String,
    /// The module without debug information.
    pub module: PathBuf,
    /// For compiling against the driver's internal headers; none for a closed driver.
    pub internals: Option<Internals>,
}

pub struct Internals {
    /// The folder to which paths in the flags are relative.
    pub folder: PathBuf,
    pub flags: Vec<String>,
}

/// The source tree of a release of drivers.toml, fetched unless the cache has it.
pub fn fetch(release: &str) -> Result<PathBuf> {
    let row = row(release, false)?;
    let tree = paths::cache("real-driver")?.join(format!("source-{release}"));
    files::get_or_make(tree, Path::is_dir, |partial| {
        print_progress(format!("fetching the sources of NVIDIA's open driver {release} from {}", row.suite));
        Suite::open_sources(&row.suite)?.unpack_source(&row.package, release, partial)
    })
}

/// Builds a copy of any source tree.
pub fn from_tree(kernel: &Kernel, tree: &Path) -> Result<Driver> {
    check_compiler(kernel)?;
    let release = release(tree)
        .with_context(|| format!("{} is no source tree of NVIDIA's open kernel modules", tree.display()))?;
    let sources = sources(tree)?;
    let key = key(kernel, tree, &sources)?;
    let cached = paths::cache("real-driver")?.join(format!("{release}-{}-{}", kernel.name, &key[..16]));
    let cached = files::get_or_make(cached, Path::is_dir, |partial| build(kernel, &release, tree, &sources, partial))?;
    let flags = read(&cached.join("flags"))?.split_whitespace().map(str::to_owned).collect();
    let internals = Some(Internals { folder: cached.join("tree/src/nvidia"), flags });
    Ok(Driver { release, module: cached.join("nvidia.ko"), internals })
}

/// The driver's makefiles support this machine's compiler only.
pub fn check_compiler(kernel: &Kernel) -> Result<()> {
    ensure!(
        kernel.build == Build::Here,
        "kernel {} builds its modules with another compiler than this machine's, which the driver's makefiles do not do",
        kernel.name
    );
    Ok(())
}

/// The tree's files, without build products and files of version control.
fn sources(tree: &Path) -> Result<Vec<PathBuf>> {
    let is_left = |entry: &walkdir::DirEntry| {
        let name = entry.file_name().to_string_lossy();
        let is_product = [".o", ".ko", ".o_binary", ".d"].iter().any(|end| name.ends_with(end));
        let is_other = entry.depth() > 0 && (name.starts_with('.') || name == "_out" || name == "debian");
        !is_other && (entry.file_type().is_dir() || entry.file_type().is_file() && !is_product)
    };
    let mut found = Vec::new();
    for entry in walkdir::WalkDir::new(tree).into_iter().filter_entry(is_left) {
        let entry = entry?;
        if entry.file_type().is_file() {
            found.push(entry.path().strip_prefix(tree)?.to_owned());
        }
    }
    found.sort();
    Ok(found)
}

fn key(kernel: &Kernel, tree: &Path, sources: &[PathBuf]) -> Result<String> {
    let mut parts = vec![RECIPE.as_bytes().to_vec(), kernel.stamp.clone().into_bytes()];
    for path in sources {
        parts.push(path.to_string_lossy().into_owned().into_bytes());
        parts.push(fs_err::read(tree.join(path))?);
    }
    Ok(files::digest(parts))
}

fn build(kernel: &Kernel, release: &str, tree: &Path, sources: &[PathBuf], partial: &Path) -> Result<()> {
    print_progress(format!("building NVIDIA's open driver {release} for {}, once: some minutes", kernel.release));
    setup::require(setup::KERNELS)?;
    let work = partial.join("tree");
    sources.iter().try_for_each(|path| files::copy(&tree.join(path), &work.join(path)))?;
    // First the kernel-independent part, then the module around it, as the tree's makefile does for all its modules.
    step(
        make(&work).arg("kernel-open/nvidia/nv-kernel.o_binary"),
        &partial.join("log.kernel"),
        "the part that knows no kernel",
    )?;
    build_module(kernel, &work.join("kernel-open"), partial)?;
    keep(&work, partial)
}

/// Builds `nvidia.ko` around the kernel-independent part. Puts it, without debug information, and its log into `to`.
pub fn build_module(kernel: &Kernel, folder: &Path, to: &Path) -> Result<()> {
    let headers = kernel.dir.join("build").canonicalize().context("the kernel has no headers")?;
    let common = headers.to_string_lossy().replace("-amd64", "-common");
    let source = if Path::new(&common).is_dir() { common } else { headers.to_string_lossy().into_owned() };
    let mut module = make(folder);
    module.arg("modules").arg(format!("SYSSRC={source}")).arg(format!("SYSOUT={}", headers.display()));
    module.arg("IGNORE_CC_MISMATCH=1").arg(format!("NV_EXCLUDE_KERNEL_MODULES={EXCLUDED_MODULES}"));
    step(&mut module, &to.join("log.module"), "nvidia.ko")?;
    let mut strip = Command::new("objcopy");
    strip.arg("--strip-debug").arg(folder.join("nvidia.ko")).arg(to.join("nvidia.ko"));
    output(&mut strip).map(drop).context("the driver's makefiles left no nvidia.ko that can be read")
}

/// Writes the compiler flags, and deletes everything but the headers from the tree.
fn keep(work: &Path, to: &Path) -> Result<()> {
    let folder = work.join("src/nvidia");
    let arguments = ["--no-print-directory", "--silent", "--eval=mpu-flags: ; @echo $(CFLAGS)", "mpu-flags"];
    std::fs::write(to.join("flags"), output(make(&folder).args(arguments))?)?;
    for sources in ["kernel-open", "src/nvidia-modeset", "src/nvidia/_out"] {
        std::fs::remove_dir_all(work.join(sources)).with_context(|| format!("the tree has no {sources}"))?;
    }
    Ok(())
}

fn make(folder: &Path) -> Command {
    let mut command = run::make(folder);
    command.arg("-j3");
    command
}

fn step(command: &mut Command, log: &Path, what: &str) -> Result<()> {
    let built = build_to_log(command, log, what)?;
    ensure!(built, "the driver does not build:\n{}", last_lines(&std::fs::read_to_string(log).unwrap_or_default(), 30));
    Ok(())
}
