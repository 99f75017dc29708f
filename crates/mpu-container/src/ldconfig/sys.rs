//! System calls without a safe wrapper: executing a descriptor, and closing descriptors on exec.
#![allow(unsafe_code)]

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use std::ffi::{CString, c_char};
use std::io;
use std::ptr;

const ARGUMENTS: usize = 256;

/// Becomes the program behind a descriptor, with no environment. Returns why that failed.
pub(super) fn execute(program: BorrowedFd<'_>, arguments: &[CString]) -> Errno {
    let mut pointers: [*const c_char; ARGUMENTS] = [ptr::null(); ARGUMENTS];
    // One place stays empty, which marks the end.
    if arguments.len() >= ARGUMENTS {
        return Errno::TOOBIG;
    }
    for (place, argument) in pointers.iter_mut().zip(arguments) {
        *place = argument.as_ptr();
    }
    let environment: [*const c_char; 1] = [ptr::null()];
    // SAFETY: the lists end with a null pointer, and they and their strings live until the process becomes another.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            pointers.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    last_error()
}

/// Keeps every descriptor but the three standard ones from the program, also those that our caller left open.
pub(super) fn close_on_exec() -> Result<(), Errno> {
    // SAFETY: changes a flag of descriptors and nothing in memory.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    match result {
        0 => Ok(()),
        // Before Linux 5.11.
        _ if matches!(last_error(), Errno::NOSYS | Errno::INVAL) => {
            close_on_exec_one_by_one();
            Ok(())
        }
        _ => Err(last_error()),
    }
}

/// The same, for every number that a descriptor can have under the usual limits.
pub(super) fn close_on_exec_one_by_one() {
    for number in 3..65536 {
        // SAFETY: changes a flag of a descriptor, where there is one, and nothing in memory.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}
