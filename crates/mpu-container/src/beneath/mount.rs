//! Mounts a detached tree on a [`Handle`], by descriptors only. No path is resolved again, so nothing can be swapped between
//! check and use.
//!
//! Source: open_tree(2), move_mount(2), mount_setattr(2), fsmount(2).

use super::{BeneathError, Handle, sys};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags,
};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Restrictions of a mount. Our mounts are always nosuid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restrictions {
    pub read_only: bool,
    pub no_exec: bool,
    pub no_devices: bool,
}

/// Detached mounts. Dropping it unmounts them unless they are attached.
#[derive(Debug)]
pub struct Tree {
    fd: OwnedFd,
    recursive: bool,
}

impl Tree {
    /// Copies the mount of a file or directory in this process's mount namespace, `recursive`ly with mounts below it.
    pub fn of(source: impl AsFd, recursive: bool) -> io::Result<Tree> {
        let mut flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        if recursive {
            flags |= OpenTreeFlags::AT_RECURSIVE;
        }
        Ok(Tree { fd: rustix::mount::open_tree(source, "", flags)?, recursive })
    }

    /// An empty file system in memory of at most `size` bytes.
    pub fn memory(size: u64) -> io::Result<Tree> {
        let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_set_string(context.as_fd(), "size", size.to_string())?;
        rustix::mount::fsconfig_set_string(context.as_fd(), "mode", "755")?;
        rustix::mount::fsconfig_create(context.as_fd())?;
        let attributes =
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let fd = rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        Ok(Tree { fd, recursive: false })
    }

    /// Restricts every mount of the tree and makes it private. Needs Linux 5.12.
    pub fn restrict(&self, restrictions: Restrictions) -> io::Result<()> {
        let chosen = [
            (true, MountAttrFlags::MOUNT_ATTR_NOSUID),
            (restrictions.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
            (restrictions.no_exec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
            (restrictions.no_devices, MountAttrFlags::MOUNT_ATTR_NODEV),
        ];
        let set = chosen.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect();
        sys::mount_setattr(self.fd.as_fd(), set)
    }

    /// Attaches the tree on something below a container's root. A file goes on a file, a directory on a directory.
    pub fn mount_onto(self, target: &Handle) -> Result<(), BeneathError> {
        self.attach(target.as_fd()).map_err(|error| target.wrap("mount onto", error))
    }

    /// The same with restrictions. Before Linux 5.12 the kernel can restrict attached mounts only, so a tree of one mount is
    /// restricted after attaching.
    pub fn mount_restricted(self, target: &Handle, restrictions: Restrictions) -> Result<(), BeneathError> {
        match self.restrict(restrictions) {
            Ok(()) => self.mount_onto(target),
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) && !self.recursive => {
                self.mount_then_restrict(target, restrictions)
            }
            Err(source) => {
                Err(BeneathError::Path { act: "restrict what is mounted onto", path: target.path.clone(), source })
            }
        }
    }

    pub(super) fn mount_then_restrict(self, target: &Handle, restrictions: Restrictions) -> Result<(), BeneathError> {
        self.attach(target.as_fd()).map_err(|error| target.wrap("mount onto", error))?;
        // The descriptor leads to the mount, whatever its path is now.
        let link = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        restrict_mounted(Path::new(&link), restrictions).map_err(|error| {
            // A mount without its restrictions must not stay.
            let _ = rustix::mount::unmount(&link, UnmountFlags::DETACH);
            target.wrap("restrict what is mounted onto", error)
        })
    }

    pub fn attach(&self, target: BorrowedFd<'_>) -> Result<(), Errno> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        rustix::mount::move_mount(self.fd.as_fd(), "", target, "", flags)
    }
}

/// Adds restrictions to those of a mount and makes it private. In a user namespace the existing ones must be repeated.
pub fn restrict_mounted(path: &Path, restrictions: Restrictions) -> Result<(), Errno> {
    let has = rustix::fs::statvfs(path)?.f_flag;
    let flags = [
        (true, StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (restrictions.read_only, StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (restrictions.no_exec, StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (restrictions.no_devices, StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (false, StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (false, StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
        (false, StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
    ];
    let set = flags.into_iter().filter(|(is_set, old, _)| *is_set || has.contains(*old)).map(|(_, _, flag)| flag);
    rustix::mount::mount_change(path, MountPropagationFlags::PRIVATE)?;
    rustix::mount::mount_remount(path, MountFlags::BIND | set.collect(), "")
}

pub fn unshare() -> io::Result<()> {
    sys::unshare_mounts()?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    Ok(())
}

impl AsFd for Tree {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
