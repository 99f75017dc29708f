//! System calls without a safe wrapper that change this process before it has children.
#![allow(unsafe_code)]

use std::io;

/// Puts future children of this thread into a new PID namespace; the first becomes its PID 1. The thread itself stays in its own.
///
/// # Errors
/// As `unshare(2)`: without CAP_SYS_ADMIN, or at the limit of namespaces.
pub fn unshare_pid_namespace_of_children() -> io::Result<()> {
    // SAFETY: takes a flag word and touches no memory; CLONE_NEWPID changes only where this thread's future children
    // are born.
    match unsafe { libc::unshare(libc::CLONE_NEWPID) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Marks all descriptors but the first three close-on-exec, also inherited ones: a long-lived child must not keep a lock or a pipe of
/// its starter. Needs Linux 5.11; on an older kernel nothing changes.
pub fn keep_descriptors_from_children() {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 1 << 2;
    // SAFETY: sets a flag on descriptors and closes none, so each keeps its owner; touches no memory.
    unsafe { libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) };
}

/// Whether two threads of this PID namespace share a descriptor table (kcmp(2)). None if the call fails: the kernel was built without
/// it, a thread has ended, or this process may not inspect a thread.
pub fn share_descriptors(one: u32, other: u32) -> Option<bool> {
    const KCMP_FILES: libc::c_int = 2;
    let [one, other] = [one, other].map(|thread| libc::pid_t::try_from(thread).ok());
    // SAFETY: compares two pointers in the kernel; reads and writes no memory of ours.
    match unsafe { libc::syscall(libc::SYS_kcmp, one?, other?, KCMP_FILES, 0, 0) } {
        0 => Some(true),
        1..=3 => Some(false),
        _ => None,
    }
}
