//! System calls for mounts without a safe wrapper.
#![allow(unsafe_code)]

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::mount::MountAttrFlags;
use rustix::thread::UnshareFlags;
use std::io;

/// Sets attributes on a tree of mounts, all of them, and makes the tree private.
///
/// The kernel has it since Linux 5.12; an older one answers `ENOSYS`.
pub fn mount_setattr(tree: BorrowedFd<'_>, set: MountAttrFlags) -> io::Result<()> {
    let attributes =
        libc::mount_attr { attr_set: set.bits().into(), attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    // SAFETY: the path is a constant with its end marked, the structure lives across the call and its size is handed
    // in with it; the kernel only reads both.
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

/// Gives the calling thread a mount namespace of its own: a copy of the one it had.
pub fn unshare_mounts() -> io::Result<()> {
    // SAFETY: what makes unsharing unsafe is a table of descriptors that is no longer shared; it stays shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    Ok(())
}
