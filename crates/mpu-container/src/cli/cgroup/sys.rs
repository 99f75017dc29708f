//! The bpf system call for device programs.
//!
//! Source: Linux, `include/uapi/linux/bpf.h`, `union bpf_attr` and `struct bpf_prog_info`. Fields that later
//! kernels append are left out: the kernel takes them as zero.
#![allow(unsafe_code)]

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;

const PROG_LOAD: libc::c_long = 5;
const PROG_ATTACH: libc::c_long = 8;
const PROG_GET_FD_BY_ID: libc::c_long = 13;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const PROG_QUERY: libc::c_long = 16;

const TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
/// A cgroup may have several programs, and all of them must allow an access.
pub const ALLOW_MULTI: u32 = 1 << 1;
const REPLACE: u32 = 1 << 2;

#[repr(C)]
#[derive(Default)]
struct QueryAttr {
    target: u32,
    attach_type: u32,
    flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
    pad: u32,
}

#[repr(C)]
struct GetFdByIdAttr {
    id: u32,
    next: u32,
    flags: u32,
}

#[repr(C)]
struct GetInfoByFdAttr {
    fd: u32,
    len: u32,
    info: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    program_type: u32,
    id: u32,
    tag: [u8; 8],
    jited_len: u32,
    xlated_len: u32,
    jited: u64,
    xlated: u64,
    load_time: u64,
    uid: u32,
    maps: u32,
    map_ids: u64,
    name: [u8; 16],
}

#[repr(C)]
struct LoadAttr {
    program_type: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

#[repr(C)]
struct AttachAttr {
    target: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
    replace: u32,
}

/// The ids of the device programs attached to a cgroup itself, and the flags they were attached with.
pub fn attached(cgroup: BorrowedFd<'_>) -> Result<(Vec<u32>, u32), Errno> {
    // A cgroup has at most 64 programs of a type (the kernel's BPF_CGROUP_MAX_PROGS).
    let mut ids = vec![0u32; 64];
    let mut query = QueryAttr {
        target: raw_fd(cgroup),
        attach_type: ATTACH_CGROUP_DEVICE,
        ids: ids.as_mut_ptr() as u64,
        count: ids.len() as u32,
        ..QueryAttr::default()
    };
    // SAFETY: `ids` outlives the call and has `count` elements.
    unsafe { bpf(PROG_QUERY, &mut query) }?;
    ids.truncate(query.count as usize);
    Ok((ids, query.attach_flags))
}

pub fn open_by_id(id: u32) -> Result<OwnedFd, Errno> {
    let mut attr = GetFdByIdAttr { id, next: 0, flags: 0 };
    // SAFETY: the argument holds no pointer.
    let fd = unsafe { bpf(PROG_GET_FD_BY_ID, &mut attr) }?;
    // SAFETY: the kernel has just returned this descriptor, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub fn instructions(program: BorrowedFd<'_>) -> Result<Vec<u64>, Errno> {
    let len = info(program, &mut [])?.xlated_len as usize;
    let mut words = vec![0u64; len / 8];
    let after = info(program, &mut words)?;
    Ok(match after.xlated {
        0 => Vec::new(),
        _ => words,
    })
}

fn info(program: BorrowedFd<'_>, buffer: &mut [u64]) -> Result<ProgramInfo, Errno> {
    let mut info = ProgramInfo::default();
    if !buffer.is_empty() {
        info.xlated = buffer.as_mut_ptr() as u64;
        info.xlated_len = (buffer.len() * 8) as u32;
    }
    let len = size_of::<ProgramInfo>() as u32;
    let mut attr = GetInfoByFdAttr { fd: raw_fd(program), len, info: &raw mut info as u64 };
    // SAFETY: `info` outlives the call and has `len` bytes; it points at `buffer` and has its length.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attr) }?;
    Ok(info)
}

pub fn load(instructions: &[u64]) -> Result<OwnedFd, Errno> {
    let mut load = LoadAttr {
        program_type: TYPE_CGROUP_DEVICE,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel: 0,
        flags: 0,
        name: *b"mpu_container\0\0\0",
        interface: 0,
        attach_type: ATTACH_CGROUP_DEVICE,
    };
    // SAFETY: both pointers outlive the call; `count` is the number of instructions, and the license ends with a NUL byte.
    let fd = unsafe { bpf(PROG_LOAD, &mut load) }?;
    // SAFETY: the kernel has just returned this descriptor, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Replaces a program by another atomically. `flags` are those that the old program was attached with.
pub fn replace(cgroup: BorrowedFd<'_>, old: BorrowedFd<'_>, new: BorrowedFd<'_>, flags: u32) -> Result<(), Errno> {
    // If only one program can be attached, attaching replaces it.
    let (flags, replace) = match flags & ALLOW_MULTI {
        0 => (flags, 0),
        _ => (flags | REPLACE, raw_fd(old)),
    };
    attach(cgroup, new, flags, replace)
}

#[cfg(test)]
pub fn add(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>, flags: u32) -> Result<(), Errno> {
    attach(cgroup, program, flags, 0)
}

fn attach(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>, flags: u32, replace: u32) -> Result<(), Errno> {
    let attach_type = ATTACH_CGROUP_DEVICE;
    let mut attach = AttachAttr { target: raw_fd(cgroup), program: raw_fd(program), attach_type, flags, replace };
    // SAFETY: the argument holds no pointer.
    unsafe { bpf(PROG_ATTACH, &mut attach) }.map(drop)
}

fn raw_fd(fd: BorrowedFd<'_>) -> u32 {
    fd.as_fd().as_raw_fd() as u32
}

/// # Safety
/// `argument` has the layout of the command, and its pointers are valid for the lengths that it gives.
unsafe fn bpf<T>(command: libc::c_long, argument: &mut T) -> Result<i32, Errno> {
    // SAFETY: by this function's contract; the size is that of the argument.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *argument, size_of::<T>()) };
    match result {
        0.. => Ok(result as i32),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}
