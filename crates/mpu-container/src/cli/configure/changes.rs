//! Mounts and links in the container's file system, with undo.
//!
//! Each change is a step in a list, and steps are undone in reverse order: mounts are detached, and new mount points and links are
//! removed. An existing mount or link is not created again, so a second run changes nothing.
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
    Tmpfs { path: PathBuf, source: io::Error },
}

/// A detached mount of a file or directory: of the host or, for the image's own libraries, of the container. It can be attached in another
/// mount namespace.
#[derive(Debug)]
pub struct DetachedMount {
    tree: Tree,
    identity: (u64, u64),
    is_directory: bool,
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
        let metadata = rustix::fs::fstat(&fd)?;
        let is_directory = FileType::from_raw_mode(metadata.st_mode) == FileType::Directory;
        Ok(DetachedMount {
            tree: Tree::of(&fd, is_directory)?,
            identity: (metadata.st_dev, metadata.st_ino),
            is_directory,
        })
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
    pub fn new(root: &'a Root, process: &'a Process, peers: PeerGroups, log: &'a Log) -> Changes<'a> {
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
        if let Some(existing) = self.root.find(path)?
            && existing.identity()? == detached.identity
        {
            self.log.write_line(format_args!("{} is there already", path.display()));
            return Ok(());
        }
        self.check_not_shared(path)?;
        let target = if detached.is_directory { self.create_directory(path)? } else { self.create_file(path)? };
        self.attach(detached.tree, &target, path, Some(restrictions))
    }

    /// Mounts an empty tmpfs for small files, or reuses that of an earlier run.
    pub fn mount_tmpfs(&mut self, path: &Path) -> Result<(), ChangeError> {
        const SIZE: u64 = 1 << 20;
        self.check_not_shared(path)?;
        let target = self.create_directory(path)?;
        if self.is_tmpfs(&target, path)? {
            return Ok(());
        }
        let tree = Tree::memory(SIZE).map_err(|source| ChangeError::Tmpfs { path: path.into(), source })?;
        self.attach(tree, &target, path, None)
    }

    /// Whether a mount at a path would propagate to the host. For a missing path, its nearest existing parent is checked.
    pub fn is_shared_with_host(&self, path: &Path) -> Result<bool, ChangeError> {
        if self.root.find(path)?.is_some_and(|existing| existing.is_shared_with_host()) {
            return Ok(true);
        }
        match self.check_not_shared(path) {
            Err(ChangeError::Shared(_)) => Ok(true),
            other => other.map(|()| false),
        }
    }

    fn check_not_shared(&self, path: &Path) -> Result<(), ChangeError> {
        for directory in path.ancestors() {
            let Some(existing) = self.root.find(directory)? else { continue };
            // Kernels before Linux 5.8 do not report the mount of a file.
            let shared =
                self.process.read("mountinfo").and_then(|mounts| existing.is_shared_with(&self.peers, &mounts));
            return if shared.unwrap_or(false) { Err(ChangeError::Shared(path.into())) } else { Ok(()) };
        }
        Ok(())
    }

    /// Writes a file into a tmpfs of [`Changes::mount_tmpfs`]. It needs no undo step: it ends with the tmpfs.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), ChangeError> {
        Ok(self.root.create_file(path, bytes, 0o444)?)
    }

    /// Creates a symbolic link. Replaces a link with another target; any other existing file is the image's, and stays.
    pub fn link(&mut self, path: &Path, target: &Path) -> Result<(), ChangeError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        let directory_fd = self.create_directory(parent)?;
        let before = match rustix::fs::readlinkat(&directory_fd, name, Vec::new()) {
            Ok(before) => Some(OsString::from_vec(before.into_bytes())),
            Err(Errno::NOENT) => None,
            Err(_) => {
                self.log.write_line(format_args!("{} is the image's own", path.display()));
                return Ok(());
            }
        };
        if self.root.symlink(target, path)? {
            self.log.write_line(format_args!("link {} to {}", path.display(), target.display()));
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
        let remaining = match restrictions.map(|restrictions| (restrictions, tree.restrict(restrictions))) {
            None | Some((_, Ok(()))) => None,
            Some((restrictions, Err(error))) if error.raw_os_error() == Some(Errno::NOSYS.raw_os_error()) => {
                Some(restrictions)
            }
            Some((_, Err(error))) => return Err(failed(error)),
        };
        let attach = || -> io::Result<()> { Ok(tree.attach(target.as_fd())?) };
        attach().map_err(|source| BeneathError::Path { act: "mount onto", path: path.into(), source })?;
        self.log.write_line(format_args!("mount {}", path.display()));
        let fd = tree.as_fd().as_raw_fd();
        self.steps.push(Step::Mount(tree, path.into()));
        if let Some(restrictions) = remaining
            && let Err(error) = restrict_mounted(&proc_fd_path(fd), restrictions)
        {
            // A mount without its restrictions must not stay.
            let _ = rustix::mount::unmount(proc_fd_path(fd), UnmountFlags::DETACH);
            self.steps.pop();
            return Err(failed(error.into()));
        }
        Ok(())
    }

    /// Creates a mount point for a file if the path is missing.
    fn create_file(&mut self, path: &Path) -> Result<Handle, ChangeError> {
        if let Some(parent) = path.parent() {
            self.create_directory(parent)?;
        }
        let missing = self.root.find(path)?.is_none();
        let file = self.root.touch_file(path)?;
        if missing {
            self.steps.push(Step::File(path.into()));
        }
        Ok(file)
    }

    fn create_directory(&mut self, path: &Path) -> Result<Handle, ChangeError> {
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

    /// Whether a directory is the root of a tmpfs: then it is on another device than its parent.
    fn is_tmpfs(&self, target: &Handle, path: &Path) -> Result<bool, ChangeError> {
        const TMPFS: i64 = 0x0102_1994;
        let is_tmpfs = rustix::fs::fstatfs(target).is_ok_and(|metadata| metadata.f_type == TMPFS);
        let parent = self.root.resolve(path.parent().unwrap_or(path))?;
        Ok(is_tmpfs && parent.identity()?.0 != target.identity()?.0)
    }

    /// Undoes all steps. Logs each step that cannot be undone.
    pub fn undo(self) {
        for step in self.steps.into_iter().rev() {
            let (undone_path, result) = match step {
                Step::Mount(tree, path) => {
                    // Not by the path in the container, which may have another mount by now.
                    let mounted = proc_fd_path(tree.as_fd().as_raw_fd());
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
            match result {
                Ok(()) => self.log.write_line(format_args!("undone: {}", undone_path.display())),
                Err(error) => self.log.write_line(format_args!("cannot undo {}: {error}", undone_path.display())),
            }
        }
    }
}

fn remove_directory(root: &Root, path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let directory_fd: OwnedFd = root.resolve(parent).map_err(io::Error::other)?.as_fd().try_clone_to_owned()?;
    Ok(rustix::fs::unlinkat(&directory_fd, name, AtFlags::REMOVEDIR)?)
}

fn proc_fd_path(fd: i32) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{fd}"))
}
