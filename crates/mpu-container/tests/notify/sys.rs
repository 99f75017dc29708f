//! The two requests of a seccomp listener: take a call, answer it.
//!
//! Source: the kernel's `include/uapi/linux/seccomp.h` and seccomp_unotify(2).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `_IOWR('!', 0, struct seccomp_notif)`
const RECEIVE: libc::Ioctl = 0xc050_2100_u32 as libc::Ioctl;
/// `_IOWR('!', 1, struct seccomp_notif_resp)`
const SEND: libc::Ioctl = 0xc018_2101_u32 as libc::Ioctl;
const _: () = assert!(size_of::<libc::seccomp_notif>() == 0x50 && size_of::<libc::seccomp_notif_resp>() == 0x18);

/// The response to a call.
pub enum Response {
    /// The kernel executes it, as without a listener.
    Continue,
    /// It fails with this errno.
    Error(i32),
}

/// A call that waits for its answer.
pub struct Notification {
    id: u64,
    /// The request number of an `ioctl`.
    pub request: u64,
}

/// Takes the next call; waits until there is one.
pub fn receive(listener: impl AsFd) -> io::Result<Notification> {
    let zero = libc::seccomp_data { nr: 0, arch: 0, instruction_pointer: 0, args: [0; 6] };
    let mut call = libc::seccomp_notif { id: 0, pid: 0, flags: 0, data: zero };
    // SAFETY: the kernel writes one `seccomp_notif`, whose size is in the request number, to a value of that type.
    match unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), RECEIVE, &raw mut call) } {
        0 => Ok(Notification { id: call.id, request: call.data.args[1] }),
        _ => Err(io::Error::last_os_error()),
    }
}

pub fn respond(listener: impl AsFd, call: &Notification, response: Response) -> io::Result<()> {
    let (error, flags) = match response {
        Response::Continue => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        Response::Error(number) => (-number, 0),
    };
    let mut reply = libc::seccomp_notif_resp { id: call.id, val: 0, error, flags };
    // SAFETY: the kernel reads one `seccomp_notif_resp`, whose size is in the request number, from a value of that type.
    match unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), SEND, &raw mut reply) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
