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
    /// Where it is on the host, as a path that we can open: the driver's root and what follows, links resolved below
    /// that root.
    pub host: PathBuf,
    /// Where it belongs in a container: the path below the driver's root. A library's and a socket's is where it really
    /// is; any other's is the path that programs know, though on the host that may be a link.
    pub container: PathBuf,
}

pub(super) struct RootDir {
    root: PathBuf,
    folder: OwnedFd,
}

impl RootDir {
    /// Opens a root. It is an error that it is not there, or is not `/` and the kernel (before 5.6) or a filter of system
    /// calls has no `openat2`: without it, another root's links would lead into the host.
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

    /// What a path below the root leads to, every link followed: its path below the root. None when there is nothing,
    /// or nothing that we may see.
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

    /// The path by which the host opens what lies at an absolute path below the root.
    pub(super) fn host(&self, below: &Path) -> PathBuf {
        self.root.join(below.strip_prefix("/").unwrap_or(below))
    }

    /// A file that is there, which a container gets where its links lead to.
    pub(super) fn file(&self, path: &Path) -> Option<File> {
        let container = self.resolve(path)?;
        Some(File { host: self.host(&container), container })
    }

    /// A file that is there, which a container gets under the path that is looked for.
    pub(super) fn file_as_named(&self, path: &Path) -> Option<File> {
        let host = self.host(&self.resolve(path)?);
        Some(File { host, container: Path::new("/").join(path.strip_prefix("/").unwrap_or(path)) })
    }

    /// The names in a folder, sorted, and the folder's path below the root; nothing where there is no such folder.
    pub(super) fn names(&self, folder: &Path) -> Option<(PathBuf, Vec<String>)> {
        let below = self.resolve(folder)?;
        let entries = fs::read_dir(self.host(&below)).ok()?;
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        Some((below, names))
    }
}
