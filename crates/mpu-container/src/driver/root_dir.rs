//! Finds files below the driver's root.

use crate::beneath::open_in_root;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct File {
    /// The path on the host, below the driver's root. Links are resolved below that root.
    pub host: PathBuf,
    /// The path in the container: the path below the driver's root. Links are resolved for libraries and sockets. Other files
    /// keep the path that programs use, which may be a link on the host.
    pub container: PathBuf,
}

pub(super) struct RootDir {
    root: PathBuf,
    folder: OwnedFd,
}

impl RootDir {
    /// # Errors
    /// If the root does not exist. If it is not `/` and `openat2` is missing (before Linux 5.6) or forbidden by a seccomp
    /// filter: without it, the root's links would lead into the host.
    pub(super) fn open(root: &Path) -> io::Result<RootDir> {
        let root = fs::canonicalize(root)?;
        let folder = rustix::fs::openat(CWD, &root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let root_dir = RootDir { root, folder };
        match root_dir.openat2(Path::new(".")) {
            Err(Errno::NOSYS | Errno::PERM) if root_dir.root != Path::new("/") => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "links below it can only be followed with openat2, which this kernel lacks or a filter forbids",
            )),
            _ => Ok(root_dir),
        }
    }

    fn openat2(&self, path: &Path) -> Result<OwnedFd, Errno> {
        open_in_root(self.folder.as_fd(), path, OFlags::PATH)
    }

    /// Resolves all links of a path below the root. Returns the path below the root. None if the file does not exist or may
    /// not be read.
    pub(super) fn resolve(&self, path: &Path) -> Option<PathBuf> {
        let full = match self.openat2(path) {
            Ok(file) => fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?,
            Err(Errno::NOSYS | Errno::PERM) if self.root == Path::new("/") => {
                fs::canonicalize(Path::new("/").join(path)).ok()?
            }
            Err(_) => return None,
        };
        full.strip_prefix(&self.root).ok().map(|below| Path::new("/").join(below))
    }

    /// The host's path of an absolute path below the root.
    pub(super) fn host(&self, below: &Path) -> PathBuf {
        self.root.join(below.strip_prefix("/").unwrap_or(below))
    }

    /// An existing file. The container gets it at its resolved path.
    pub(super) fn file(&self, path: &Path) -> Option<File> {
        let container = self.resolve(path)?;
        Some(File { host: self.host(&container), container })
    }

    /// An existing file. The container gets it at the given path.
    pub(super) fn file_as_named(&self, path: &Path) -> Option<File> {
        let host = self.host(&self.resolve(path)?);
        Some(File { host, container: Path::new("/").join(path.strip_prefix("/").unwrap_or(path)) })
    }

    /// The resolved path of a folder and its sorted names. None if the folder does not exist.
    pub(super) fn names(&self, folder: &Path) -> Option<(PathBuf, Vec<String>)> {
        let below = self.resolve(folder)?;
        let entries = fs::read_dir(self.host(&below)).ok()?;
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        Some((below, names))
    }
}
