//! RM controls that the seccomp filter hands to the supervisor, on a file that is not the driver's.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `_IOWR('F', 0x2a, 32 bytes)`.
const RM_CONTROL: libc::c_ulong = 0xc020_462a;

/// Issues a control with `size` bytes of parameters.
pub fn control(file: &File, cmd: u32, size: u32) -> io::Result<()> {
    let mut params = vec![0u8; size as usize];
    let mut block = [0u64; 4];
    block[1] = u64::from(cmd);
    block[2] = params.as_mut_ptr() as u64;
    block[3] = u64::from(size);
    // SAFETY: the driver or the supervisor writes at most the 32 bytes of `block` and the `size` bytes of `params`, both ours.
    match unsafe { libc::ioctl(file.as_raw_fd(), RM_CONTROL, block.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Issues a control with the argument at this address. The memory there is zero, so the control's number is 0.
pub fn control_at(file: &File, argument: *const u8) -> io::Result<()> {
    // SAFETY: the driver and the supervisor write nothing for a control of number 0; an unmapped address is an error.
    match unsafe { libc::ioctl(file.as_raw_fd(), RM_CONTROL, argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
