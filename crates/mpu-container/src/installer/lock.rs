//! The file that one instance holds while it runs, with its process's number in it.

use super::error::InstallError;
use rustix::fs::{flock, FlockOperation};
use rustix::process::getpid;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
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
        // What is in it may be another's: it is emptied by who has the lock.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut file =
            File::options().write(true).create(true).truncate(false).custom_flags(flags).open(path).map_err(at)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| InstallError::Busy(path.to_path_buf()))?;
        file.set_len(0).map_err(at)?;
        writeln!(file, "{}", getpid().as_raw_nonzero()).map_err(at)?;
        Ok(Lock { path: path.to_path_buf(), _file: file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            eprintln!("nvidia-ctk-installer: cannot remove {}: {error}", self.path.display());
        }
    }
}
