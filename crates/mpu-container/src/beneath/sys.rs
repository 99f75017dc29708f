//! Mount system calls that rustix has no safe wrapper for.
#![allow(unsafe_code)]

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::mount::MountAttrFlags;
use rustix::thread::UnshareFlags;
use std::io;

/// Sets attributes on all mounts of a tree and makes them private. Fails with `ENOSYS` before Linux 5.12.
pub fn mount_setattr(tree: BorrowedFd<'_>, set: MountAttrFlags) -> io::Result<()> {
    let attributes =
        libc::mount_attr { attr_set: set.bits().into(), attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    // SAFETY: the path is a NUL-terminated constant. The structure lives across the call, and its size is passed. The kernel
    // only reads both.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives the calling thread its own copy of its mount namespace.
pub fn unshare_mounts() -> io::Result<()> {
    // SAFETY: unsharing is unsafe only for the table of descriptors, which stays shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    Ok(())
}
