//! Lock files: one process at a time holds the lock (flock(2)). The kernel releases it when the process ends.
//!
//! Every user who can open a file can lock it. So only its owner can open a lock file.

use crate::file::{Links, is_at, open_regular};
use crate::text::printable;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Interval between two attempts to take a lock.
const PAUSE: Duration = Duration::from_millis(5);

/// Why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The file cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Another process held it until the timeout.
    #[error(transparent)]
    Held(#[from] HeldLock),
}

/// A lock that another process holds.
#[derive(Debug, thiserror::Error)]
#[error("{} is held by {by}; waited {} s", path.display(), waited.as_secs())]
pub struct HeldLock {
    pub path: PathBuf,
    /// PID and command of each holder.
    pub by: String,
    pub waited: Duration,
}

/// Opens a lock file, creates a missing one, and takes all permissions of other users away.
///
/// # Errors
/// If the path is a symbolic link, or the folder is missing.
pub fn open(path: &Path) -> io::Result<File> {
    // Opening a pipe would block.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut options = File::options();
    let file =
        options.create(true).truncate(false).read(true).write(true).mode(0o600).custom_flags(flags).open(path)?;
    if file.metadata()?.mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Takes the lock, and waits up to `timeout` for its holder. The lock lasts while the returned file is open.
///
/// # Errors
/// If another process still holds the lock, or the file cannot be used.
pub fn take(path: &Path, timeout: Duration) -> Result<File, LockError> {
    let deadline = Instant::now() + timeout;
    loop {
        let file = open(path)?;
        hold(&file, path, deadline.saturating_duration_since(Instant::now()), |_| {})?;
        // The last holder may have removed the file since it was opened. No other process would see a lock on it.
        if is_at(&file, path) {
            return Ok(file);
        }
    }
}

/// Locks an open file or folder; `path` is its name in the error. Calls `on_wait` once, with the holder, before it waits.
///
/// # Errors
/// As [`take`].
pub fn hold(file: &File, path: &Path, timeout: Duration, on_wait: impl FnOnce(&str)) -> Result<(), LockError> {
    let began = Instant::now();
    let mut on_wait = Some(on_wait);
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => continue,
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(LockError::Io(error.into())),
        }
        let waited = began.elapsed();
        if waited >= timeout {
            return Err(LockError::Held(HeldLock { path: path.to_path_buf(), by: describe_holders(file), waited }));
        }
        if let Some(on_wait) = on_wait.take() {
            on_wait(&describe_holders(file));
        }
        thread::sleep(PAUSE.min(timeout));
    }
}

/// Whether a process holds the lock. The check itself holds it for a moment, so a process that takes the lock must wait a little.
pub fn is_held(path: &Path) -> bool {
    open_regular(path, Links::Refused)
        .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK))
}

/// Removes a lock file that no process holds. Holds the lock meanwhile, so no process takes the removed file.
pub fn remove_unheld(path: &Path) {
    let Ok(file) = open_regular(path, Links::Refused) else { return };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && is_at(&file, path) {
        let _ = fs::remove_file(path);
    }
}

fn describe_holders(file: &File) -> String {
    let Ok(lock) = file.metadata() else { return "another process".to_string() };
    // One read returns about a page. Locks that are taken between two reads move the lines, so a holder can be missed.
    let mut locks = String::new();
    let _ = File::open("/proc/locks").and_then(|mut file| file.read_to_string(&mut locks));
    let pids = locks.lines().filter_map(|line| parse_flock_holder(line, lock.ino()));
    let found: Vec<String> = pids.filter(|pid| has_open(*pid, &lock)).map(describe_process).collect();
    match found.is_empty() {
        true => "a process that cannot be seen from here".to_string(),
        false => found.join(", "),
    }
}

/// The process of a line of /proc/locks (proc_locks(5)), if it holds an flock on that inode. Lines of waiters have an arrow.
fn parse_flock_holder(line: &str, inode: u64) -> Option<u32> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, _, pid, device_and_inode, ..] = fields[..] else { return None };
    let is_same_file = device_and_inode.rsplit(':').next().and_then(|number| number.parse().ok()) == Some(inode);
    pid.parse().ok().filter(|_| is_same_file)
}

/// Whether a process has the file open. Two file systems can use one inode number, and on some /proc/locks names another device than stat(2).
fn has_open(pid: u32, lock: &Metadata) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::metadata(entry.path()).ok())
        .any(|open| (open.dev(), open.ino()) == (lock.dev(), lock.ino()))
}

fn describe_process(pid: u32) -> String {
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    match printable(String::from_utf8_lossy(&comm).trim_end(), 64) {
        comm if comm.is_empty() => format!("process {pid}"),
        comm => format!("process {pid} ({comm})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn lock_file_is_its_owners_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        for mode in [None, Some(0o644), Some(0o666)] {
            if let Some(mode) = mode {
                fs::set_permissions(&path, Permissions::from_mode(mode)).expect("changed");
            }
            drop(take(&path, Duration::ZERO).expect("taken"));
            assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn wait_for_lock_ends_and_names_holder() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        assert!(!is_held(&path) && !path.exists(), "looking makes nothing");
        let first = take(&path, Duration::ZERO).expect("taken");
        assert!(is_held(&path));
        let Err(LockError::Held(held)) = take(&path, Duration::from_millis(50)) else { panic!("two have it") };
        assert!(held.waited >= Duration::from_millis(50));
        let holder_text = format!("lock is held by process {} (", std::process::id());
        assert!(held.to_string().contains(&holder_text), "{held}");
        remove_unheld(&path);
        let (sender, reported) = std::sync::mpsc::channel();
        let waiter = thread::spawn({
            let path = path.clone();
            move || {
                let (file, mut by) = (open(&path).expect("open"), Vec::new());
                let report = |holder: &str| {
                    by.push(holder.to_string());
                    let _ = sender.send(());
                };
                hold(&file, &path, Duration::from_secs(60), report).map(|()| by)
            }
        });
        reported.recv().expect("it waits");
        thread::sleep(Duration::from_millis(300));
        drop(first);
        assert_eq!(waiter.join().expect("no panic").expect("its turn").len(), 1, "one report of the wait");
        // A child that another test forks at this moment has the lock until its exec.
        let began = Instant::now();
        while path.exists() {
            assert!(began.elapsed() < Duration::from_secs(60), "a lock without a holder is kept");
            remove_unheld(&path);
        }
    }

    #[test]
    fn recreated_lock_file_has_one_holder() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        let (holders, taken) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        let Ok(lock) = take(&path, Duration::ZERO) else { continue };
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "another one has it, too");
                        taken.fetch_add(1, Ordering::SeqCst);
                        thread::sleep(Duration::from_micros(20));
                        holders.fetch_sub(1, Ordering::SeqCst);
                        fs::remove_file(&path).expect("ours");
                        drop(lock);
                    }
                });
            }
        });
        assert!(taken.into_inner() > 1);
    }

    #[test]
    fn unusable_lock_file_is_error_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, "").expect("a file");
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        for path in [link, folder.path().to_path_buf(), folder.path().join("no/folder")] {
            assert!(matches!(take(&path, Duration::from_secs(60)), Err(LockError::Io(_))), "{}", path.display());
        }
    }

    #[test]
    fn foreign_lines_of_proc_locks_name_no_holder() {
        assert_eq!(parse_flock_holder("1: FLOCK  ADVISORY  WRITE 1234 00:2d:56 0 EOF", 56), Some(1234));
        for line in [
            "1: FLOCK  ADVISORY  WRITE 1234 00:2d:560 0 EOF",
            "1: POSIX  ADVISORY  WRITE 1234 00:2d:56 0 EOF",
            "1: -> FLOCK  ADVISORY  WRITE 1234 00:2d:56 0 EOF",
            "1: FLOCK  ADVISORY  WRITE -1 00:2d:56 0 EOF",
            "1: FLOCK  ADVISORY",
            "",
        ] {
            assert_eq!(parse_flock_holder(line, 56), None, "{line}");
        }
    }
}
