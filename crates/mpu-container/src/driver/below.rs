//! Finds files below the driver's root.
//!
//! Owns how a path is followed there: the root of a driver container holds absolute links, which mean the container's
//! own files. The kernel follows them (`openat2`, `RESOLVE_IN_ROOT`), so that no link leads out. Refuses to know what is
//! looked for.

use super::files::File;
use rustix::fs::{Mode, OFlags, ResolveFlags, CWD};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The root of a driver, open.
pub(super) struct Below {
    root: PathBuf,
    folder: OwnedFd,
}

impl Below {
    /// Opens a root. The error says that it is not there.
    pub(super) fn open(root: &Path) -> std::io::Result<Below> {
        let root = fs::canonicalize(root)?;
        let folder = rustix::fs::openat(CWD, &root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Below { root, folder })
    }

    /// What a path below the root leads to, every link followed: its path below the root. None when there is nothing,
    /// or nothing that we may see.
    pub(super) fn resolve(&self, path: &Path) -> Option<PathBuf> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let limits = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let full = match rustix::fs::openat2(&self.folder, path, flags, Mode::empty(), limits) {
            Ok(file) => fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?,
            // Kernels before 5.6. A host's own root needs no guard; another root's links would lead into the host.
            Err(rustix::io::Errno::NOSYS) if self.root == Path::new("/") => {
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
