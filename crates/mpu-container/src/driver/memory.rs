//! Limits of the GPU memory that a cgroup may use.
//!
//! Owns the two ways in which drivers from release 615 on hold such limits, and the proof that one holds: what was set
//! is read back. A driver, kernel or cgroup that cannot hold a limit is an error, never a container without one.
//!
//! | the driver counts | a limit is |
//! |---|---|
//! | by the kernel's controller `dmem` (Linux 6.14) | in the cgroup's own files, `dmem.max` and `dmem.min` |
//! | by itself, in the cgroups of the controller `misc` | in the driver, asked by a control |
//!
//! Outside truth: NVIDIA, "MPS v3 Memory Partitioning" (what limits mean, sums in ancestors); open kernel modules 615:
//! `ctrl0000unix.h`, `memacct.c`, `os.c` (the region's name), `os-interface.c` (which cgroup of a process counts);
//! Linux, `Documentation/admin-guide/cgroup-v2.rst`, "DMEM".

use super::{Driver, Gpu};
use mpu_rm::{MemoryBackend, RmError};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// What a cgroup may use of a GPU's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// As much is safe from others who need memory.
    pub soft: u64,
    /// More cannot be had; [`MemoryLimits::NONE`] is as much as there is.
    pub hard: u64,
}

impl MemoryLimits {
    /// The number that stands for no limit.
    pub const NONE: u64 = u64::MAX;
}

/// Why a limit does not hold.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// MIG divides memory in its own way.
    #[error("GPU {0} is divided by MIG: the memory of a MIG device is what its profile says and cannot be limited")]
    Mig(String),
    /// The driver does not answer.
    #[error("the driver does not answer for GPU {0}: its device nodes are missing or may not be opened")]
    Silent(String),
    /// The driver is too old.
    #[error("driver {0} cannot limit GPU memory: releases from 615 on can")]
    Release(String),
    /// The driver counts nothing.
    #[error("the driver does not count memory: RmMemacctMode=0 is set, or the kernel has neither cgroup controller dmem nor misc")]
    Off,
    /// The cgroup is not one whose memory is counted.
    #[error("the cgroup {} has no controller {controller}: add +{controller} to cgroup.subtree_control of every cgroup above it", cgroup.display())]
    Controller {
        /// The cgroup.
        cgroup: PathBuf,
        /// The controller.
        controller: &'static str,
    },
    /// A file of a cgroup cannot be read or written.
    #[error("cannot use {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The driver refuses.
    #[error("the driver refuses the limit")]
    Refused(#[source] RmError),
    /// What was set is not what holds.
    #[error("the limit was set, and another one holds")]
    NotHeld,
}

impl Driver {
    /// Sets the limits of a cgroup, named by its directory, on one GPU.
    pub fn limit_memory(&self, gpu: &Gpu, cgroup: &Path, limits: MemoryLimits) -> Result<(), LimitError> {
        if gpu.mig_enabled {
            return Err(LimitError::Mig(gpu.uuid.clone()));
        }
        let client = self.client(gpu).ok_or_else(|| LimitError::Silent(gpu.uuid.clone()))?;
        match client.memory_backend() {
            None => Err(LimitError::Release(self.version.clone())),
            Some(MemoryBackend::None) => Err(LimitError::Off),
            Some(MemoryBackend::Dmem) => limit_in_files(&region(gpu), cgroup, limits),
            Some(MemoryBackend::Driver) => {
                // The driver counts a process in the nearest cgroup that has the controller: a limit below has no effect.
                has(cgroup, "misc")?;
                let unusable = |source| LimitError::File { path: cgroup.to_path_buf(), source };
                let folder = fs::File::open(cgroup).map_err(unusable)?;
                client.set_memory_limits(folder.as_fd(), [limits.soft, limits.hard]).map_err(LimitError::Refused)?;
                match client.memory_limits(folder.as_fd()) {
                    Some(held) if held == [limits.soft, limits.hard] => Ok(()),
                    _ => Err(LimitError::NotHeld),
                }
            }
        }
    }
}

/// The name by which the kernel knows the GPU's memory.
fn region(gpu: &Gpu) -> String {
    format!("nvidia/{}/vidmem", gpu.bus)
}

fn has(cgroup: &Path, controller: &'static str) -> Result<(), LimitError> {
    match cgroup.join(format!("{controller}.max")).exists() {
        true => Ok(()),
        false => Err(LimitError::Controller { cgroup: cgroup.to_path_buf(), controller }),
    }
}

/// Writes the limits into the files of a cgroup, and makes room for them above it.
fn limit_in_files(region: &str, cgroup: &Path, limits: MemoryLimits) -> Result<(), LimitError> {
    has(cgroup, "dmem")?;
    for (file, value) in [("dmem.max", limits.hard), ("dmem.min", limits.soft)] {
        set(&cgroup.join(file), region, value)?;
    }
    // What is kept safe below is only safe if as much is kept above: each cgroup keeps what those in it keep.
    let above = cgroup.ancestors().skip(1).take_while(|folder| folder.join("dmem.min").exists());
    above.into_iter().try_for_each(|folder| keep_sum(region, folder))
}

/// Lets a cgroup keep what its children keep. Others may do the same at the same time: whoever writes looks once more,
/// so that the last one has seen every child.
fn keep_sum(region: &str, folder: &Path) -> Result<(), LimitError> {
    const TRIES: usize = 100;
    let file = folder.join("dmem.min");
    for _ in 0..TRIES {
        let sum = kept_by_children(region, folder)?;
        set(&file, region, sum)?;
        if kept_by_children(region, folder)? == sum {
            return Ok(());
        }
    }
    Err(LimitError::NotHeld)
}

fn kept_by_children(region: &str, folder: &Path) -> Result<u64, LimitError> {
    let unreadable = |source| LimitError::File { path: folder.to_path_buf(), source };
    let mut sum = 0u64;
    for child in fs::read_dir(folder).map_err(unreadable)? {
        let file = child.map_err(unreadable)?.path().join("dmem.min");
        // A cgroup can be gone by now, or not take part.
        sum = sum.saturating_add(read(&file, region).ok().flatten().unwrap_or(0));
    }
    Ok(sum)
}

/// Writes a value of a region, and proves that it holds.
fn set(path: &Path, region: &str, value: u64) -> Result<(), LimitError> {
    let unusable = |source| LimitError::File { path: path.to_path_buf(), source };
    let word = if value == MemoryLimits::NONE { "max".to_string() } else { value.to_string() };
    fs::write(path, format!("{region} {word}\n")).map_err(unusable)?;
    match read(path, region).map_err(unusable)? {
        Some(held) if held == value => Ok(()),
        _ => Err(LimitError::NotHeld),
    }
}

/// The value of a region in a file of lines of a name and a number or `max`.
fn read(path: &Path, region: &str) -> io::Result<Option<u64>> {
    let text = fs::read_to_string(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(region)?.strip_prefix(' '));
    Ok(line.and_then(|value| match value.trim() {
        "max" => Some(MemoryLimits::NONE),
        number => number.parse().ok(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::made_up::Host;

    const REGION: &str = "nvidia/00000000:1B:00.0/vidmem";

    /// cgroups as folders, with files of the controller in them. The kernel keeps a value for each region; a plain file
    /// keeps what was written last.
    fn cgroups(with: &[&str]) -> tempfile::TempDir {
        let top = tempfile::tempdir().unwrap();
        for cgroup in with {
            fs::create_dir_all(top.path().join(cgroup)).unwrap();
            for file in ["dmem.max", "dmem.min"] {
                fs::write(top.path().join(cgroup).join(file), "").unwrap();
            }
        }
        top
    }

    #[test]
    fn limits_are_written_and_summed_up_above() {
        let top = cgroups(&["pods", "pods/a", "pods/b"]);
        fs::create_dir_all(top.path().join("pods/without")).unwrap();
        let at = |path: &str| fs::read_to_string(top.path().join(path)).unwrap();
        let limit = |cgroup: &str, soft, hard| {
            limit_in_files(REGION, &top.path().join(cgroup), MemoryLimits { soft, hard })
                .map_err(|error| error.to_string())
        };
        assert_eq!(limit("pods/a", 5, 7), Ok(()));
        assert_eq!((at("pods/a/dmem.max"), at("pods/a/dmem.min")), (format!("{REGION} 7\n"), format!("{REGION} 5\n")));
        assert_eq!(limit("pods/b", 3, MemoryLimits::NONE), Ok(()));
        assert_eq!(at("pods/b/dmem.max"), format!("{REGION} max\n"));
        assert_eq!(at("pods/dmem.min"), format!("{REGION} 8\n"), "and nothing above, where the controller is not");
        // What a container kept that is gone is nobody's.
        fs::remove_dir_all(top.path().join("pods/a")).unwrap();
        assert_eq!(limit("pods/b", 1, 2), Ok(()));
        assert_eq!(at("pods/dmem.min"), format!("{REGION} 1\n"));
        let refused = limit("pods/without", 1, 2).unwrap_err();
        assert!(refused.contains("pods/without has no controller dmem: add +dmem"), "{refused}");
    }

    #[test]
    fn what_does_not_hold_is_an_error() {
        let top = cgroups(&["a"]);
        let file = top.path().join("a/dmem.max");
        // A file that keeps nothing, as one of a kernel that does not know the region.
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/null", &file).unwrap();
        let error = limit_in_files(REGION, &top.path().join("a"), MemoryLimits { soft: 1, hard: 2 }).unwrap_err();
        assert!(matches!(error, LimitError::NotHeld), "{error}");
    }

    #[test]
    fn a_region_is_not_another_whose_name_begins_alike() {
        let top = cgroups(&["a"]);
        let file = top.path().join("a/dmem.min");
        fs::write(&file, format!("{REGION}2 5\ndrm/x 3\n{REGION} max\n")).unwrap();
        assert_eq!(read(&file, REGION).unwrap(), Some(MemoryLimits::NONE));
        assert_eq!(read(&file, "drm").unwrap(), None);
    }

    #[test]
    fn a_driver_that_cannot_is_not_believed_to() {
        let host = Host::with_driver("580.159.04");
        host.gpu("0000:1b:00.0", 0, "GPU-aaaaaaaa-0000-0000-0000-000000000000");
        let mut driver = Driver::find(&host.root()).unwrap();
        let limits = MemoryLimits { soft: 1, hard: 2 };
        let refused =
            |driver: &Driver| driver.limit_memory(&driver.gpus[0], host.path(), limits).unwrap_err().to_string();
        assert!(refused(&driver).contains("the driver does not answer for GPU GPU-aaaa"), "{}", refused(&driver));
        assert_eq!(region(&driver.gpus[0]), REGION);
        driver.gpus[0].mig_enabled = true;
        assert!(refused(&driver).contains("is divided by MIG"));
    }
}
