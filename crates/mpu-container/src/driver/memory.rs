//! Limits of the GPU memory that a cgroup may use.
//!
//! | the driver counts | a limit is |
//! |---|---|
//! | by the kernel's controller `dmem` (Linux 6.14) | in the cgroup's own files, `dmem.max` and `dmem.min` |
//! | by itself, in the cgroups of the controller `misc` | in the driver, set by a control |
//!
//! Sums in the `dmem.min` of cgroups above are raised where that is allowed. A value there that is not the one we wrote
//! last is the administrator's: it is neither raised nor lowered.
//!
//! Source: NVIDIA, "MPS v3 Memory Partitioning" (what limits mean, sums in ancestors); open kernel modules 615:
//! `ctrl0000unix.h`, `memacct.c`, `os.c` (the region's name), `os-interface.c` (which cgroup of a process counts);
//! Linux, `Documentation/admin-guide/cgroup-v2.rst`, "DMEM", `kernel/cgroup/dmem.c` and `include/linux/page_counter.h`
//! (the largest value, and that it shows as `max`).

use super::{Driver, Gpu};
use mpu_os::lock::LockError;
use mpu_rm::{MemoryBackend, RmError};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a cgroup may use of a GPU's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Protected from reclaim by others.
    pub soft: u64,
    /// Maximum; [`MemoryLimits::NONE`] is no limit.
    pub hard: u64,
}

impl MemoryLimits {
    /// The number that stands for no limit.
    pub const NONE: u64 = u64::MAX;
}

/// Handling of the cgroups above one with protected memory. Its protection is effective only up to that of its ancestors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Above {
    Stay,
    /// Raises an ancestor's value to the sum of its children, unless the administrator has set it.
    Raise,
}

#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    #[error("GPU {0} is divided by MIG: the memory of a MIG device is what its profile says and cannot be limited")]
    Mig(String),
    #[error("the driver does not answer for GPU {0}: its device nodes are missing or may not be opened")]
    Silent(String),
    #[error("driver {0} cannot limit GPU memory: releases from 615 on can")]
    Release(String),
    #[error(
        "the driver does not count memory: RmMemacctMode=0 is set, or the kernel has neither cgroup controller dmem nor misc"
    )]
    Off,
    #[error("the cgroup {} has no controller {controller}: add +{controller} to cgroup.subtree_control of every cgroup above it", cgroup.display())]
    Controller { cgroup: PathBuf, controller: &'static str },
    #[error("cannot use {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("another container's start has held {} for too long: find it with `fuser -v {}`", .0.display(), .0.display())]
    Busy(PathBuf),
    #[error("{requested} bytes are asked for, and the GPU has {capacity}")]
    TooMuch { requested: u64, capacity: u64 },
    #[error("the driver refuses the limit")]
    Refused(#[source] RmError),
    #[error("the driver accepted the limit and enforces another one")]
    NotHeld,
}

impl Driver {
    pub fn limit_memory(&self, gpu: &Gpu, cgroup: &Path, limits: MemoryLimits, above: Above) -> Result<(), LimitError> {
        if gpu.mig_enabled {
            return Err(LimitError::Mig(gpu.uuid.clone()));
        }
        let client = self.client(gpu).ok_or_else(|| LimitError::Silent(gpu.uuid.clone()))?;
        match client.memory_backend() {
            None => Err(LimitError::Release(self.version.clone())),
            Some(MemoryBackend::None) => Err(LimitError::Off),
            Some(MemoryBackend::Dmem) => {
                has(cgroup, "dmem")?;
                let records = (above == Above::Raise).then(|| Path::new(RECORDS));
                limit(&region(gpu), cgroup, limits, records)
            }
            Some(MemoryBackend::Driver) => {
                // The driver counts a process in the nearest cgroup that has the controller: a limit below has no effect.
                has(cgroup, "misc")?;
                let folder = File::open(cgroup).map_err(unusable(cgroup))?;
                client.set_memory_limits(folder.as_fd(), [limits.soft, limits.hard]).map_err(LimitError::Refused)?;
                match client.memory_limits(folder.as_fd()) {
                    Some(current) if current == [limits.soft, limits.hard] => Ok(()),
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

/// Records of the values that we last wrote in cgroups above containers'.
const RECORDS: &str = "/run/mpu-container/dmem";
/// Limit of the wait for other containers' starts: each makes a few writes.
const PATIENCE: Duration = Duration::from_secs(10);
/// From here on the kernel may show a value as `max`: the limit of its counters, with the largest pages that there are.
const ENDLESS: u64 = i64::MAX as u64 / (64 << 10);

/// Writes the limits of a cgroup. With a folder for records, also raises the cgroups above it.
fn limit(region: &str, cgroup: &Path, limits: MemoryLimits, records: Option<&Path>) -> Result<(), LimitError> {
    // The file is in the topmost cgroup alone.
    let capacity = cgroup.ancestors().find_map(|folder| read(&folder.join("dmem.capacity"), region).ok().flatten());
    let requested = [limits.soft, limits.hard].into_iter().filter(|value| *value != MemoryLimits::NONE).max();
    if let (Some(requested), Some(capacity)) = (requested, capacity)
        && requested > capacity
    {
        return Err(LimitError::TooMuch { requested, capacity });
    }
    for (file, value) in [("dmem.max", limits.hard), ("dmem.min", limits.soft)] {
        set(&cgroup.join(file), region, value)?;
    }
    let Some(records) = records.filter(|_| limits.soft > 0) else { return Ok(()) };
    match raise(region, cgroup, records, capacity) {
        // Not ours to write: a user's own engine, or a cgroup that was delegated to it, ends here.
        Err(LimitError::File { source, .. })
            if matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) =>
        {
            Ok(())
        }
        done => done,
    }
}

fn raise(region: &str, cgroup: &Path, records: &Path, capacity: Option<u64>) -> Result<(), LimitError> {
    let _lock = lock(records, PATIENCE)?;
    for folder in cgroup.ancestors().skip(1).take_while(|folder| folder.join("dmem.min").exists()) {
        if !keep_sum(region, folder, records, capacity)? {
            break;
        }
        forget_the_gone(region, folder, records);
    }
    Ok(())
}

fn unusable(path: &Path) -> impl Fn(io::Error) -> LimitError + '_ {
    |source| LimitError::File { path: path.to_path_buf(), source }
}

/// Serializes concurrent container starts, with a limit of the wait.
fn lock(records: &Path, patience: Duration) -> Result<File, LimitError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(records).map_err(unusable(records))?;
    let folder = File::open(records).map_err(unusable(records))?;
    match mpu_os::lock::hold(&folder, records, patience, |_| {}) {
        Ok(()) => Ok(folder),
        Err(LockError::Io(error)) => Err(unusable(records)(error)),
        Err(LockError::Held(_)) => Err(LimitError::Busy(records.to_path_buf())),
    }
}

/// Raises a cgroup's value to the sum of its children; returns false if the value is the administrator's. Other programs may write
/// at the same time: each writer checks again, so the last one has seen every child.
fn keep_sum(region: &str, folder: &Path, records: &Path, capacity: Option<u64>) -> Result<bool, LimitError> {
    const TRIES: usize = 100;
    let file = folder.join("dmem.min");
    let record = record(region, folder, records);
    for _ in 0..TRIES {
        let sum = kept_by_children(region, folder, capacity)?;
        let there = read(&file, region).map_err(unusable(&file))?.unwrap_or(0);
        if there != 0 && !wrote(&record, there) {
            return Ok(false);
        }
        if let Some(above) = record.parent() {
            fs::create_dir_all(above).map_err(unusable(above))?;
        }
        // Both, so that the value is known for ours whenever this ends.
        fs::write(&record, format!("{there} {sum}\n")).map_err(unusable(&record))?;
        write(&file, region, sum)?;
        let current = read(&file, region).map_err(unusable(&file))?;
        if holds(current, sum) && kept_by_children(region, folder, capacity)? == sum {
            return Ok(true);
        }
    }
    Err(LimitError::NotHeld)
}

/// The file with what we wrote last for a region of a cgroup. No cgroup has the name of one of its files.
fn record(region: &str, folder: &Path, records: &Path) -> PathBuf {
    let below = folder.strip_prefix("/").unwrap_or(folder);
    records.join(region.replace('/', "%")).join(below).join("dmem.min")
}

/// Removes records of a folder's removed cgroups: each pod has a new name. Only beside the cgroup of the starting container, where all
/// cgroups are visible. Errors are ignored; the next start tries again.
fn forget_the_gone(region: &str, folder: &Path, records: &Path) {
    let Some(kept) = record(region, folder, records).parent().and_then(|kept| fs::read_dir(kept).ok()) else { return };
    for child in kept.flatten().filter(|child| child.file_type().is_ok_and(|kind| kind.is_dir())) {
        if !folder.join(child.file_name()).exists() {
            let _ = fs::remove_dir_all(child.path());
        }
    }
}

fn wrote(record: &Path, value: u64) -> bool {
    let text = fs::read_to_string(record).unwrap_or_default();
    text.split_whitespace().any(|word| word.parse() == Ok(value))
}

/// The sum of the values of a folder's cgroups, at most the GPU's memory. Otherwise a `max` in one would go up to the topmost cgroup.
fn kept_by_children(region: &str, folder: &Path, capacity: Option<u64>) -> Result<u64, LimitError> {
    let most = capacity.unwrap_or(u64::MAX);
    let mut sum = 0u64;
    for child in fs::read_dir(folder).map_err(unusable(folder))? {
        let file = child.map_err(unusable(folder))?.path().join("dmem.min");
        // A cgroup can be gone by now, or not take part.
        sum = sum.saturating_add(read(&file, region).ok().flatten().unwrap_or(0)).min(most);
    }
    Ok(sum)
}

fn set(path: &Path, region: &str, value: u64) -> Result<(), LimitError> {
    write(path, region, value)?;
    let current = read(path, region).map_err(unusable(path))?;
    if holds(current, value) { Ok(()) } else { Err(LimitError::NotHeld) }
}

fn write(path: &Path, region: &str, value: u64) -> Result<(), LimitError> {
    let word = if value == MemoryLimits::NONE { "max".to_string() } else { value.to_string() };
    // Never made: where there is none, the kernel has none.
    let file = File::options().write(true).truncate(true).open(path);
    let written = file.and_then(|mut file| io::Write::write_all(&mut file, format!("{region} {word}\n").as_bytes()));
    written.map_err(unusable(path))
}

fn holds(shown: Option<u64>, written: u64) -> bool {
    shown == Some(written) || shown == Some(MemoryLimits::NONE) && written >= ENDLESS
}

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
    use crate::driver::fake;

    const REGION: &str = "nvidia/00000000:1B:00.0/vidmem";

    /// cgroups as folders, with files of the controller in them. The kernel keeps a value for each region; a plain file
    /// keeps what was written last.
    struct Host(tempfile::TempDir);

    #[test]
    fn hung_start_delays_others_for_limited_time() {
        let records = tempfile::tempdir().unwrap();
        let current = lock(records.path(), Duration::ZERO).unwrap();
        let error = lock(records.path(), Duration::from_millis(20)).unwrap_err().to_string();
        assert!(error.contains("another container's start") && error.contains("fuser -v /"), "{error}");
        drop(current);
        lock(records.path(), Duration::ZERO).unwrap();
    }

    impl Host {
        fn with(cgroups: &[&str]) -> Host {
            let host = Host(tempfile::tempdir().unwrap());
            cgroups.iter().for_each(|cgroup| host.cgroup(cgroup));
            host
        }

        fn cgroup(&self, path: &str) {
            fs::create_dir_all(self.path(path)).unwrap();
            for file in ["dmem.max", "dmem.min"] {
                fs::write(self.path(path).join(file), "").unwrap();
            }
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn keep(&self, cgroup: &str, value: &str) {
            fs::write(self.path(cgroup).join("dmem.min"), format!("{REGION} {value}\n")).unwrap();
        }

        fn kept(&self, cgroup: &str) -> Option<u64> {
            read(&self.path(cgroup).join("dmem.min"), REGION).unwrap()
        }

        fn limit(&self, cgroup: &str, soft: u64, hard: u64) -> Result<(), String> {
            self.limit_as(cgroup, soft, hard, Some(&self.path("records")))
        }

        fn limit_as(&self, cgroup: &str, soft: u64, hard: u64, records: Option<&Path>) -> Result<(), String> {
            let limits = MemoryLimits { soft, hard };
            limit(REGION, &self.path(cgroup), limits, records).map_err(|error| error.to_string())
        }
    }

    #[test]
    fn limits_are_written_and_summed_up_above() {
        let host = Host::with(&["pods", "pods/a", "pods/b"]);
        let at = |path: &str| fs::read_to_string(host.path(path)).unwrap();
        assert_eq!(host.limit("pods/a", 5, 7), Ok(()));
        assert_eq!((at("pods/a/dmem.max"), at("pods/a/dmem.min")), (format!("{REGION} 7\n"), format!("{REGION} 5\n")));
        assert_eq!(host.limit("pods/b", 3, MemoryLimits::NONE), Ok(()));
        assert_eq!(at("pods/b/dmem.max"), format!("{REGION} max\n"));
        assert_eq!(host.kept("pods"), Some(8), "and nothing above, where the controller is not");
        // What a container kept does not count once it is gone.
        fs::remove_dir_all(host.path("pods/a")).unwrap();
        assert_eq!(host.limit("pods/b", 1, 2), Ok(()));
        assert_eq!(host.kept("pods"), Some(1));
    }

    #[test]
    fn cgroups_above_stay_unless_they_may_be_raised() {
        let host = Host::with(&["pods", "pods/a"]);
        assert_eq!(host.limit_as("pods/a", 5, 7, None), Ok(()));
        assert_eq!((host.kept("pods/a"), host.kept("pods")), (Some(5), None));
    }

    #[test]
    fn administrators_limit_is_kept() {
        let host = Host::with(&["top", "top/pods", "top/pods/a"]);
        for keeps in ["3", "100", "max"] {
            host.keep("top/pods", keeps);
            assert_eq!(host.limit("top/pods/a", 5, 7), Ok(()));
            assert_eq!(fs::read_to_string(host.path("top/pods/dmem.min")).unwrap(), format!("{REGION} {keeps}\n"));
            assert_eq!(host.kept("top"), None, "nor is anything above it ours");
        }
        // What we wrote is ours until another process writes.
        host.keep("top/pods", "0");
        assert_eq!(host.limit("top/pods/a", 5, 7), Ok(()));
        assert_eq!(host.limit("top/pods/a", 6, 7), Ok(()));
        assert_eq!((host.kept("top/pods"), host.kept("top")), (Some(6), Some(6)));
        host.keep("top", "9");
        assert_eq!(host.limit("top/pods/a", 4, 7), Ok(()));
        assert_eq!((host.kept("top/pods"), host.kept("top")), (Some(4), Some(9)));
    }

    #[test]
    fn limit_above_gpus_memory_is_refused() {
        let host = Host::with(&["pods", "pods/a"]);
        fs::write(host.path("dmem.capacity"), format!("{REGION} 100\n")).unwrap();
        assert_eq!(host.limit("pods/a", 100, MemoryLimits::NONE), Ok(()));
        for (soft, hard) in [(1, 101), (101, MemoryLimits::NONE)] {
            let refused = host.limit("pods/a", soft, hard).unwrap_err();
            assert_eq!(refused, "101 bytes are asked for, and the GPU has 100");
        }
    }

    #[test]
    fn limit_shown_as_max_is_held() {
        // `NVIDIA_GPU_MEMORY_LIMIT=2147483647`, and the sum of two such.
        for written in [((1u64 << 31) - 1) << 20, 1 << 52] {
            assert!(holds(Some(MemoryLimits::NONE), written));
        }
        assert!(!holds(Some(MemoryLimits::NONE), 1 << 40) && !holds(None, 1) && !holds(Some(2), 1));
        // One that keeps more than can be counted does not refuse the others.
        let host = Host::with(&["pods", "pods/a", "pods/b"]);
        host.keep("pods/b", "max");
        assert_eq!(host.limit("pods/a", 5, 7), Ok(()));
        assert_eq!(host.kept("pods"), Some(MemoryLimits::NONE));
    }

    #[test]
    fn container_request_counts_at_most_gpu_memory() {
        let host = Host::with(&["top", "top/pods", "top/pods/a", "top/pods/b"]);
        fs::write(host.path("dmem.capacity"), format!("{REGION} 100\n")).unwrap();
        for claims in ["max", "1000"] {
            host.keep("top/pods/b", claims);
            assert_eq!(host.limit("top/pods/a", 5, 7), Ok(()));
            assert_eq!((host.kept("top/pods"), host.kept("top")), (Some(100), Some(100)), "{claims}");
        }
        host.keep("top/pods/b", "3");
        assert_eq!(host.limit("top/pods/a", 5, 7), Ok(()));
        assert_eq!((host.kept("top/pods"), host.kept("top")), (Some(8), Some(8)));
    }

    #[test]
    fn records_go_with_their_cgroups() {
        let pods: Vec<String> = (0..20).map(|number| format!("kube/pod{number}")).collect();
        let containers: Vec<String> = pods.iter().map(|pod| format!("{pod}/c")).collect();
        let all: Vec<&str> = ["kube"].into_iter().chain(pods.iter().chain(&containers).map(String::as_str)).collect();
        let host = Host::with(&all);
        let kept = |pod: &str| record(REGION, &host.path(pod), &host.path("records")).exists();
        for (pod, container) in pods.iter().zip(&containers) {
            assert_eq!(host.limit(container, 1, 1), Ok(()));
            fs::remove_dir_all(host.path(pod)).unwrap();
        }
        host.cgroup("kube/last");
        host.cgroup("kube/last/c");
        assert_eq!(host.limit("kube/last/c", 1, 1), Ok(()));
        let left: Vec<&String> = pods.iter().filter(|pod| kept(pod)).collect();
        assert_eq!(left, [""; 0], "records of cgroups that are gone");
        assert!(kept("kube") && kept("kube/last"));
        assert_eq!(host.kept("kube"), Some(1));
    }

    #[test]
    fn unwritable_cgroup_ends_walk() {
        // The kernel lets no process write here, not even root's.
        let host = Host::with(&["pods", "pods/a"]);
        let file = host.path("pods/dmem.min");
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/proc/sys/kernel/cap_last_cap", &file).unwrap();
        assert_eq!(host.limit("pods/a", 5, 7), Ok(()));
        assert_eq!(host.kept("pods/a"), Some(5));
    }

    #[test]
    fn simultaneous_starts_all_succeed() {
        let names: Vec<String> = (0..8).map(|number| format!("pods/{number}")).collect();
        let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
        all.push("pods");
        let host = Host::with(&all);
        let often = |name: &String| (0..50).try_for_each(|_| host.limit(name, 1, 1));
        std::thread::scope(|scope| {
            let started: Vec<_> = names.iter().map(|name| scope.spawn(|| often(name))).collect();
            for one in started {
                assert_eq!(one.join().unwrap(), Ok(()));
            }
        });
        assert_eq!(host.kept("pods"), Some(8));
    }

    #[test]
    fn unheld_limit_is_error() {
        let host = Host::with(&["a"]);
        let file = host.path("a/dmem.max");
        // A file that keeps nothing, as one of a kernel that does not know the region.
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/null", &file).unwrap();
        let error = limit(REGION, &host.path("a"), MemoryLimits { soft: 1, hard: 2 }, None).unwrap_err();
        assert!(matches!(error, LimitError::NotHeld), "{error}");
    }

    #[test]
    fn region_with_same_prefix_is_distinct() {
        let host = Host::with(&["a"]);
        let file = host.path("a/dmem.min");
        fs::write(&file, format!("{REGION}2 5\ndrm/x 3\n{REGION} max\n")).unwrap();
        assert_eq!(read(&file, REGION).unwrap(), Some(MemoryLimits::NONE));
        assert_eq!(read(&file, "drm").unwrap(), None);
    }

    #[test]
    fn limit_without_driver_support_is_refused() {
        let host = fake::Host::with_gpu(&[]);
        let mut driver = Driver::find(&host.root()).unwrap();
        let limits = MemoryLimits { soft: 1, hard: 2 };
        let refused = |driver: &Driver| {
            driver.limit_memory(&driver.gpus[0], host.path(), limits, Above::Stay).unwrap_err().to_string()
        };
        assert!(refused(&driver).contains("the driver does not answer for GPU GPU-aaaa"), "{}", refused(&driver));
        assert_eq!(region(&driver.gpus[0]), REGION);
        driver.gpus[0].mig_enabled = true;
        assert!(refused(&driver).contains("is divided by MIG"));
    }
}
