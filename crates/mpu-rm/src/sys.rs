//! The ioctls of NVIDIA's driver, and the unsafe code of this crate.
//!
//! Source: NVIDIA's open kernel modules, `nvos.h` (`NVOS54`, `NVOS21`, `NVOS00`) and `nv_escape.h`.
#![allow(unsafe_code)]

use crate::bytes::read_u32;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `_IOWR('F', 0x2a, 32 bytes)`: control an object.
const RM_CONTROL: libc::Ioctl = 0xc020_462a_u32 as libc::Ioctl;
/// `_IOWR('F', 0x2b, 32 bytes)`: allocate an object. Every release accepts this oldest of the three sizes.
const RM_ALLOC: libc::Ioctl = 0xc020_462b_u32 as libc::Ioctl;
/// `_IOWR('F', 0x29, 16 bytes)`: free an object.
const RM_FREE: libc::Ioctl = 0xc010_4629_u32 as libc::Ioctl;

/// Sends one 32-byte (or, for a free, 16-byte) argument block.
fn send(fd: BorrowedFd<'_>, request: libc::Ioctl, block: &mut [u8]) -> io::Result<()> {
    assert_eq!(block.len(), (request >> 16 & 0x3fff) as usize, "the request number carries the size of its block");
    // SAFETY: the driver accesses as many bytes at this address as the request number has in its size field, and the
    // assertion above checks that the slice has as many. A pointer inside the block comes from a caller below, which
    // borrows that memory mutably.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, block.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Issues a control and returns RM's status. `header` is client, object and command. The driver refuses a length of `params`
/// that is not exactly the command's. Callers pass only commands without pointers in their parameters.
pub(super) fn control(fd: BorrowedFd<'_>, header: [u32; 3], params: &mut [u8]) -> io::Result<u32> {
    let mut block = [0u8; 32];
    put(&mut block, 0, &header.map(u32::to_ne_bytes).concat());
    put(&mut block, 16, &(params.as_mut_ptr() as u64).to_ne_bytes());
    put(&mut block, 24, &(params.len() as u32).to_ne_bytes());
    send(fd, RM_CONTROL, &mut block)?;
    Ok(read_u32(&block, 28))
}

/// Allocates an object. Returns RM's status, read at `status_at`, and the handle. `header` is client, parent, new handle and
/// class. 128 bytes of `params` are enough for each class in every release. They have no pointer (`Object`).
pub(super) fn alloc(
    fd: BorrowedFd<'_>,
    header: [u32; 4],
    params: &mut [u8; 128],
    status_at: usize,
) -> io::Result<(u32, u32)> {
    let mut block = [0u8; 32];
    put(&mut block, 0, &header.map(u32::to_ne_bytes).concat());
    put(&mut block, 16, &(params.as_mut_ptr() as u64).to_ne_bytes());
    send(fd, RM_ALLOC, &mut block)?;
    Ok((read_u32(&block, status_at), read_u32(&block, 8)))
}

/// Frees an object and its children. `header` is client, parent and the object itself.
pub(super) fn free(fd: BorrowedFd<'_>, header: [u32; 3]) -> io::Result<u32> {
    let mut block = [0u8; 16];
    put(&mut block, 0, &header.map(u32::to_ne_bytes).concat());
    send(fd, RM_FREE, &mut block)?;
    Ok(read_u32(&block, 12))
}

fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn non_driver_device_returns_enotty() {
        let null = std::fs::File::options().read(true).write(true).open("/dev/null").expect("/dev/null");
        let error = control(null.as_fd(), [1, 2, 3], &mut [0; 8]).expect_err("not a driver");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        let error = alloc(null.as_fd(), [0; 4], &mut [0; 128], 28).expect_err("not a driver");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        let error = free(null.as_fd(), [0; 3]).expect_err("not a driver");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }

    #[test]
    #[should_panic(expected = "the request number carries the size")]
    fn short_block_never_reaches_driver() {
        let null = std::fs::File::open("/dev/null").expect("/dev/null");
        let _ = send(null.as_fd(), RM_CONTROL, &mut [0; 16]);
    }
}
