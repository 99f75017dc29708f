//! Identifies the sender at a socket. rustix does not handle PID 0, which the kernel reports for a sender outside our PID namespace.
#![allow(unsafe_code)]

use rustix::process::Pid;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Receives from a stream with `SO_PASSCRED`, and returns the sender's PID; none if it has no PID in our PID namespace.
pub fn sender(stream: BorrowedFd<'_>) -> io::Result<Option<Pid>> {
    // `u64` gives the alignment that the kernel's headers need.
    let mut control = [0_u64; 16];
    let mut bytes = [0_u8; 256];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all fields are integers and pointers, for which all zeros is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the message has two local buffers with their sizes; both outlive the call.
    let received = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    match received {
        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
        received if received < 0 => return Err(io::Error::last_os_error()),
        _ => {}
    }
    // SAFETY: the kernel has filled in the message, and its control buffer is still alive.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: the pointer is null or points at a complete header within the control buffer.
    let Some(first) = (unsafe { header.as_ref() }) else { return Err(io::ErrorKind::InvalidData.into()) };
    if (first.cmsg_level, first.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: the header is not null.
    let data = unsafe { libc::CMSG_DATA(header) };
    // SAFETY: an SCM_CREDENTIALS message has one `ucred`, whose fields may have any value.
    let credentials = unsafe { data.cast::<libc::ucred>().read_unaligned() };
    Ok(Pid::from_raw(credentials.pid))
}
