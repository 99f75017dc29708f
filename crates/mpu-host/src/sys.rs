//! The system calls about this process that no safe wrapper covers.
//!
//! Owns the unsafe of this crate.
#![allow(unsafe_code)]

use std::io;

pub(super) fn unshare_pid_namespace_of_children() -> io::Result<()> {
    // SAFETY: takes a flag word and touches no memory; CLONE_NEWPID changes only where this thread's future children
    // are born.
    match unsafe { libc::unshare(libc::CLONE_NEWPID) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(super) fn keep_descriptors_from_children() {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 1 << 2;
    // SAFETY: sets a flag on descriptors and closes none, so whoever owns one goes on owning it; touches no memory.
    unsafe { libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) };
}
