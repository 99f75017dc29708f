//! System calls without a safe wrapper: executing a descriptor, and closing descriptors on exec.
#![allow(unsafe_code)]

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use std::ffi::{CString, c_char};
use std::io;
use std::ptr;

const MAX_ARGUMENTS: usize = 256;

/// Executes the program behind a descriptor, without an environment. Returns only an error.
pub(super) fn execute(program: BorrowedFd<'_>, arguments: &[CString]) -> Errno {
    let mut pointers: [*const c_char; MAX_ARGUMENTS] = [ptr::null(); MAX_ARGUMENTS];
    // The last pointer stays null: it ends the list.
    if arguments.len() >= MAX_ARGUMENTS {
        return Errno::TOOBIG;
    }
    for (place, argument) in pointers.iter_mut().zip(arguments) {
        *place = argument.as_ptr();
    }
    let environment: [*const c_char; 1] = [ptr::null()];
    // SAFETY: the lists end with a null pointer. They and their strings live until the call replaces this process.
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

/// Sets close-on-exec on every descriptor but the three standard ones, also on those that our caller left open.
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

/// The same for descriptors below 65536.
pub(super) fn close_on_exec_one_by_one() {
    for number in 3..65536 {
        // SAFETY: changes a flag of a descriptor, where there is one, and nothing in memory.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}
