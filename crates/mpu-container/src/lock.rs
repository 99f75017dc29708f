//! A file that one process at a time holds while it works, with its process's number in it; and such a file beside one that is
//! read, changed and replaced, since of two who do so at once the second would take back what the first did.
//!
//! Owns that the file is its owner's alone, that a wait ends, and who is named then. What the lock guards is the caller's business.

use crate::output;
use crate::text_file;
use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;
use rustix::process::getpid;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How often somebody who waits looks.
const PAUSE: Duration = Duration::from_millis(10);

/// How long is waited for another who changes the same file: what a change takes is a moment.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How often a folder is made again that another takes away.
const TRIES: usize = 20;

/// Why a lock is not ours.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("cannot lock {}", path.display())]
    Unusable { path: PathBuf, source: io::Error },
    #[error("{by} still holds {} after {} s: wait for it, or end it, then try again", path.display(), waited.as_secs())]
    Held { path: PathBuf, by: String, waited: Duration },
}

/// Held until it is dropped; then the file goes.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    /// Folders that were made for it, innermost first.
    made: Vec<PathBuf>,
    _file: File,
}

impl Lock {
    /// Keeps others who ask from changing a file, or a folder's files by the first of them. None where nothing can be made beside it:
    /// then it cannot be replaced, either. A device or pipe is nobody's.
    ///
    /// # Errors
    /// If another has it still after [`PATIENCE`].
    pub fn of(path: &Path) -> Result<Option<Lock>, LockError> {
        if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            return Ok(None);
        }
        let Ok(real) = text_file::real(path) else { return Ok(None) };
        let (Some(name), Some(folder)) = (real.file_name(), real.parent()) else { return Ok(None) };
        // Engines read all that is in such a folder.
        let above = folder.parent().filter(|_| folder.extension().is_some_and(|end| end == "d"));
        let beside = above.unwrap_or(folder).join(format!(".{}.lock", name.to_string_lossy()));
        match Lock::take(&beside, PATIENCE) {
            Err(LockError::Unusable { .. }) => Ok(None),
            taken => taken.map(Some),
        }
    }

    /// Takes it, and waits no longer than `patience` for whoever has it.
    ///
    /// # Errors
    /// If another has it still, or the file cannot be made.
    pub fn take(path: &Path, patience: Duration) -> Result<Lock, LockError> {
        let began = Instant::now();
        let at = |source| LockError::Unusable { path: path.to_path_buf(), source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let (mut made, mut tries) = (Vec::new(), 0..TRIES);
        let mut file = loop {
            if let Some(folder) = folder {
                let missing =
                    folder.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
                made.extend(missing.map(Path::to_path_buf));
            }
            let ready = folder.map_or(Ok(()), fs::create_dir_all);
            // What is in it may be another's: it is emptied by who has the lock.
            let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
            let mut options = File::options();
            let file = options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(path);
            let file = match ready.and(file) {
                // Who had it before takes the folder away, too, if it made it.
                Err(error) if error.kind() == ErrorKind::NotFound && tries.next().is_some() => continue,
                file => file.map_err(at)?,
            };
            // To lock a file takes no more than to open it: one that was left by an older installer is everybody's to read.
            file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(at)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) if began.elapsed() < patience => {
                    thread::sleep(PAUSE);
                    continue;
                }
                Err(Errno::WOULDBLOCK) => {
                    let (path, by) = (path.to_path_buf(), holders(&file));
                    return Err(LockError::Held { path, by, waited: began.elapsed() });
                }
                Err(error) => return Err(at(error.into())),
            }
            // Who had it before may have removed it since it was opened: this would be a lock that nobody sees.
            let id = |of: &Metadata| (of.dev(), of.ino());
            match fs::symlink_metadata(path) {
                Ok(there) if id(&there) == id(&file.metadata().map_err(at)?) => break file,
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(at(error)),
                _ => {}
            }
        };
        file.set_len(0).map_err(at)?;
        writeln!(file, "{}", getpid().as_raw_nonzero()).map_err(at)?;
        Ok(Lock { path: path.to_path_buf(), made, _file: file })
    }
}

/// Who has a lock of this file, in words. The number in the file says less: it can be of another PID namespace.
fn holders(file: &File) -> String {
    let Ok(ours) = file.metadata() else { return "another process".to_string() };
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let found: Vec<String> = locks.lines().filter_map(|line| holder(line, &ours)).collect();
    match found.is_empty() {
        true => "a process that cannot be seen from here".to_string(),
        false => found.join(", "),
    }
}

/// The process of a line of /proc/locks (proc_locks(5)) that is about an flock of this file. Waiters' lines have an arrow. Files of two file
/// systems can have one number, so the process must have the file open.
fn holder(line: &str, ours: &Metadata) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, _, pid, place, ..] = words[..] else { return None };
    let id = |of: &Metadata| (of.dev(), of.ino());
    let pid: u32 = pid.parse().ok().filter(|_| place.rsplit(':').next() == Some(&ours.ino().to_string()))?;
    let mut open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    open.any(|entry| fs::metadata(entry.path()).is_ok_and(|of| id(&of) == id(ours))).then_some(())?;
    // Whoever names a program may put control characters into the name.
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name).trim_end().replace(char::is_control, "\u{fffd}");
    Some(format!("process {pid} ({name})"))
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            output::say(format!("cannot remove {}: {error}", self.path.display()));
        }
        // From the innermost on, as far as nothing was put in.
        self.made.iter().all(|folder| fs::remove_dir(folder).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn two_never_have_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("toolkit.pid");
        let (holders, taken) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..3_000 {
                        if let Ok(lock) = Lock::take(&path, Duration::ZERO) {
                            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "another one has it, too");
                            taken.fetch_add(1, Ordering::SeqCst);
                            std::thread::sleep(std::time::Duration::from_micros(20));
                            holders.fetch_sub(1, Ordering::SeqCst);
                            drop(lock);
                        }
                    }
                });
            }
        });
        assert!(taken.into_inner() > 1);
    }

    #[test]
    fn nobody_but_its_owner_can_hold_it_also_one_that_was_left() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("toolkit.pid");
        fs::write(&path, "").expect("as an older one left it");
        let _lock = Lock::take(&path, Duration::ZERO).expect("a lock");
        assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o777, 0o600);
    }

    #[test]
    fn a_wait_ends_and_names_who_has_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("lock");
        let first = Lock::take(&path, Duration::ZERO).expect("a lock");
        let error = Lock::take(&path, Duration::from_millis(50)).expect_err("two have it").to_string();
        assert!(error.starts_with(&format!("process {} (", std::process::id())), "{error}");
        assert!(error.contains(&path.display().to_string()), "{error}");
        let later = path.clone();
        let waits = thread::spawn(move || Lock::take(&later, Duration::from_secs(60)).map(drop));
        thread::sleep(Duration::from_millis(50));
        drop(first);
        waits.join().expect("ended").expect("its turn");
        assert!(!path.exists());
        // One that somebody left who was killed is nobody's.
        fs::write(&path, "1\n").expect("written");
        drop(Lock::take(&path, Duration::ZERO).expect("a lock"));
    }

    #[test]
    fn what_is_made_for_a_lock_goes_with_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("etc/docker/daemon.json");
        drop(Lock::of(&file).expect("nobody has it").expect("a lock"));
        assert!(!dir.path().join("etc").exists());
        let lock = Lock::of(&file).expect("nobody has it").expect("a lock");
        fs::write(&file, "{}").expect("written");
        drop(lock);
        assert_eq!(fs::read_dir(file.parent().expect("a folder")).expect("read").count(), 1, "the file alone");
        let inside = dir.path().join("etc/crio/crio.conf.d/99.conf");
        let lock = Lock::of(&inside).expect("nobody has it").expect("a lock");
        assert!(!inside.parent().expect("a folder").exists(), "engines read all that is in it");
        drop(lock);
        assert!(Lock::of(Path::new("/dev/null")).expect("nobody's").is_none());
    }

    #[test]
    fn a_wait_for_a_folder_that_comes_and_goes_ends_well() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a/b/lock");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| drop(Lock::take(&path, PATIENCE).expect("a lock"))));
            }
        });
    }
}
