//! The seccomp filter that sends the driver's controls and events to a listener. `mpu-seccomp` has the same rules for OCI.
//!
//! A filter sees a descriptor's number only, so the supervisor checks the device.

use crate::sys::{self, sock_filter};
use mpu_abi::ioctl::{CONTROL, EVENT, REQUEST_MASK, WRAPPED};
use std::io;
use std::os::fd::OwnedFd;

/// `ioctl` by architecture (`AUDIT_ARCH_*` of include/uapi/linux/audit.h), the native one first.
#[cfg(target_arch = "x86_64")]
const IOCTLS: &[(u32, &[u32])] = &[(0xc000_003e, &[16, 0x4000_0000 + 514]), (0x4000_0003, &[54])];
#[cfg(target_arch = "aarch64")]
const IOCTLS: &[(u32, &[u32])] = &[(0xc000_00b7, &[29]), (0x4000_0028, &[54])];

/// The architecture of this program's own system calls.
pub(crate) const NATIVE: u32 = IOCTLS[0].0;

/// Byte offsets in `struct seccomp_data`; both machines are little-endian.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const REQUEST: u32 = 24;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

fn op(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// Skips `skip` instructions unless the value is `k`.
fn jump_unless_equal(k: u32, skip: usize) -> sock_filter {
    sock_filter { code: EQUAL, jt: 0, jf: skip as u8, k }
}

/// The filter's program, with one block for each pair of architecture and system call number.
pub(crate) fn program() -> Vec<sock_filter> {
    let mut program = Vec::new();
    for (arch, numbers) in IOCTLS {
        for number in *numbers {
            let block = [
                op(LOAD, ARCH),
                jump_unless_equal(*arch, 9),
                op(LOAD, NUMBER),
                jump_unless_equal(*number, 7),
                op(LOAD, REQUEST),
                op(AND, REQUEST_MASK),
                sock_filter { code: EQUAL, jt: 2, jf: 0, k: CONTROL },
                sock_filter { code: EQUAL, jt: 1, jf: 0, k: EVENT },
                jump_unless_equal(WRAPPED, 1),
                op(RETURN, libc::SECCOMP_RET_USER_NOTIF),
                op(RETURN, libc::SECCOMP_RET_ALLOW),
            ];
            program.extend_from_slice(&block);
        }
    }
    program.push(op(RETURN, libc::SECCOMP_RET_ALLOW));
    program
}

/// Installs the filter on this thread and its future children, and returns the listener. From Linux 5.19 on, non-fatal signals to
/// a caller wait for the answer.
pub fn listen() -> io::Result<OwnedFd> {
    let program = program();
    match sys::listen(&program, libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => sys::listen(&program, 0),
        listener => listener,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets the program as the kernel does.
    fn verdict(arch: u32, number: u32, request: u32) -> u32 {
        let program = program();
        let (mut value, mut at) = (0, 0);
        loop {
            let op = program[at];
            at += 1;
            match op.code {
                LOAD => {
                    value = match op.k {
                        NUMBER => number,
                        ARCH => arch,
                        _ => request,
                    }
                }
                AND => value &= op.k,
                EQUAL => at += usize::from(if value == op.k { op.jt } else { op.jf }),
                _ => return op.k,
            }
        }
    }

    #[test]
    fn filter_ignores_type_and_direction() {
        for (arch, numbers) in IOCTLS {
            for number in *numbers {
                for request in
                    [0xc020_462a, 0x0020_002a, 0x8020_ff2a, 0xc010_4652, 0x4010_6f52, 0xc010_46d3, 0x0010_00d3]
                {
                    assert_eq!(verdict(*arch, *number, request), libc::SECCOMP_RET_USER_NOTIF, "{request:#x}");
                }
                for request in [0xc020_462b, 0xc010_462a, 0xc021_462a, 0xc020_4652, 0xc010_4653, 0xc020_46d3, 0x5413, 0]
                {
                    assert_eq!(verdict(*arch, *number, request), libc::SECCOMP_RET_ALLOW, "{request:#x}");
                }
                assert_eq!(verdict(*arch, number + 1, 0xc020_462a), libc::SECCOMP_RET_ALLOW);
            }
            assert_eq!(verdict(arch ^ 0x100, numbers[0], 0xc020_462a), libc::SECCOMP_RET_ALLOW);
        }
    }
}
