//! Mounts and links in the container's file system, with undo.
//!
//! Each change is a step in a list, and steps are undone in reverse order: mounts end, and new mount points and links are removed. An
//! existing mount or link is not made again, so a second run is harmless.
//!
//! Source: mount(2), umount2(2).

use crate::beneath::host::PeerGroups;
use crate::beneath::{BeneathError, Handle, Restrictions, Root, Tree, restrict_mounted};
use crate::cli::log::Log;
use crate::cli::process::Process;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

#[derive(Debug, Error)]
pub enum ChangeError {
    #[error(transparent)]
    Beneath(#[from] BeneathError),
    #[error("cannot open {}", path.display())]
    Source { path: PathBuf, source: io::Error },
    #[error("cannot restrict the mount of {} in the container", path.display())]
    Restrict { path: PathBuf, source: io::Error },
    #[error("{} in the container lies on a volume that is mounted shared: what is mounted there is mounted on the host, too", .0.display())]
    Shared(PathBuf),
    #[error("cannot make a file system in memory for {} in the container", path.display())]
    Memory { path: PathBuf, source: io::Error },
}

/// A file or directory of the host (or, for the image's own libraries, of the container) as a detached mount. It can be attached in
/// another mount namespace.
#[derive(Debug)]
pub struct DetachedMount {
    tree: Tree,
    identity: (u64, u64),
    directory: bool,
}

impl DetachedMount {
    pub fn open(path: &Path) -> Result<DetachedMount, ChangeError> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let open = || {
            let fd = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
            DetachedMount::of(&fd)
        };
        open().map_err(|source: io::Error| ChangeError::Source { path: path.into(), source })
    }

    pub fn of(fd: impl AsFd) -> io::Result<DetachedMount> {
        let about = rustix::fs::fstat(&fd)?;
        let directory = FileType::from_raw_mode(about.st_mode) == FileType::Directory;
        Ok(DetachedMount { tree: Tree::of(&fd, directory)?, identity: (about.st_dev, about.st_ino), directory })
    }
}

#[derive(Debug)]
pub struct Changes<'a> {
    root: &'a Root,
    process: &'a Process,
    peers: PeerGroups,
    log: &'a Log,
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Mount(Tree, PathBuf),
    File(PathBuf),
    Directory(PathBuf),
    Link(PathBuf, Option<OsString>),
}

impl<'a> Changes<'a> {
    /// An empty list of steps below a root.
    pub fn nothing(root: &'a Root, process: &'a Process, peers: PeerGroups, log: &'a Log) -> Changes<'a> {
        Changes { root, process, peers, log, steps: Vec::new() }
    }

    pub fn root(&self) -> &'a Root {
        self.root
    }

    pub fn mount(
        &mut self,
        detached: DetachedMount,
        path: &Path,
        restrictions: Restrictions,
    ) -> Result<(), ChangeError> {
        if let Some(there) = self.root.find(path)?
            && there.identity()? == detached.identity
        {
            self.log.say(format_args!("{} is there already", path.display()));
            return Ok(());
        }
        self.not_shared(path)?;
        let target = if detached.directory { self.directory(path)? } else { self.file(path)? };
        self.attach(detached.tree, &target, path, Some(restrictions))
    }

    /// Mounts an empty file system in memory for small files, or reuses that of an earlier run.
    pub fn memory(&mut self, path: &Path) -> Result<(), ChangeError> {
        const SIZE: u64 = 1 << 20;
        self.not_shared(path)?;
        let target = self.directory(path)?;
        if self.is_memory(&target, path)? {
            return Ok(());
        }
        let tree = Tree::memory(SIZE).map_err(|source| ChangeError::Memory { path: path.into(), source })?;
        self.attach(tree, &target, path, None)
    }

    /// Whether a mount at a path would show on the host. For a missing path, its folder is checked.
    pub fn is_shared_with_host(&self, path: &Path) -> Result<bool, ChangeError> {
        if self.root.find(path)?.is_some_and(|there| there.is_shared_with_host()) {
            return Ok(true);
        }
        match self.not_shared(path) {
            Err(ChangeError::Shared(_)) => Ok(true),
            other => other.map(|()| false),
        }
    }

    fn not_shared(&self, path: &Path) -> Result<(), ChangeError> {
        for folder in path.ancestors() {
            let Some(there) = self.root.find(folder)? else { continue };
            // Before Linux 5.8 the kernel does not say which mount it is.
            let shared = self.process.read("mountinfo").and_then(|mounts| there.is_shared_with(&self.peers, &mounts));
            return if shared.unwrap_or(false) { Err(ChangeError::Shared(path.into())) } else { Ok(()) };
        }
        Ok(())
    }

    /// Writes a file into a file system in memory that was mounted here: it goes with that file system.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), ChangeError> {
        Ok(self.root.create_file(path, bytes, 0o444)?)
    }

    /// Makes a symbolic link. A link with another target is replaced; anything else is the image's own, and stays.
    pub fn link(&mut self, path: &Path, target: &Path) -> Result<(), ChangeError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        let folder = self.directory(parent)?;
        let before = match rustix::fs::readlinkat(&folder, name, Vec::new()) {
            Ok(before) => Some(OsString::from_vec(before.into_bytes())),
            Err(Errno::NOENT) => None,
            Err(_) => {
                self.log.say(format_args!("{} is the image's own", path.display()));
                return Ok(());
            }
        };
        if self.root.symlink(target, path)? {
            self.log.say(format_args!("link {} to {}", path.display(), target.display()));
            self.steps.push(Step::Link(path.into(), before));
        }
        Ok(())
    }

    fn attach(
        &mut self,
        tree: Tree,
        target: &Handle,
        path: &Path,
        restrictions: Option<Restrictions>,
    ) -> Result<(), ChangeError> {
        let failed = |source| ChangeError::Restrict { path: path.into(), source };
        // Before Linux 5.12, a mount can be restricted only where it is attached.
        let later = match restrictions.map(|restrictions| (restrictions, tree.restrict(restrictions))) {
            None | Some((_, Ok(()))) => None,
            Some((restrictions, Err(error))) if error.raw_os_error() == Some(Errno::NOSYS.raw_os_error()) => {
                Some(restrictions)
            }
            Some((_, Err(error))) => return Err(failed(error)),
        };
        let attach = || -> io::Result<()> { Ok(tree.attach(target.as_fd())?) };
        attach().map_err(|source| BeneathError::Path { act: "mount onto", path: path.into(), source })?;
        self.log.say(format_args!("mount {}", path.display()));
        let fd = tree.as_fd().as_raw_fd();
        self.steps.push(Step::Mount(tree, path.into()));
        if let Some(restrictions) = later
            && let Err(error) = restrict_mounted(&own(fd), restrictions)
        {
            // A mount without its restrictions must not stay.
            let _ = rustix::mount::unmount(own(fd), UnmountFlags::DETACH);
            self.steps.pop();
            return Err(failed(error.into()));
        }
        Ok(())
    }

    /// Something to mount a file on.
    fn file(&mut self, path: &Path) -> Result<Handle, ChangeError> {
        if let Some(parent) = path.parent() {
            self.directory(parent)?;
        }
        let missing = self.root.find(path)?.is_none();
        let file = self.root.touch_file(path)?;
        if missing {
            self.steps.push(Step::File(path.into()));
        }
        Ok(file)
    }

    fn directory(&mut self, path: &Path) -> Result<Handle, ChangeError> {
        let mut missing = Vec::new();
        for path in path.ancestors() {
            match self.root.find(path)? {
                Some(_) => break,
                None => missing.push(path.to_path_buf()),
            }
        }
        let directory = self.root.create_dir_all(path, 0o755)?;
        self.steps.extend(missing.into_iter().rev().map(Step::Directory));
        Ok(directory)
    }

    /// Whether a file system in memory is mounted at a directory: it differs from the one that the directory is in.
    fn is_memory(&self, target: &Handle, path: &Path) -> Result<bool, ChangeError> {
        const TMPFS: i64 = 0x0102_1994;
        let kind = rustix::fs::fstatfs(target).is_ok_and(|about| about.f_type == TMPFS);
        let parent = self.root.resolve(path.parent().unwrap_or(path))?;
        Ok(kind && parent.identity()?.0 != target.identity()?.0)
    }

    /// Takes everything out again. Reports each part that cannot be taken out, and leaves it.
    pub fn undo(self) {
        for step in self.steps.into_iter().rev() {
            let (what, undone) = match step {
                Step::Mount(tree, path) => {
                    // Not the path in the container: something else may have been put there.
                    let mounted = own(tree.as_fd().as_raw_fd());
                    (path, rustix::mount::unmount(mounted, UnmountFlags::DETACH).map_err(io::Error::from))
                }
                Step::File(path) => (path.clone(), self.root.remove_file(&path).map(drop).map_err(io::Error::other)),
                Step::Directory(path) => (path.clone(), remove_directory(self.root, &path)),
                Step::Link(path, None) => {
                    (path.clone(), self.root.remove_file(&path).map(drop).map_err(io::Error::other))
                }
                Step::Link(path, Some(before)) => {
                    let back = self.root.symlink(Path::new(&before), &path);
                    (path, back.map(drop).map_err(io::Error::other))
                }
            };
            match undone {
                Ok(()) => self.log.say(format_args!("undone: {}", what.display())),
                Err(error) => self.log.say(format_args!("cannot undo {}: {error}", what.display())),
            }
        }
    }
}

fn remove_directory(root: &Root, path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let folder: OwnedFd = root.resolve(parent).map_err(io::Error::other)?.as_fd().try_clone_to_owned()?;
    Ok(rustix::fs::unlinkat(&folder, name, AtFlags::REMOVEDIR)?)
}

fn own(fd: i32) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{fd}"))
}
