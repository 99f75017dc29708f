//! Lock files with the holder's PID. A lock beside a configuration file covers read, change and replacement: otherwise one of two
//! concurrent changes would be lost.

use crate::output;
use crate::text_file;
use mpu_os::lock;
use rustix::process::getpid;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long to wait for another process that changes the same file.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Attempts to create a folder that another process removes concurrently.
const MAX_TRIES: usize = 20;

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("cannot lock {}", path.display())]
    Unusable { path: PathBuf, source: io::Error },
    #[error("{by} still holds {} after {} s: wait for it, or end it, then try again", path.display(), waited.as_secs())]
    Held { path: PathBuf, by: String, waited: Duration },
}

/// A held lock. Dropping it removes the file.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    created_folders: Vec<PathBuf>,
    file: File,
}

impl Lock {
    /// Locks a configuration file; for several files, the caller locks the first. None for a device or pipe, and if no file can be created
    /// beside it: then it cannot be replaced, either.
    pub fn of(path: &Path) -> Result<Option<Lock>, LockError> {
        if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return Ok(None);
        }
        let Ok(real) = text_file::resolve_links(path) else { return Ok(None) };
        let (Some(name), Some(folder)) = (real.file_name(), real.parent()) else { return Ok(None) };
        // Engines read all files of such a folder.
        let above = folder.parent().filter(|_| folder.extension().is_some_and(|end| end == "d"));
        let beside = above.unwrap_or(folder).join(format!(".{}.lock", name.to_string_lossy()));
        match Lock::take(&beside, TIMEOUT) {
            Err(LockError::Unusable { .. }) => Ok(None),
            taken => taken.map(Some),
        }
    }

    pub fn take(path: &Path, timeout: Duration) -> Result<Lock, LockError> {
        let at = |source| LockError::Unusable { path: path.to_path_buf(), source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let (mut created_folders, mut tries) = (Vec::new(), 0..MAX_TRIES);
        let file = loop {
            if let Some(folder) = folder {
                let missing =
                    folder.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
                created_folders.extend(missing.map(Path::to_path_buf));
            }
            let ready = folder.map_or(Ok(()), fs::create_dir_all).map_err(lock::LockError::Io);
            match ready.and_then(|()| lock::take(path, timeout)) {
                Ok(file) => break file,
                // A holder that created the folder removes it again, perhaps between our two calls.
                Err(lock::LockError::Io(error))
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists)
                        && tries.next().is_some() => {}
                Err(lock::LockError::Io(error)) => {
                    remove_empty(&created_folders);
                    return Err(at(error));
                }
                Err(lock::LockError::Held(lock::HeldLock { path, by, waited })) => {
                    return Err(LockError::Held { path, by, waited });
                }
            }
        };
        // From here on an error, such as a full disk, removes the file.
        let mut lock = Lock { path: path.to_path_buf(), created_folders, file };
        lock.file.set_len(0).map_err(at)?;
        writeln!(lock.file, "{}", getpid().as_raw_nonzero()).map_err(at)?;
        Ok(lock)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            output::eprint_line(format!("cannot remove {}: {error}", self.path.display()));
        }
        remove_empty(&self.created_folders);
    }
}

/// Removes folders, the innermost first. Stops at one that is not empty.
fn remove_empty(folders: &[PathBuf]) {
    let is_gone = |folder: &PathBuf| match fs::remove_dir(folder) {
        Err(error) => error.kind() == ErrorKind::NotFound,
        Ok(()) => true,
    };
    folders.iter().all(is_gone);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn lock_wait_ends_and_names_holder() {
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
        // The file of a process that was killed holds no lock.
        fs::write(&path, "1\n").expect("written");
        drop(Lock::take(&path, Duration::ZERO).expect("a lock"));
    }

    #[test]
    fn folders_made_for_lock_are_removed() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("etc/docker/daemon.json");
        drop(Lock::of(&file).expect("it is free").expect("a lock"));
        assert!(!dir.path().join("etc").exists());
        let lock = Lock::of(&file).expect("it is free").expect("a lock");
        fs::write(&file, "{}").expect("written");
        drop(lock);
        assert_eq!(fs::read_dir(file.parent().expect("a folder")).expect("read").count(), 1, "the file alone");
        let inside = dir.path().join("etc/crio/crio.conf.d/99.conf");
        let lock = Lock::of(&inside).expect("it is free").expect("a lock");
        assert!(!inside.parent().expect("a folder").exists(), "engines read all that is in it");
        drop(lock);
        assert!(Lock::of(Path::new("/dev/null")).expect("not locked").is_none());
    }

    #[test]
    fn lock_in_concurrently_removed_folder_is_taken() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a/b/lock");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| drop(Lock::take(&path, TIMEOUT).expect("a lock"))));
            }
        });
    }
}
