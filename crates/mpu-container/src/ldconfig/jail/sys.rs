//! clone3(2), which has no safe wrapper.
#![allow(unsafe_code)]

use crate::ldconfig::child::Jail;
use rustix::fd::{FromRawFd, OwnedFd};
use std::io;

/// Starts a process in new mount, PID and IPC namespaces, which enters the jail. Returns its pidfd.
pub(super) fn spawn(jail: &Jail<'_>) -> io::Result<OwnedFd> {
    let mut descriptor: i32 = -1;
    let namespaces = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
    // SAFETY: clone_args is plain integers, and zero is valid for each.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = (namespaces | libc::CLONE_PIDFD).unsigned_abs().into();
    arguments.exit_signal = libc::SIGCHLD.unsigned_abs().into();
    arguments.pidfd = (&raw mut descriptor) as u64;
    // SAFETY: without CLONE_VM the child has a copy of this memory, as after fork(2). The arguments live across the call.
    // The child has no other threads, so locks that they held stay held: `Jail::enter` takes none and allocates nothing.
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>()) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            jail.enter();
            // SAFETY: ends the child at once, without the parent's exit handlers.
            unsafe { libc::_exit(127) }
        }
        // SAFETY: the kernel has stored a new descriptor there, which no other code owns.
        _ => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
    }
}
