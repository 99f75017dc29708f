//! The system calls of the notify engine that no safe wrapper covers.
//!
//! Owns this engine's unsafe: the listener's requests, memory of a caller, namespaces' numbers, and memory of our own that a
//! driver cannot be made to write past. Decides nothing.
//!
//! Outside truth: Linux `include/uapi/linux/seccomp.h` and `nsfs.h`; seccomp_unotify(2), ioctl_ns(2).
#![allow(unsafe_code)]

use crate::kernel::Mapping;
use crate::kernel::Tid;
use mpu_core::{HostPid, ViewPid};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(crate) use libc::{seccomp_data, seccomp_notif, sock_filter};

/// `_IOWR('!', 0, struct seccomp_notif)`, 80 bytes.
const NOTIF_RECV: libc::c_ulong = 0xc050_2100;
/// `_IOWR('!', 1, struct seccomp_notif_resp)`, 24 bytes.
const NOTIF_SEND: libc::c_ulong = 0xc018_2101;
/// `_IOW('!', 2, __u64)`; kernels before 5.17 know it as `_IOR`, which every later one takes, too.
const NOTIF_ID_VALID: libc::c_ulong = 0x8008_2102;
/// `_IOW('!', 4, __u64)`, Linux 6.6.
const NOTIF_SET_FLAGS: libc::c_ulong = 0x4008_2104;
/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`: supervisor and caller run one after the other, so neither needs another CPU.
const SYNC_WAKE_UP: u64 = 1;

/// `_IO(0xb7, 2)`: the parent of a PID namespace.
const NS_GET_PARENT: libc::c_ulong = 0xb702;
/// `_IOR(0xb7, 6, int)`, Linux 6.11: a thread's number there, in our namespace.
const NS_GET_PID_FROM_PIDNS: libc::c_ulong = 0x8004_b706;
/// `_IOR(0xb7, 7, int)`: likewise its process's.
const NS_GET_TGID_FROM_PIDNS: libc::c_ulong = 0x8004_b707;
/// `_IOR(0xb7, 8, int)`: a thread's number here, in that namespace.
const NS_GET_PID_IN_PIDNS: libc::c_ulong = 0x8004_b708;
/// `_IOR(0xb7, 9, int)`: likewise its process's.
const NS_GET_TGID_IN_PIDNS: libc::c_ulong = 0x8004_b709;

/// `_IOWR('F', 0x2a, 32 bytes)`: `NV_ESC_RM_CONTROL`.
const RM_CONTROL: libc::c_ulong = 0xc020_462a;

/// `_IOWR('F', 0x52, 16 bytes)`: `NV_ESC_RM_GET_EVENT_DATA`.
const RM_GET_EVENT_DATA: libc::c_ulong = 0xc010_4652;

fn done(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Puts a filter on this thread and on what it will start, and returns the listener for its notifications.
pub(crate) fn listen(filter: &[sock_filter], flags: libc::c_ulong) -> io::Result<OwnedFd> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let flags = flags | libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // SAFETY: the kernel reads `len` instructions behind a pointer that outlives the call, and writes nothing.
    let made = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    let made = done(made as libc::c_int)?;
    // SAFETY: the kernel has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// Takes the next notification into `place`, which must be all zero. Waits for one if there is none.
///
/// The kernel writes it before it counts as taken for anybody who can see the memory of `place`: a process that is killed right
/// after has left there what has to be answered.
pub(crate) fn receive(listener: BorrowedFd<'_>, place: &mut seccomp_notif) -> io::Result<()> {
    // SAFETY: the kernel writes one `struct seccomp_notif`, which `place` is.
    done(unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_RECV, ptr::from_mut(place)) }).map(|_| ())
}

/// What the caller's system call comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The kernel goes on with it as if there were no filter.
    GoOn,
    /// It returns this number, or fails with this `errno`.
    Returned(Result<i32, i32>),
}

/// Answers a notification. Fails with `ENOENT` when the caller is gone or was interrupted.
pub(crate) fn answer(listener: BorrowedFd<'_>, id: u64, answer: Answer) -> io::Result<()> {
    let (val, error, flags) = match answer {
        Answer::GoOn => (0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        Answer::Returned(Ok(value)) => (i64::from(value), 0, 0),
        Answer::Returned(Err(errno)) => (0, -errno, 0),
    };
    let mut reply = libc::seccomp_notif_resp { id, val, error, flags };
    // SAFETY: the kernel reads one `struct seccomp_notif_resp`.
    done(unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_SEND, &raw mut reply) }).map(|_| ())
}

/// Whether the caller still waits for the answer, hence its numbers are still its own.
pub(crate) fn still_waits(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the kernel reads one u64.
    done(unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_ID_VALID, &raw const id) }).is_ok()
}

/// Asks the kernel to run supervisor and caller on one CPU; kernels before 6.6 refuse, and are slower for it.
pub(crate) fn wake_in_turn(listener: BorrowedFd<'_>) {
    // SAFETY: the request takes a flag word by value.
    unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
}

/// Reads a caller's memory: as many bytes as can be read from `address` on.
pub(crate) fn peek(tid: Tid, address: u64, bytes: &mut [u8]) -> io::Result<usize> {
    let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let there = libc::iovec { iov_base: ptr::without_provenance_mut(address as usize), iov_len: bytes.len() };
    // SAFETY: the kernel writes at most `iov_len` bytes to a slice that we hold mutably; the address in the caller is looked at
    // by the kernel, never by us.
    let read = unsafe { libc::process_vm_readv(tid.get() as libc::pid_t, &raw const here, 1, &raw const there, 1, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev: [u32; 2],
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong = 0xc000_6611 | (size_of::<ProcmapQuery>() as libc::c_ulong) << 16;
const VMA_READABLE: u64 = 1;
const VMA_WRITABLE: u64 = 2;

/// What of a program's memory an address lies in, by an open `/proc/TID/maps`. `ENOTTY` before Linux 6.11.
pub(crate) fn mapping(maps: BorrowedFd<'_>, address: u64) -> io::Result<Option<Mapping>> {
    let mut query = ProcmapQuery { size: size_of::<ProcmapQuery>() as u64, query_addr: address, ..Default::default() };
    // SAFETY: the kernel reads and writes one `struct procmap_query`, which is as long as it says; it asks for no name.
    match done(unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) }) {
        Ok(_) => Ok(Some(Mapping {
            start: query.vma_start,
            end: query.vma_end,
            readable: query.vma_flags & VMA_READABLE != 0,
            writable: query.vma_flags & VMA_WRITABLE != 0,
        })),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `struct pidfd_info` of linux/pidfd.h as Linux 6.13 has it; later ones are longer, and take this one.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    pid: u32,
    tgid: u32,
    ppid: u32,
    ids: [u32; 8],
    exit_code: i32,
}

/// `_IOWR(0xff, 11, struct pidfd_info)`.
const PIDFD_GET_INFO: libc::c_ulong = 0xc000_ff0b | (size_of::<PidfdInfo>() as libc::c_ulong) << 16;
/// `PIDFD_INFO_PID | PIDFD_INFO_CREDS`.
const PID_AND_CREDS: u64 = 3;

/// Numbers and users of a process or thread that has not been waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) pid: u32,
    pub(crate) tgid: u32,
    /// Real, effective, saved and file-system user and group, by turns.
    pub(crate) ids: [u32; 8],
}

/// What the kernel says of the thread behind a descriptor; none before Linux 6.13, and when it is no more.
pub(crate) fn info(pidfd: BorrowedFd<'_>) -> Option<Info> {
    let mut info = PidfdInfo { mask: PID_AND_CREDS, ..Default::default() };
    // SAFETY: the kernel reads and writes one `struct pidfd_info`, as long as the request's number says.
    done(unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) }).ok()?;
    let told = info.mask & PID_AND_CREDS == PID_AND_CREDS;
    told.then_some(Info { pid: info.pid, tgid: info.tgid, ids: info.ids })
}

/// The namespace above this one.
pub(crate) fn parent(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the request takes no argument.
    let fd = done(unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) })?;
    // SAFETY: the kernel has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn number(namespace: BorrowedFd<'_>, request: libc::c_ulong, number: u32) -> io::Result<u32> {
    // SAFETY: the request takes a number by value and returns one.
    done(unsafe { libc::ioctl(namespace.as_raw_fd(), request, libc::c_ulong::from(number)) }).map(|n| n as u32)
}

/// The number in `namespace` of a process of ours; `ESRCH` if it has none there, or if this is only a thread's number. `ENOTTY`
/// before Linux 6.11.
pub(crate) fn view_of(namespace: BorrowedFd<'_>, pid: HostPid) -> io::Result<Option<ViewPid>> {
    let process = number(namespace, NS_GET_TGID_IN_PIDNS, pid.get())?;
    let thread = number(namespace, NS_GET_PID_IN_PIDNS, pid.get())?;
    Ok(ViewPid::new(process).filter(|_| process == thread))
}

/// Our number of a process of `namespace`, with the same errors.
pub(crate) fn host_of(namespace: BorrowedFd<'_>, pid: ViewPid) -> io::Result<Option<HostPid>> {
    let process = number(namespace, NS_GET_TGID_FROM_PIDNS, pid.get())?;
    let thread = number(namespace, NS_GET_PID_FROM_PIDNS, pid.get())?;
    Ok(HostPid::new(process).filter(|_| process == thread))
}

/// Asks the driver. The address and size of the parameters are put into `block` here; a pointer in them is null or that of `inner`,
/// as the caller of this function sees to.
pub(crate) fn rm_control(
    driver: BorrowedFd<'_>,
    block: &mut [u8; 32],
    params: &mut Fenced,
    size: usize,
    _inner: Option<&mut Fenced>,
) -> io::Result<i32> {
    block[16..24].copy_from_slice(&params.address().to_ne_bytes());
    block[24..28].copy_from_slice(&(size.min(FENCED) as u32).to_ne_bytes());
    // SAFETY: the request's number says 32 bytes, which `block` is. The parameters and what they point to lie in memory that we hold
    // mutably; whatever length a caller made the driver believe in, it meets a page there that cannot be written.
    done(unsafe { libc::ioctl(driver.as_raw_fd(), RM_CONTROL, block.as_mut_ptr()) })
}

/// Asks the driver with parameters in memory that no process can read or write; how many bytes there are says `block`. Address 0 stays: the
/// driver has an answer of its own to that (rmapi/control.c, 515.43.04 to 580.95.05).
pub(crate) fn rm_control_unreadable(driver: BorrowedFd<'_>, block: &mut [u8; 32], fenced: &Fenced) -> io::Result<i32> {
    if block[16..24] != [0; 8] {
        block[16..24].copy_from_slice(&(fenced.address() + FENCED as u64).to_ne_bytes());
    }
    // SAFETY: the request's number says 32 bytes, which `block` is. The parameters begin at a page that is mapped for nothing and is ours, or
    // at address 0, where nothing is: the first byte that the driver copies from there or to there fails.
    done(unsafe { libc::ioctl(driver.as_raw_fd(), RM_CONTROL, block.as_mut_ptr()) })
}

/// Fetches an event of this open file into the last bytes of `fenced`, as many as releases are known to have. A driver whose events are longer
/// meets the page that cannot be written, and says that the address is wrong. The address is put into `block` here.
pub(crate) fn rm_event(driver: BorrowedFd<'_>, block: &mut [u8; 16], fenced: &mut Fenced) -> io::Result<i32> {
    let event = fenced.last(mpu_abi::event::SIZE);
    event.fill(0);
    block[..8].copy_from_slice(&(event.as_ptr() as u64).to_ne_bytes());
    // SAFETY: the request's number says 16 bytes, which `block` is. The event goes to memory that we hold mutably and that ends at a page which
    // cannot be written.
    done(unsafe { libc::ioctl(driver.as_raw_fd(), RM_GET_EVENT_DATA, block.as_mut_ptr()) })
}

/// Set in the number of a system call of the x32 kind (`__X32_SYSCALL_BIT`, arch/x86/include/uapi/asm/unistd.h).
pub(crate) const X32: libc::c_int = 0x4000_0000;

/// Whether the kernel takes system calls of the x32 kind from this process. No filter may be on it: it could be one that kills for them.
pub(crate) fn takes_x32() -> bool {
    // SAFETY: getpid(2) takes no argument and touches no memory, by whichever number it is called.
    unsafe { libc::syscall(libc::c_long::from(X32) | libc::SYS_getpid) >= 0 }
}

/// Processor time of a thread of this process. The caller makes sure that it lives.
pub(crate) fn thread_time(tid: Tid) -> io::Result<Duration> {
    // CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED below the number's complement: MAKE_THREAD_CPUCLOCK of posix-timers_types.h.
    let clock = (!(tid.get() as libc::clockid_t)) << 3 | 4 | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `struct timespec`, ours.
    done(unsafe { libc::clock_gettime(clock, &raw mut time) })?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Pages that this thread's touch brought into its own memory or another process's.
pub(crate) fn own_faults() -> u64 {
    // SAFETY: a `struct rusage` is numbers only, all of which may be 0.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `struct rusage`, ours.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    (usage.ru_minflt + usage.ru_majflt) as u64
}

/// Gives this process a mount namespace of its own.
pub(crate) fn unshare_mounts() -> io::Result<()> {
    // SAFETY: takes a flag word and touches no memory.
    done(unsafe { libc::unshare(libc::CLONE_NEWNS) }).map(|_| ())
}

/// A descriptor that was ours when this process began, and that has no other owner here: our parent passed it to us.
pub(crate) fn inherited(number: std::os::fd::RawFd) -> OwnedFd {
    // SAFETY: sd_listen_fds(3): descriptors from 3 on were put there for this process; it asks for them once.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Bytes of a [`Fenced`]: the most that the driver copies at once (`RMAPI_PARAM_COPY_MAX_PARAMS_SIZE`, param_copy.h), so that it
/// refuses by itself whatever would not fit. Only what is used of it is memory.
pub(crate) const FENCED: usize = 1 << 20;

/// Memory for the driver to write to, followed by as much that cannot be written.
pub(crate) struct Fenced {
    base: *mut u8,
}

// SAFETY: the memory is this value's alone, so it goes where the value goes.
unsafe impl Send for Fenced {}

impl Fenced {
    /// Takes the memory, which costs nothing before it is used.
    pub(crate) fn new() -> io::Result<Fenced> {
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(ptr::null_mut(), 2 * FENCED, libc::PROT_NONE, private, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let fenced = Fenced { base: base.cast() };
        // SAFETY: the first half of the mapping just made, to which no other reference exists.
        done(unsafe { libc::mprotect(base, FENCED, libc::PROT_READ | libc::PROT_WRITE) })?;
        Ok(fenced)
    }

    /// Where the driver finds it.
    pub(crate) fn address(&self) -> u64 {
        self.base as u64
    }

    /// The first `len` bytes, or all of them if there are fewer.
    pub(crate) fn bytes(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: so many bytes are mapped readable and writable, began as zeros, and are borrowed through us alone.
        unsafe { std::slice::from_raw_parts_mut(self.base, len.min(FENCED)) }
    }

    /// The last `len` bytes before the page that cannot be written, or all of them if there are fewer.
    pub(crate) fn last(&mut self, len: usize) -> &mut [u8] {
        let all = self.bytes(FENCED);
        let at = all.len().saturating_sub(len);
        &mut all[at..]
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no slice of it can exist any more.
        unsafe { libc::munmap(self.base.cast(), 2 * FENCED) };
    }
}

/// Numbers in shared memory, for as long as this process lives. The file is at least that long, and no process makes it shorter.
pub(crate) fn shared_numbers(file: &File, count: usize) -> io::Result<&'static [AtomicU64]> {
    let (len, read_write) = (count * size_of::<AtomicU64>(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
    let base = unsafe { libc::mmap(ptr::null_mut(), len, read_write, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: so many numbers begin at a page's beginning, are never unmapped, are right whatever bits they have, and other processes that map
    // the file change them atomically.
    Ok(unsafe { std::slice::from_raw_parts(base.cast::<AtomicU64>(), count) })
}

/// One place of a [`Journal`].
#[repr(C)]
pub(crate) struct Place {
    /// How often it was begun to answer what stands in `taken`.
    pub(crate) tries: u64,
    /// What the kernel wrote; all zero while nothing is in hand.
    pub(crate) taken: seccomp_notif,
}

/// Shared memory with one place for every thread that takes notifications: it outlives the process that maps it.
pub(crate) struct Journal {
    base: *mut Place,
    places: usize,
    used: Mutex<BTreeSet<usize>>,
}

// SAFETY: places are handed out once each, under the lock.
unsafe impl Send for Journal {}
// SAFETY: as above.
unsafe impl Sync for Journal {}

impl Journal {
    /// Maps the first `places` places of `file`, which is that long.
    pub(crate) fn map(file: &File, places: usize) -> io::Result<Arc<Journal>> {
        let read_write = libc::PROT_READ | libc::PROT_WRITE;
        let len = places * size_of::<Place>();
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, read_write, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Arc::new(Journal { base: base.cast(), places, used: Mutex::default() }))
    }

    /// Takes a place for one thread; none if it is another's or beyond the end.
    pub(crate) fn place(self: &Arc<Journal>, index: usize) -> Option<JournalPlace> {
        let free = index < self.places && self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(index);
        free.then(|| JournalPlace { journal: self.clone(), index })
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and each place holds an `Arc` of the journal, so none is in use.
        unsafe { libc::munmap(self.base.cast(), self.places * size_of::<Place>()) };
    }
}

/// A place that is one thread's.
pub(crate) struct JournalPlace {
    journal: Arc<Journal>,
    index: usize,
}

impl JournalPlace {
    pub(crate) fn get(&mut self) -> &mut Place {
        // SAFETY: the index is below the number of places that are mapped.
        let place = unsafe { self.journal.base.add(self.index) };
        // SAFETY: any bytes are a `Place`; the index was handed out once, and the borrow is of that one holder.
        unsafe { &mut *place }
    }

    /// Nothing is in hand any more.
    pub(crate) fn clear(&mut self) {
        // SAFETY: a `Place` is numbers only, all of which may be 0.
        *self.get() = unsafe { std::mem::zeroed() };
    }
}

impl Drop for JournalPlace {
    fn drop(&mut self) {
        self.journal.used.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.index);
    }
}
