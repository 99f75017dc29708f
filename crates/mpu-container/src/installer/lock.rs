//! The file that one instance holds while it runs, with its process's number in it.

use super::error::InstallError;
use crate::output;
use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;
use rustix::process::getpid;
use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Held until it is dropped; then the file goes.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Takes it, if nobody has it.
    pub fn take(path: &Path) -> Result<Lock, InstallError> {
        let at = |source| InstallError::Place { path: path.to_path_buf(), source };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(at)?;
        }
        let mut file = loop {
            // What is in it may be another's: it is emptied by who has the lock.
            let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
            let mut options = File::options();
            let file = options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(path);
            let file = file.map_err(at)?;
            // To lock a file takes no more than to open it: one that was left by an older installer is everybody's to read.
            file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(at)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(InstallError::Busy(path.to_path_buf())),
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
        Ok(Lock { path: path.to_path_buf(), _file: file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            output::say(format!("nvidia-ctk-installer: cannot remove {}: {error}", self.path.display()));
        }
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
                        if let Ok(lock) = Lock::take(&path) {
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
        let _lock = Lock::take(&path).expect("a lock");
        assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o777, 0o600);
    }
}
