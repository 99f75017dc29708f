//! Limits a cgroup's GPU memory.
//!
//! | accounting | limit |
//! |---|---|
//! | the kernel's controller `dmem` (Linux 6.14) | the cgroup's files `dmem.max` and `dmem.min` |
//! | the driver, by cgroups of the controller `misc` | in the driver, set by an RM control |
//!
//! The `dmem.min` of each cgroup above is raised to the sum of its children, where that is allowed. A value that we did not write
//! is the administrator's and stays unchanged.
//!
//! Source: NVIDIA, "MPS v3 Memory Partitioning" (what limits mean, sums in ancestors); open kernel modules 615:
//! `ctrl0000unix.h`, `memacct.c`, `os.c` (the region's name), `os-interface.c` (which cgroup of a process counts);
//! Linux, `Documentation/admin-guide/cgroup-v2.rst`, "DMEM", `kernel/cgroup/dmem.c` and `include/linux/page_counter.h`
//! (the largest value, and that it shows as `max`).

use super::error::{DriverError, UnknownDevice};
use super::{Driver, Gpu};
use mpu_os::file::{Mode, create_private_folder, replace_file_atomically};
use mpu_os::lock::LockError;
use mpu_rm::{MemoryBackend, RmError};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Limits of a GPU's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Protected from reclaim by others.
    pub soft: u64,
    /// Maximum; [`MemoryLimits::NONE`] is no limit.
    pub hard: u64,
}

impl MemoryLimits {
    /// No limit.
    pub const NONE: u64 = u64::MAX;
}

#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Unknown(#[from] UnknownDevice),
    #[error("a MIG device's memory is what its profile says and cannot be limited")]
    Mig,
    #[error("this host has cgroups of version 1, and only those of version 2 can limit GPU memory")]
    CgroupV1,
    #[error("cannot read where the cgroup of the container's process is")]
    Process(#[source] io::Error),
    #[error("the container's process is in no cgroup that is mounted here")]
    NoCgroup,
    #[error("the container has no cgroup of its own: a limit would hold for {} and all else in it", .0.display())]
    Shared(PathBuf),
    #[error("the driver does not answer for GPU {0}: its device nodes are missing or may not be opened")]
    NoResponse(String),
    #[error("driver {0} cannot limit GPU memory: releases from 615 on can")]
    UnsupportedRelease(String),
    #[error(
        "the driver does not count memory: RmMemacctMode=0 is set, or the kernel has neither cgroup controller dmem nor misc"
    )]
    AccountingOff,
    #[error("the cgroup {} has no controller {controller}: add +{controller} to cgroup.subtree_control of every cgroup above it", cgroup.display())]
    Controller { cgroup: PathBuf, controller: &'static str },
    #[error("cannot use {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("another container's start has held {} for too long: find it with `fuser -v {}`", .0.display(), .0.display())]
    Busy(PathBuf),
    #[error("{requested} bytes are asked for, and the GPU has {capacity}")]
    ExceedsCapacity { requested: u64, capacity: u64 },
    #[error("the driver refuses the limit")]
    Refused(#[source] RmError),
    #[error("the driver accepted the limit and enforces another one")]
    NotEnforced,
}

impl Driver {
    /// Limits a cgroup. With `raise`, also raises the protection of the cgroups above it: theirs bounds its own.
    pub fn limit_memory(&self, gpu: &Gpu, cgroup: &Path, limits: MemoryLimits, raise: bool) -> Result<(), LimitError> {
        let client = self.client(gpu).ok_or_else(|| LimitError::NoResponse(gpu.uuid.clone()))?;
        match client.memory_backend() {
            None => Err(LimitError::UnsupportedRelease(self.version.clone())),
            Some(MemoryBackend::None) => Err(LimitError::AccountingOff),
            Some(MemoryBackend::Dmem) => {
                require_controller(cgroup, "dmem")?;
                write_limits(&region(gpu), cgroup, limits, raise.then_some(Path::new(RECORDS)))
            }
            Some(MemoryBackend::Driver) => {
                // The driver counts a process in the nearest cgroup that has the controller: a limit below has no effect.
                require_controller(cgroup, "misc")?;
                let folder = File::open(cgroup).map_err(file_error(cgroup))?;
                client.set_memory_limits(folder.as_fd(), [limits.soft, limits.hard]).map_err(LimitError::Refused)?;
                match client.memory_limits(folder.as_fd()) {
                    Some(current) if current == [limits.soft, limits.hard] => Ok(()),
                    _ => Err(LimitError::NotEnforced),
                }
            }
        }
    }
}

/// The kernel's name of the GPU's memory region.
fn region(gpu: &Gpu) -> String {
    format!("nvidia/{}/vidmem", gpu.bus)
}

fn require_controller(cgroup: &Path, controller: &'static str) -> Result<(), LimitError> {
    match cgroup.join(format!("{controller}.max")).exists() {
        true => Ok(()),
        false => Err(LimitError::Controller { cgroup: cgroup.to_path_buf(), controller }),
    }
}

/// Records the values that we wrote in cgroups above containers.
const RECORDS: &str = "/run/mpu-container/dmem";
/// Timeout for the lock. Each start of a container makes a few writes.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The kernel may show values from here on as `max`: the limit of its counters with the largest page size (64 KiB).
const SHOWN_AS_MAX: u64 = i64::MAX as u64 / (64 << 10);

/// Writes the limits of a cgroup. With a folder for records, also raises the cgroups above it.
fn write_limits(region: &str, cgroup: &Path, limits: MemoryLimits, records: Option<&Path>) -> Result<(), LimitError> {
    // Only the root cgroup has this file.
    let capacity =
        cgroup.ancestors().find_map(|folder| read_value(&folder.join("dmem.capacity"), region).ok().flatten());
    let requested = [limits.soft, limits.hard].into_iter().filter(|value| *value != MemoryLimits::NONE).max();
    if let (Some(requested), Some(capacity)) = (requested, capacity)
        && requested > capacity
    {
        return Err(LimitError::ExceedsCapacity { requested, capacity });
    }
    for (file, value) in [("dmem.max", limits.hard), ("dmem.min", limits.soft)] {
        write_value(&cgroup.join(file), region, value)?;
    }
    let Some(records) = records.filter(|_| limits.soft > 0) else { return Ok(()) };
    match raise_ancestors(region, cgroup, records, capacity.unwrap_or(u64::MAX)) {
        // A rootless engine, or one in a delegated cgroup, may not write further up.
        Err(LimitError::File { source, .. })
            if matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) =>
        {
            Ok(())
        }
        done => done,
    }
}

/// Raises the value of each cgroup above to the sum of its children. Stops at a value of the administrator.
fn raise_ancestors(region: &str, cgroup: &Path, records: &Path, capacity: u64) -> Result<(), LimitError> {
    let _lock = lock_records(records, LOCK_TIMEOUT)?;
    let values = records.join("values.json");
    let mut ours: BTreeMap<String, BTreeMap<String, [u64; 2]>> =
        fs::read(&values).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    for folder in cgroup.ancestors().skip(1).take_while(|folder| folder.join("dmem.min").exists()) {
        let file = folder.join("dmem.min");
        let current = read_value(&file, region).map_err(file_error(&file))?.unwrap_or(0);
        let of_folder = ours.entry(folder.display().to_string()).or_default();
        if current != 0 && !of_folder.get(region).is_some_and(|values| values.contains(&current)) {
            break;
        }
        let sum = sum_of_children(region, folder, capacity)?;
        // Record the old and the new value: the value is recognized as ours even if we are interrupted.
        of_folder.insert(region.to_string(), [current, sum]);
        // Remove records of deleted pods. Only siblings of the starting container's cgroups are sure to be visible.
        ours.retain(|path, _| {
            let child = Path::new(path).strip_prefix(folder).ok().and_then(|below| below.iter().next());
            child.is_none_or(|child| folder.join(child).exists())
        });
        let text = serde_json::to_vec(&ours).map_err(|error| file_error(&values)(error.into()))?;
        replace_file_atomically(&values, &text, Mode::Of(0o600)).map_err(file_error(&values))?;
        write_value(&file, region, sum)?;
    }
    Ok(())
}

fn file_error(path: &Path) -> impl Fn(io::Error) -> LimitError + '_ {
    |source| LimitError::File { path: path.to_path_buf(), source }
}

/// Serializes concurrent container starts.
fn lock_records(records: &Path, timeout: Duration) -> Result<File, LimitError> {
    let folder = create_private_folder(records).and_then(|()| File::open(records)).map_err(file_error(records))?;
    match mpu_os::lock::hold(&folder, records, timeout, |_| {}) {
        Ok(()) => Ok(folder),
        Err(LockError::Io(error)) => Err(file_error(records)(error)),
        Err(LockError::Held(_)) => Err(LimitError::Busy(records.to_path_buf())),
    }
}

/// The sum of the children's values, at most the GPU's memory. Otherwise `max` in one child would propagate to the root cgroup.
fn sum_of_children(region: &str, folder: &Path, capacity: u64) -> Result<u64, LimitError> {
    let children = fs::read_dir(folder).map_err(file_error(folder))?.flatten();
    // A child may have been removed, or may lack the controller.
    let values = children.filter_map(|child| read_value(&child.path().join("dmem.min"), region).ok().flatten());
    Ok(values.fold(0u64, |sum, value| sum.saturating_add(value).min(capacity)))
}

fn write_value(path: &Path, region: &str, value: u64) -> Result<(), LimitError> {
    let word = if value == MemoryLimits::NONE { "max".to_string() } else { value.to_string() };
    // Do not create the file: only the kernel can.
    let file = File::options().write(true).truncate(true).open(path);
    let written = file.and_then(|mut file| io::Write::write_all(&mut file, format!("{region} {word}\n").as_bytes()));
    let current = written.and_then(|()| read_value(path, region)).map_err(file_error(path))?;
    if is_in_force(current, value) { Ok(()) } else { Err(LimitError::NotEnforced) }
}

fn is_in_force(shown: Option<u64>, written: u64) -> bool {
    shown == Some(written) || shown == Some(MemoryLimits::NONE) && written >= SHOWN_AS_MAX
}

fn read_value(path: &Path, region: &str) -> io::Result<Option<u64>> {
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
    use crate::driver::fake;
    use std::os::unix::fs::symlink;

    const REGION: &str = "nvidia/00000000:1B:00.0/vidmem";
    const NONE: u64 = MemoryLimits::NONE;

    /// Folders with the controller's files as cgroups. The kernel keeps a value for each region; a plain file keeps the
    /// last write.
    struct Host(tempfile::TempDir);

    impl Host {
        fn with(cgroups: &[&str]) -> Host {
            let host = Host(tempfile::tempdir().unwrap());
            for cgroup in cgroups {
                fs::create_dir_all(host.path(cgroup)).unwrap();
                for file in ["dmem.max", "dmem.min"] {
                    fs::write(host.path(cgroup).join(file), "").unwrap();
                }
            }
            host
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn write_min(&self, cgroup: &str, value: &str) {
            fs::write(self.path(cgroup).join("dmem.min"), format!("{REGION} {value}\n")).unwrap();
        }

        fn read_min<const N: usize>(&self, cgroups: [&str; N]) -> [Option<u64>; N] {
            cgroups.map(|cgroup| read_value(&self.path(cgroup).join("dmem.min"), REGION).unwrap())
        }

        fn link(&self, file: &str, target: &str) {
            fs::remove_file(self.path(file)).unwrap();
            symlink(target, self.path(file)).unwrap();
        }

        fn limit(&self, cgroup: &str, soft: u64, hard: u64) -> Result<(), String> {
            self.limit_as(cgroup, soft, hard, Some(&self.path("records")))
        }

        fn limit_as(&self, cgroup: &str, soft: u64, hard: u64, records: Option<&Path>) -> Result<(), String> {
            let limits = MemoryLimits { soft, hard };
            write_limits(REGION, &self.path(cgroup), limits, records).map_err(|error| error.to_string())
        }
    }

    #[test]
    fn hung_start_delays_others_for_limited_time() {
        let records = tempfile::tempdir().unwrap();
        let _current = lock_records(records.path(), Duration::ZERO).unwrap();
        let error = lock_records(records.path(), Duration::from_millis(20)).unwrap_err().to_string();
        assert!(error.contains("another container's start") && error.contains("fuser -v /"), "{error}");
    }

    #[test]
    fn limits_are_written_and_summed_up_above() {
        let host = Host::with(&["pods", "pods/a", "pods/b"]);
        let at = |path: &str| fs::read_to_string(host.path(path)).unwrap();
        assert_eq!(host.limit_as("pods/a", 5, 7, None), Ok(()));
        assert_eq!((at("pods/a/dmem.max"), at("pods/a/dmem.min")), (format!("{REGION} 7\n"), format!("{REGION} 5\n")));
        assert_eq!(host.read_min(["pods"]), [None], "not raised unless allowed");
        assert_eq!(host.limit("pods/b", 3, NONE), Ok(()));
        assert_eq!((at("pods/b/dmem.max"), host.read_min(["pods"])), (format!("{REGION} max\n"), [Some(8)]));
        // A removed container does not count.
        fs::remove_dir_all(host.path("pods/a")).unwrap();
        assert_eq!((host.limit("pods/b", 1, 2), host.read_min(["pods"])), (Ok(()), [Some(1)]));
    }

    #[test]
    fn administrators_limit_is_kept() {
        let host = Host::with(&["top", "top/pods", "top/pods/a"]);
        for keeps in ["3", "100", "max"] {
            host.write_min("top/pods", keeps);
            assert_eq!((host.limit("top/pods/a", 5, 7), host.read_min(["top"])), (Ok(()), [None]), "{keeps}");
            assert_eq!(fs::read_to_string(host.path("top/pods/dmem.min")).unwrap(), format!("{REGION} {keeps}\n"));
        }
        // A value is ours until another process writes.
        host.write_min("top/pods", "0");
        for (soft, top) in [(5, Some(5)), (6, Some(6)), (4, Some(9))] {
            if top == Some(9) {
                host.write_min("top", "9");
            }
            assert_eq!(host.limit("top/pods/a", soft, 7), Ok(()));
            assert_eq!(host.read_min(["top/pods", "top"]), [Some(soft), top]);
        }
    }

    #[test]
    fn gpu_memory_caps_limits_and_sums() {
        let host = Host::with(&["top", "top/pods", "top/pods/a", "top/pods/b"]);
        host.write_min("top/pods/b", "max");
        assert_eq!(
            (host.limit("top/pods/a", 5, 7), host.read_min(["top"])),
            (Ok(()), [Some(NONE)]),
            "capacity unknown"
        );
        fs::write(host.path("dmem.capacity"), format!("{REGION} 100\n")).unwrap();
        for (soft, hard) in [(1, 101), (101, NONE)] {
            let refused = host.limit("top/pods/a", soft, hard).unwrap_err();
            assert_eq!(refused, "101 bytes are asked for, and the GPU has 100");
        }
        for (claims, sum) in [("max", 100), ("1000", 100), ("3", 8)] {
            host.write_min("top/pods/b", claims);
            assert_eq!(host.limit("top/pods/a", 5, 7), Ok(()));
            assert_eq!(host.read_min(["top/pods", "top"]), [Some(sum); 2], "{claims}");
        }
        assert_eq!(host.limit("top/pods/a", 100, NONE), Ok(()));
    }

    #[test]
    fn limit_shown_as_max_is_held() {
        // `NVIDIA_GPU_MEMORY_LIMIT=2147483647`, and the sum of two such.
        for written in [((1u64 << 31) - 1) << 20, 1 << 52] {
            assert!(is_in_force(Some(NONE), written));
        }
        assert!(!is_in_force(Some(NONE), 1 << 40) && !is_in_force(None, 1) && !is_in_force(Some(2), 1));
    }

    #[test]
    fn records_of_removed_cgroups_are_deleted() {
        let host = Host::with(&["kube", "kube/old", "kube/old/c", "kube/new", "kube/new/c"]);
        let recorded = |pod: &str| {
            let text = fs::read_to_string(host.path("records/values.json")).unwrap();
            text.contains(&format!("{:?}", host.path(pod)))
        };
        assert_eq!((host.limit("kube/old/c", 1, 1), recorded("kube/old")), (Ok(()), true));
        fs::remove_dir_all(host.path("kube/old")).unwrap();
        assert_eq!((host.limit("kube/new/c", 1, 1), host.read_min(["kube"])), (Ok(()), [Some(1)]));
        assert_eq!(["kube/old", "kube/new", "kube"].map(recorded), [false, true, true]);
    }

    #[test]
    fn unwritable_cgroup_ends_walk() {
        // The kernel lets no process write here, not even root's.
        let host = Host::with(&["pods", "pods/a"]);
        host.link("pods/dmem.min", "/proc/sys/kernel/cap_last_cap");
        assert_eq!((host.limit("pods/a", 5, 7), host.read_min(["pods/a"])), (Ok(()), [Some(5)]));
    }

    #[test]
    fn simultaneous_starts_all_succeed() {
        let host = Host::with(&["pods", "pods/a", "pods/b", "pods/c", "pods/d"]);
        let often = |name: &str| (0..50).try_for_each(|_| host.limit(name, 1, 1));
        std::thread::scope(|scope| {
            let started = ["pods/a", "pods/b", "pods/c", "pods/d"].map(|name| scope.spawn(move || often(name)));
            for one in started {
                assert_eq!(one.join().unwrap(), Ok(()));
            }
        });
        assert_eq!(host.read_min(["pods"]), [Some(4)]);
    }

    #[test]
    fn unenforced_limit_is_error() {
        // A file that discards the value, as the kernel does for an unknown region.
        let host = Host::with(&["a"]);
        host.link("a/dmem.max", "/dev/null");
        assert_eq!(host.limit("a", 1, 2), Err(LimitError::NotEnforced.to_string()));
    }

    #[test]
    fn region_with_same_prefix_is_distinct() {
        let host = Host::with(&["a"]);
        let file = host.path("a/dmem.min");
        fs::write(&file, format!("{REGION}2 5\ndrm/x 3\n{REGION} max\n")).unwrap();
        assert_eq!((read_value(&file, REGION).unwrap(), read_value(&file, "drm").unwrap()), (Some(NONE), None));
    }

    #[test]
    fn limit_without_driver_support_is_refused() {
        let host = fake::Host::with_gpu(&[]);
        let driver = Driver::find(&host.root()).unwrap();
        let gpu = &driver.gpus[0];
        let refused = driver.limit_memory(gpu, host.path(), MemoryLimits { soft: 1, hard: 2 }, false).unwrap_err();
        assert!(refused.to_string().contains("the driver does not answer for GPU GPU-aaaa"), "{refused}");
        assert_eq!(region(gpu), REGION);
    }
}
