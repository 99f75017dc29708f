//! The bpf system call, as far as device programs need it.
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
/// Programs may stand beside each other, and all must allow.
pub const ALLOW_MULTI: u32 = 1 << 1;
const REPLACE: u32 = 1 << 2;

#[repr(C)]
#[derive(Default)]
struct Query {
    target: u32,
    attach_type: u32,
    flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
    pad: u32,
}

#[repr(C)]
struct ById {
    id: u32,
    next: u32,
    flags: u32,
}

#[repr(C)]
struct InfoOf {
    fd: u32,
    len: u32,
    info: u64,
}

#[repr(C)]
#[derive(Default)]
struct Info {
    kind: u32,
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
struct Load {
    kind: u32,
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
struct Attach {
    target: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
    replace: u32,
}

/// The ids of the device programs attached to a cgroup itself, and the flags they were attached with.
pub fn attached(cgroup: BorrowedFd<'_>) -> Result<(Vec<u32>, u32), Errno> {
    // A cgroup takes 64 programs of a kind at most (the kernel's BPF_CGROUP_MAX_PROGS).
    let mut ids = vec![0u32; 64];
    let mut query = Query {
        target: number(cgroup),
        attach_type: ATTACH_CGROUP_DEVICE,
        ids: ids.as_mut_ptr() as u64,
        count: ids.len() as u32,
        ..Query::default()
    };
    // SAFETY: `ids` is alive until after the call and holds as many numbers as `count` says.
    unsafe { bpf(PROG_QUERY, &mut query) }?;
    ids.truncate(query.count as usize);
    Ok((ids, query.attach_flags))
}

pub fn by_id(id: u32) -> Result<OwnedFd, Errno> {
    let mut which = ById { id, next: 0, flags: 0 };
    // SAFETY: the argument holds no pointer.
    let fd = unsafe { bpf(PROG_GET_FD_BY_ID, &mut which) }?;
    // SAFETY: the kernel has just made this descriptor for us.
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

fn info(program: BorrowedFd<'_>, into: &mut [u64]) -> Result<Info, Errno> {
    let mut info = Info::default();
    if !into.is_empty() {
        info.xlated = into.as_mut_ptr() as u64;
        info.xlated_len = (into.len() * 8) as u32;
    }
    let len = size_of::<Info>() as u32;
    let mut about = InfoOf { fd: number(program), len, info: &raw mut info as u64 };
    // SAFETY: `info` is alive until after the call and as large as `len` says; it points at `into` with its length.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut about) }?;
    Ok(info)
}

pub fn load(instructions: &[u64]) -> Result<OwnedFd, Errno> {
    let mut load = Load {
        kind: TYPE_CGROUP_DEVICE,
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
    // SAFETY: both pointers outlive the call; `count` is the instructions' number, the license ends with a zero.
    let fd = unsafe { bpf(PROG_LOAD, &mut load) }?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Puts a program into the place of another, in one step. The flags are those that the old one was attached with.
pub fn replace(cgroup: BorrowedFd<'_>, old: BorrowedFd<'_>, new: BorrowedFd<'_>, flags: u32) -> Result<(), Errno> {
    // Where only one program can be attached, attaching replaces.
    let (flags, replace) = match flags & ALLOW_MULTI {
        0 => (flags, 0),
        _ => (flags | REPLACE, number(old)),
    };
    attach(cgroup, new, flags, replace)
}

#[cfg(test)]
pub fn add(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>, flags: u32) -> Result<(), Errno> {
    attach(cgroup, program, flags, 0)
}

fn attach(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>, flags: u32, replace: u32) -> Result<(), Errno> {
    let attach_type = ATTACH_CGROUP_DEVICE;
    let mut attach = Attach { target: number(cgroup), program: number(program), attach_type, flags, replace };
    // SAFETY: the argument holds no pointer.
    unsafe { bpf(PROG_ATTACH, &mut attach) }.map(drop)
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_fd().as_raw_fd() as u32
}

/// # Safety
/// The pointers in `argument` are those that the command wants, and what they point at is as large as it says.
unsafe fn bpf<T>(command: libc::c_long, argument: &mut T) -> Result<i32, Errno> {
    // SAFETY: by this function's own contract; the size is the argument's.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *argument, size_of::<T>()) };
    match answer {
        0.. => Ok(answer as i32),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}
