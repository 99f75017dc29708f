//! A file that one process at a time holds locked (flock(2)). It is root's alone: to lock a file takes no more than a descriptor, so
//! whoever may read it could hold it for ever.

use mpu_core::HostPid;
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::Host;
use mpu_host::progress::Progress;
use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How often somebody who waits looks.
const PAUSE: Duration = Duration::from_millis(10);

/// How much of `comm` there can be: 16 bytes and a line's end (proc_pid_comm(5)).
const COMMAND: usize = 64;

/// Somebody else holds the lock, and did not let it go in time.
#[derive(Debug, thiserror::Error)]
#[error("{} is held by {by}; waited {} s", path.display(), waited.as_secs())]
pub struct Held {
    pub path: PathBuf,
    pub by: String,
    pub waited: Duration,
}

impl Explain for Held {
    fn code(&self) -> &'static str {
        "lock_held"
    }

    fn exit(&self) -> Exit {
        Exit::Failed
    }

    fn fix(&self) -> String {
        "wait for that process, or end it, then try again".to_string()
    }
}

#[derive(Debug)]
pub enum LockError {
    Io(io::Error),
    Held(Held),
}

/// Opens such a file. One that others could open before is root's alone from now on.
pub fn open(path: &Path) -> io::Result<File> {
    // Whatever else lies there must not keep us: a link leads nowhere, and a pipe is not waited for.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut options = File::options();
    let file =
        options.create(true).truncate(false).read(true).write(true).mode(0o600).custom_flags(flags).open(path)?;
    if file.metadata()?.mode() & 0o077 != 0 {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Takes the lock, and waits no longer than `patience` for whoever has it. It is held while the file is open.
pub fn take(path: &Path, patience: Duration) -> Result<File, LockError> {
    let file = open(path).map_err(LockError::Io)?;
    hold(&file, path, patience)?;
    Ok(file)
}

/// The same with a file that is open already; `path` is what it is called when another has it.
pub fn hold(file: &File, path: &Path, patience: Duration) -> Result<(), LockError> {
    let began = Instant::now();
    let mut waiting = None;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => continue,
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(LockError::Io(error.into())),
        }
        if began.elapsed() >= patience {
            let (path, by) = (path.to_path_buf(), holders(file));
            return Err(LockError::Held(Held { path, by, waited: began.elapsed() }));
        }
        waiting.get_or_insert_with(|| Progress::of(format!("waiting for {} to finish", holders(file))));
        thread::sleep(PAUSE.min(patience));
    }
}

/// Who holds a lock of this file, in words.
fn holders(file: &File) -> String {
    let found: Vec<String> = file.metadata().map_or(Vec::new(), |ours| {
        let locks = Host::this().text("/proc/locks").unwrap_or_default();
        locks
            .lines()
            .filter_map(|line| holder(line, ours.ino()))
            .filter(|pid| has_open(*pid, &ours))
            .map(name)
            .collect()
    });
    match found.is_empty() {
        true => "a process that cannot be seen from here".to_string(),
        false => found.join(", "),
    }
}

/// The process of a line of /proc/locks (proc_locks(5)) that is about an flock of that inode. Waiters' lines have an arrow.
fn holder(line: &str, inode: u64) -> Option<HostPid> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, _, pid, place, ..] = words[..] else { return None };
    let is_ours = place.rsplit(':').next().and_then(|number| number.parse().ok()) == Some(inode);
    pid.parse().ok().and_then(HostPid::new).filter(|_| is_ours)
}

/// Whether a process has that very file open. Inodes of two file systems can have one number, and a line of /proc/locks does not name the
/// device that stat(2) does on every file system.
fn has_open(pid: HostPid, ours: &fs::Metadata) -> bool {
    let open = fs::read_dir(format!("/proc/{}/fd", pid.get())).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::metadata(entry.path()).ok()).any(|it| (it.dev(), it.ino()) == (ours.dev(), ours.ino()))
}

fn name(pid: HostPid) -> String {
    let comm = Host::this().beginning(format!("/proc/{}/comm", pid.get()), COMMAND).unwrap_or_default();
    // Whoever names a program may put control characters into the name.
    let text = String::from_utf8_lossy(&comm).trim_end().replace(char::is_control, "\u{fffd}");
    match text.is_empty() {
        true => format!("process {}", pid.get()),
        false => format!("process {} ({text})", pid.get()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_roots_alone_also_one_that_was_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        let mode = || fs::metadata(&path).expect("a file").mode() & 0o777;
        drop(open(&path).expect("open"));
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("as an older version made it");
        drop(take(&path, Duration::ZERO).expect("taken"));
        assert_eq!(mode(), 0o600);
    }

    #[test]
    fn a_wait_ends_and_names_who_holds_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        let first = take(&path, Duration::ZERO).expect("taken");
        let Err(LockError::Held(held)) = take(&path, Duration::from_millis(50)) else { panic!("two have it") };
        assert!(held.waited >= Duration::from_millis(50));
        let us = std::process::id();
        assert!(held.to_string().contains(&format!("lock is held by process {us} (")), "{held}");
        let (freed, later) = (Duration::from_millis(100), path.clone());
        let waits = thread::spawn(move || take(&later, Duration::from_secs(60)).map(drop).is_ok());
        thread::sleep(freed);
        drop(first);
        assert!(waits.join().expect("no panic"), "whoever waits has it when it is let go");
    }

    #[test]
    fn what_is_no_lock_is_an_error_and_is_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, "").expect("a file");
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        for path in [link, folder.path().to_path_buf(), folder.path().join("no/folder")] {
            assert!(matches!(take(&path, Duration::from_secs(60)), Err(LockError::Io(_))), "{}", path.display());
        }
    }

    #[test]
    fn a_line_of_another_file_or_kind_or_of_a_waiter_names_nobody() {
        let of = |line: &str| holder(line, 56).map(HostPid::get);
        assert_eq!(of("1: FLOCK  ADVISORY  WRITE 1234 00:2d:56 0 EOF"), Some(1234));
        for line in [
            "1: FLOCK  ADVISORY  WRITE 1234 00:2d:560 0 EOF",
            "1: POSIX  ADVISORY  WRITE 1234 00:2d:56 0 EOF",
            "1: -> FLOCK  ADVISORY  WRITE 1234 00:2d:56 0 EOF",
            "1: FLOCK  ADVISORY  WRITE -1 00:2d:56 0 EOF",
            "1: FLOCK  ADVISORY",
            "",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
    }
}
