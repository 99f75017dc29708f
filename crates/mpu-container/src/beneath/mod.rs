//! Access to files below a container's root, whose contents are untrusted.
//!
//! The kernel resolves a path in one step, with the container's root as its `/`, so that neither a link nor a concurrent
//! rename leads out. The result is an open descriptor. A kernel without `openat2` (before Linux 5.6) is an error.
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
pub use read::{Entry, MOST_NAMES};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

/// Limit of retries of one lookup while other processes rename directories.
const RENAMES: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum BeneathError {
    #[error("this kernel has no openat2 (Linux 5.6 or later is needed to keep a container's links inside it)")]
    Kernel,
    #[error("cannot open the container's root {}", path.display())]
    Root { path: PathBuf, source: io::Error },
    #[error("cannot open the container's root {}: it leads through a process's own link in /proc, or in a circle", path.display())]
    Magic { path: PathBuf },
    #[error("cannot {act} {} in the container", path.display())]
    Path { act: &'static str, path: PathBuf, source: io::Error },
    #[error("{} in the container is not {wanted}", path.display())]
    Kind { path: PathBuf, wanted: &'static str },
    #[error("{} does not end in a file's name", path.display())]
    Name { path: PathBuf },
    #[error("{} in the container has more than {most} {what}", path.display())]
    Many { path: PathBuf, most: usize, what: &'static str },
    #[error("{} in the container is larger than {limit} bytes", path.display())]
    Large { path: PathBuf, limit: u64 },
}

impl BeneathError {
    pub fn is_missing(&self) -> bool {
        matches!(self, BeneathError::Path { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether the kernel refused for want of a permission, or because the file system cannot be written.
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

/// A resolved file below a root.
///
/// The descriptor is `O_PATH`, so a FIFO or a device is not opened.
#[derive(Debug)]
pub struct Beneath {
    fd: OwnedFd,
    path: PathBuf,
}

impl Root {
    /// Opens a root. The path is trusted and is resolved on the host. Magic links such as `/proc/self/cwd` are refused: they
    /// name a directory of this process.
    pub fn open(path: &Path) -> Result<Root, BeneathError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS);
        let path = path.to_path_buf();
        match fd {
            Ok(fd) => Ok(Root { fd, path }),
            Err(Errno::NOSYS) => Err(BeneathError::Kernel),
            Err(Errno::LOOP) => Err(BeneathError::Magic { path }),
            Err(error) => Err(BeneathError::Root { path, source: error.into() }),
        }
    }

    /// Its path on the host, for messages only.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is the root directory of this process, which is no container's.
    pub fn is_ours(&self) -> Result<bool, BeneathError> {
        let wrap = |error: Errno| BeneathError::Root { path: self.path.clone(), source: error.into() };
        let (here, ours) = (rustix::fs::fstat(&self.fd).map_err(wrap)?, rustix::fs::stat("/").map_err(wrap)?);
        Ok((here.st_dev, here.st_ino) == (ours.st_dev, ours.st_ino))
    }

    pub fn resolve(&self, path: &Path) -> Result<Beneath, BeneathError> {
        let fd = self.at(path, OFlags::PATH).map_err(|error| self.wrap("open", path, error))?;
        Ok(Beneath { fd, path: absolute(path) })
    }

    pub fn find(&self, path: &Path) -> Result<Option<Beneath>, BeneathError> {
        match self.resolve(path) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The one call by which names below the root are resolved.
    fn at(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        open_in_root(self.as_fd(), &below(path), flags)
    }

    fn wrap(&self, act: &'static str, path: &Path, error: Errno) -> BeneathError {
        match error {
            Errno::NOSYS => BeneathError::Kernel,
            _ => BeneathError::Path { act, path: absolute(path), source: error.into() },
        }
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Beneath {
    /// Its file system and its number there: the same for every name that it has.
    pub fn identity(&self) -> Result<(u64, u64), BeneathError> {
        let about = self.stat()?;
        Ok((about.st_dev, about.st_ino))
    }

    /// The path in the container by which it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn kind(&self) -> Result<FileType, BeneathError> {
        Ok(FileType::from_raw_mode(self.stat()?.st_mode))
    }

    /// Major and minor number of a character device; none when it is something else.
    pub fn device(&self) -> Result<Option<(u32, u32)>, BeneathError> {
        let about = self.stat()?;
        let is_device = FileType::from_raw_mode(about.st_mode) == FileType::CharacterDevice;
        Ok(is_device.then(|| (rustix::fs::major(about.st_rdev), rustix::fs::minor(about.st_rdev))))
    }

    fn stat(&self) -> Result<rustix::fs::Stat, BeneathError> {
        rustix::fs::fstat(&self.fd).map_err(|error| self.wrap("look at", error))
    }

    fn wrap(&self, act: &'static str, error: Errno) -> BeneathError {
        BeneathError::Path { act, path: self.path.clone(), source: error.into() }
    }
}

impl AsFd for Beneath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens what a path leads to if a folder is taken for `/`.
///
/// # Errors
/// `NOSYS` before Linux 5.6.
pub fn open_in_root(folder: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let mut until = None;
    loop {
        match rustix::fs::openat2(folder, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // A rename in the system conflicts with a `..` in our path; the kernel requests a retry. Limited by time: a container that
            // renames all the time would use up a count of retries within a millisecond.
            Err(Errno::AGAIN | Errno::INTR)
                if *until.get_or_insert_with(|| Instant::now() + RENAMES) > Instant::now() => {}
            result => return result,
        }
    }
}

/// The path as `openat2` wants it: relative, and `.` for the root itself.
fn below(path: &Path) -> PathBuf {
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
