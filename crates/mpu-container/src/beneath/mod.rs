//! Opens files below a container's root, which is untrusted.
//!
//! `openat2` resolves a path with the container's root as `/`, so neither a link nor a concurrent rename leads out. The result
//! is an open descriptor. Kernels without `openat2` (before Linux 5.6) are an error.
//!
//! Source: openat2(2), `RESOLVE_IN_ROOT`.

pub(crate) mod host;
pub(crate) mod mount;
mod read;
mod sys;
#[cfg(test)]
pub(crate) mod tests;
mod write;

pub use mount::{Restrictions, Tree, restrict_mounted};
pub use read::{Entry, MAX_NAMES};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

/// How long one lookup is retried while other processes rename directories.
const RETRY_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum BeneathError {
    #[error("this kernel has no openat2 (Linux 5.6 or later is needed to keep a container's links inside it)")]
    NoOpenat2,
    #[error("cannot open the container's root {}", path.display())]
    Root { path: PathBuf, source: io::Error },
    #[error("cannot open the container's root {}: it leads through a process's own link in /proc, or in a circle", path.display())]
    MagicLink { path: PathBuf },
    #[error("cannot {act} {} in the container", path.display())]
    Path { act: &'static str, path: PathBuf, source: io::Error },
    #[error("{} in the container is not {wanted}", path.display())]
    WrongKind { path: PathBuf, wanted: &'static str },
    #[error("{} does not end in a file's name", path.display())]
    NoFileName { path: PathBuf },
    #[error("{} in the container has more than {most} {what}", path.display())]
    TooMany { path: PathBuf, most: usize, what: &'static str },
    #[error("{} in the container is larger than {limit} bytes", path.display())]
    TooLarge { path: PathBuf, limit: u64 },
}

impl BeneathError {
    pub fn is_missing(&self) -> bool {
        matches!(self, BeneathError::Path { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether a permission is missing, or the file system is read-only.
    pub fn is_denied(&self) -> bool {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        matches!(self, BeneathError::Path { source, .. } if matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem))
    }
}

#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    path: PathBuf,
}

/// A resolved file below a root. Its descriptor is `O_PATH`, so a FIFO or a device is not opened.
#[derive(Debug)]
pub struct Handle {
    fd: OwnedFd,
    path: PathBuf,
}

impl Root {
    /// Opens a root. The path is trusted and resolved on the host. Refuses magic links such as `/proc/self/cwd`, which lead
    /// to a directory of this process.
    pub fn open(path: &Path) -> Result<Root, BeneathError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS);
        let path = path.to_path_buf();
        match fd {
            Ok(fd) => Ok(Root { fd, path }),
            Err(Errno::NOSYS) => Err(BeneathError::NoOpenat2),
            Err(Errno::LOOP) => Err(BeneathError::MagicLink { path }),
            Err(error) => Err(BeneathError::Root { path, source: error.into() }),
        }
    }

    /// The path on the host, for messages only.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is the root directory of this process, so not a container's.
    pub fn is_process_root(&self) -> Result<bool, BeneathError> {
        let wrap = |error: Errno| BeneathError::Root { path: self.path.clone(), source: error.into() };
        let (root, own) = (rustix::fs::fstat(&self.fd).map_err(wrap)?, rustix::fs::stat("/").map_err(wrap)?);
        Ok((root.st_dev, root.st_ino) == (own.st_dev, own.st_ino))
    }

    pub fn resolve(&self, path: &Path) -> Result<Handle, BeneathError> {
        let fd = self.open_at(path, OFlags::PATH).map_err(|error| self.wrap("open", path, error))?;
        Ok(Handle { fd, path: absolute(path) })
    }

    pub fn find(&self, path: &Path) -> Result<Option<Handle>, BeneathError> {
        match self.resolve(path) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Every path below the root is resolved by this function.
    fn open_at(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        open_in_root(self.as_fd(), &relative_to_root(path), flags)
    }

    fn wrap(&self, act: &'static str, path: &Path, error: Errno) -> BeneathError {
        match error {
            Errno::NOSYS => BeneathError::NoOpenat2,
            _ => BeneathError::Path { act, path: absolute(path), source: error.into() },
        }
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Handle {
    /// Device and inode number: the same for every name of the file.
    pub fn identity(&self) -> Result<(u64, u64), BeneathError> {
        let stat = self.stat()?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// The path in the container.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn kind(&self) -> Result<FileType, BeneathError> {
        Ok(FileType::from_raw_mode(self.stat()?.st_mode))
    }

    /// Major and minor number of a character device. None for other files.
    pub fn device(&self) -> Result<Option<(u32, u32)>, BeneathError> {
        let stat = self.stat()?;
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        Ok(is_device.then(|| (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev))))
    }

    fn stat(&self) -> Result<rustix::fs::Stat, BeneathError> {
        rustix::fs::fstat(&self.fd).map_err(|error| self.wrap("look at", error))
    }

    fn wrap(&self, act: &'static str, error: Errno) -> BeneathError {
        BeneathError::Path { act, path: self.path.clone(), source: error.into() }
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a path with a folder as `/`.
///
/// # Errors
/// `NOSYS` before Linux 5.6.
pub fn open_in_root(folder: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let mut deadline = None;
    loop {
        match rustix::fs::openat2(folder, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // A concurrent rename conflicts with a `..` in the path; the kernel requests a retry. The limit is a time, because a container
            // that renames all the time would exhaust a number of retries within a millisecond.
            Err(Errno::AGAIN | Errno::INTR)
                if *deadline.get_or_insert_with(|| Instant::now() + RETRY_LIMIT) > Instant::now() => {}
            result => return result,
        }
    }
}

/// A relative path for `openat2`: `.` for the root itself.
fn relative_to_root(path: &Path) -> PathBuf {
    let mut name: PathBuf =
        path.components().filter(|part| !matches!(part, Component::RootDir | Component::CurDir)).collect();
    if name.as_os_str().is_empty() {
        name.push(".");
    }
    name
}

fn absolute(path: &Path) -> PathBuf {
    Path::new("/").join(path)
}
