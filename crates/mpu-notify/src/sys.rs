//! System calls without a safe wrapper, and the unsafe code of this crate: ioctls of listeners and namespaces, memory of callers,
//! and our own memory that the driver cannot write beyond.
//!
//! Source: Linux `include/uapi/linux/seccomp.h` and `nsfs.h`; seccomp_unotify(2), ioctl_ns(2).
#![allow(unsafe_code)]

use crate::kernel::Mapping;
use crate::kernel::Tid;
use crate::lock;
use mpu_core::{HostPid, ViewPid};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) use libc::{seccomp_data, seccomp_notif, sock_filter};

/// `_IOWR('!', 0, struct seccomp_notif)`, 80 bytes.
const NOTIF_RECV: libc::c_ulong = 0xc050_2100;
/// `_IOWR('!', 1, struct seccomp_notif_resp)`, 24 bytes.
const NOTIF_SEND: libc::c_ulong = 0xc018_2101;
/// `_IOR('!', 2, __u64)`. Kernels from 5.17 on define it as `_IOW`, and accept this number, too.
const NOTIF_ID_VALID: libc::c_ulong = 0x8008_2102;
/// `_IOW('!', 4, __u64)`, Linux 6.6.
const NOTIF_SET_FLAGS: libc::c_ulong = 0x4008_2104;
/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`: supervisor and caller run one after the other, so neither needs another CPU.
const SYNC_WAKE_UP: u64 = 1;

/// `_IO(0xb7, 2)`: the parent of a PID namespace.
const NS_GET_PARENT: libc::c_ulong = 0xb702;
/// `_IOR(0xb7, 6, int)`, Linux 6.11: the TID in our namespace for a TID in that namespace.
const NS_GET_PID_FROM_PIDNS: libc::c_ulong = 0x8004_b706;
/// `_IOR(0xb7, 7, int)`: the PID of that thread's process in our namespace.
const NS_GET_TGID_FROM_PIDNS: libc::c_ulong = 0x8004_b707;
/// `_IOR(0xb7, 8, int)`: the TID in that namespace for a TID in our namespace.
const NS_GET_PID_IN_PIDNS: libc::c_ulong = 0x8004_b708;
/// `_IOR(0xb7, 9, int)`: the PID of that thread's process in that namespace.
const NS_GET_TGID_IN_PIDNS: libc::c_ulong = 0x8004_b709;

/// `_IOWR('F', 0x2a, 32 bytes)`: `NV_ESC_RM_CONTROL`.
const RM_CONTROL: libc::c_ulong = 0xc020_462a;

/// `_IOWR('F', 0x52, 16 bytes)`: `NV_ESC_RM_GET_EVENT_DATA`.
const RM_GET_EVENT_DATA: libc::c_ulong = 0xc010_4652;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Installs a filter on this thread and its future children, and returns the listener.
pub(crate) fn listen(filter: &[sock_filter], flags: libc::c_ulong) -> io::Result<OwnedFd> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let flags = flags | libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // SAFETY: the kernel reads `len` instructions behind a pointer that outlives the call, and writes nothing.
    let fd = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    let fd = check(fd as libc::c_int)?;
    // SAFETY: the kernel has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Receives the next notification into `notification`, which must be all zero. Waits for one if there is none.
///
/// The kernel writes shared memory before the notification counts as received. If this process is killed right after, its successor
/// finds the notification there.
pub(crate) fn receive(listener: BorrowedFd<'_>, notification: &mut seccomp_notif) -> io::Result<()> {
    // SAFETY: the kernel writes one `struct seccomp_notif`, which `notification` is.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_RECV, ptr::from_mut(notification)) }).map(|_| ())
}

/// The end of the caller's system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The kernel executes it as if there were no filter.
    Continue,
    /// It returns this number, or fails with this `errno`.
    Returned(Result<i32, i32>),
}

/// Answers a notification. Fails with `ENOENT` if the caller is gone or was interrupted.
pub(crate) fn answer(listener: BorrowedFd<'_>, id: u64, answer: Answer) -> io::Result<()> {
    let (val, error, flags) = match answer {
        Answer::Continue => (0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        Answer::Returned(Ok(value)) => (i64::from(value), 0, 0),
        Answer::Returned(Err(errno)) => (0, -errno, 0),
    };
    let mut reply = libc::seccomp_notif_resp { id, val, error, flags };
    // SAFETY: the kernel reads one `struct seccomp_notif_resp`.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_SEND, &raw mut reply) }).map(|_| ())
}

/// Whether the caller still waits for the answer, so its TID was not reused.
pub(crate) fn is_waiting(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the kernel reads one u64.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_ID_VALID, &raw const id) }).is_ok()
}

/// Lets the kernel run supervisor and caller on one CPU, which is faster. Kernels before 6.6 refuse.
pub(crate) fn set_sync_wakeup(listener: BorrowedFd<'_>) {
    // SAFETY: the request takes a flag word by value.
    unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
}

/// Reads a caller's memory from `address` on; returns the number of bytes read.
pub(crate) fn peek(tid: Tid, address: u64, bytes: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: ptr::without_provenance_mut(address as usize), iov_len: bytes.len() };
    // SAFETY: the kernel writes at most `iov_len` bytes to a slice that we borrow mutably; only the kernel uses the caller's address.
    let read =
        unsafe { libc::process_vm_readv(tid.get() as libc::pid_t, &raw const local, 1, &raw const remote, 1, 0) };
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

/// The mapping of an address, by an open `/proc/TID/maps`. `ENOTTY` before Linux 6.11.
pub(crate) fn mapping(maps: BorrowedFd<'_>, address: u64) -> io::Result<Option<Mapping>> {
    let mut query = ProcmapQuery { size: size_of::<ProcmapQuery>() as u64, query_addr: address, ..Default::default() };
    // SAFETY: the kernel reads and writes one `struct procmap_query` of the size in its first field. No name is requested.
    match check(unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) }) {
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

/// `struct pidfd_info` of linux/pidfd.h in Linux 6.13; later kernels accept this shorter one.
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

/// PIDs and users of a process or thread that has not been waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) pid: u32,
    pub(crate) tgid: u32,
    /// Real, effective, saved and file-system user and group, by turns.
    pub(crate) ids: [u32; 8],
}

/// Facts of a pidfd's thread; none before Linux 6.13, and after its end.
pub(crate) fn info(pidfd: BorrowedFd<'_>) -> Option<Info> {
    let mut info = PidfdInfo { mask: PID_AND_CREDS, ..Default::default() };
    // SAFETY: the kernel reads and writes one `struct pidfd_info` of the size in the request number.
    check(unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) }).ok()?;
    let is_complete = info.mask & PID_AND_CREDS == PID_AND_CREDS;
    is_complete.then_some(Info { pid: info.pid, tgid: info.tgid, ids: info.ids })
}

/// The parent of a PID namespace.
pub(crate) fn parent(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the request takes no argument.
    let fd = check(unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) })?;
    // SAFETY: the kernel has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn translate_pid(namespace: BorrowedFd<'_>, request: libc::c_ulong, number: u32) -> io::Result<u32> {
    // SAFETY: the request takes a number by value and returns one.
    check(unsafe { libc::ioctl(namespace.as_raw_fd(), request, libc::c_ulong::from(number)) }).map(|n| n as u32)
}

/// The PID in `namespace` of a process of our namespace; `ESRCH` if it has none there, or if `pid` is a thread's. `ENOTTY` before
/// Linux 6.11.
pub(crate) fn view_of(namespace: BorrowedFd<'_>, pid: HostPid) -> io::Result<Option<ViewPid>> {
    let process = translate_pid(namespace, NS_GET_TGID_IN_PIDNS, pid.get())?;
    let thread = translate_pid(namespace, NS_GET_PID_IN_PIDNS, pid.get())?;
    Ok(ViewPid::new(process).filter(|_| process == thread))
}

/// The PID in our namespace of a process of `namespace`, with the same errors.
pub(crate) fn host_of(namespace: BorrowedFd<'_>, pid: ViewPid) -> io::Result<Option<HostPid>> {
    let process = translate_pid(namespace, NS_GET_TGID_FROM_PIDNS, pid.get())?;
    let thread = translate_pid(namespace, NS_GET_PID_FROM_PIDNS, pid.get())?;
    Ok(HostPid::new(process).filter(|_| process == thread))
}

/// Issues a control. Writes the address and size of the parameters into `block`. A pointer in them must be null or point to `inner`.
pub(crate) fn rm_control(
    driver: BorrowedFd<'_>,
    block: &mut [u8; 32],
    params: &mut GuardedBuffer,
    size: usize,
    _inner: Option<&mut GuardedBuffer>,
) -> io::Result<i32> {
    block[16..24].copy_from_slice(&params.address().to_ne_bytes());
    block[24..28].copy_from_slice(&(size.min(BUFFER_SIZE) as u32).to_ne_bytes());
    // SAFETY: the request's size is 32 bytes, which `block` is. The parameters and their pointers' targets are memory that we borrow
    // mutably. A driver that uses a longer length reaches a page that cannot be written.
    check(unsafe { libc::ioctl(driver.as_raw_fd(), RM_CONTROL, block.as_mut_ptr()) })
}

/// Issues a control with parameters at an inaccessible address, of the size in `block`. Address 0 stays: the driver has its own error
/// for it (rmapi/control.c, 515.43.04 to 580.95.05).
pub(crate) fn rm_control_unreadable(
    driver: BorrowedFd<'_>,
    block: &mut [u8; 32],
    fenced: &GuardedBuffer,
) -> io::Result<i32> {
    if block[16..24] != [0; 8] {
        block[16..24].copy_from_slice(&(fenced.address() + BUFFER_SIZE as u64).to_ne_bytes());
    }
    // SAFETY: the request's size is 32 bytes, which `block` is. The parameters begin at our PROT_NONE page, or at address 0, where nothing
    // is mapped: the driver's copy fails at its first byte.
    check(unsafe { libc::ioctl(driver.as_raw_fd(), RM_CONTROL, block.as_mut_ptr()) })
}

/// Fetches an event of this open file into the last bytes of `fenced`, and writes the address into `block`. A driver with longer events
/// reaches the page that cannot be written, and returns the status of an invalid address.
pub(crate) fn rm_event(driver: BorrowedFd<'_>, block: &mut [u8; 16], fenced: &mut GuardedBuffer) -> io::Result<i32> {
    let event = fenced.last(mpu_abi::event::SIZE);
    event.fill(0);
    block[..8].copy_from_slice(&(event.as_ptr() as u64).to_ne_bytes());
    // SAFETY: the request's size is 16 bytes, which `block` is. The event goes to memory that we borrow mutably and that ends at a page
    // that cannot be written.
    check(unsafe { libc::ioctl(driver.as_raw_fd(), RM_GET_EVENT_DATA, block.as_mut_ptr()) })
}

/// Set in the number of an x32 system call (`__X32_SYSCALL_BIT`, arch/x86/include/uapi/asm/unistd.h).
pub(crate) const X32: libc::c_int = 0x4000_0000;

/// Whether the kernel supports x32 system calls. The process must have no filter, which could kill it for the attempt.
pub(crate) fn supports_x32() -> bool {
    // SAFETY: getpid(2) takes no argument and touches no memory, by whichever number it is called.
    unsafe { libc::syscall(libc::c_long::from(X32) | libc::SYS_getpid) >= 0 }
}

/// Processor time of a living thread of this process.
pub(crate) fn thread_time(tid: Tid) -> io::Result<Duration> {
    // CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED below the number's complement: MAKE_THREAD_CPUCLOCK of posix-timers_types.h.
    let clock = (!(tid.get() as libc::clockid_t)) << 3 | 4 | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `struct timespec`, ours.
    check(unsafe { libc::clock_gettime(clock, &raw mut time) })?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Page faults that this thread caused in its own memory and other processes'.
pub(crate) fn thread_page_faults() -> u64 {
    // SAFETY: a `struct rusage` is numbers only, all of which may be 0.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `struct rusage`, ours.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    (usage.ru_minflt + usage.ru_majflt) as u64
}

/// Gives this process a mount namespace of its own.
pub(crate) fn unshare_mounts() -> io::Result<()> {
    // SAFETY: takes a flag word and touches no memory.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) }).map(|_| ())
}

/// A descriptor that this process inherited from its parent and that has no other owner here.
///
/// # Errors
/// `EBADF` if the parent passed none.
pub(crate) fn inherited(number: std::os::fd::RawFd) -> io::Result<OwnedFd> {
    // SAFETY: reads the descriptor's flags and touches no memory.
    check(unsafe { libc::fcntl(number, libc::F_GETFD) })?;
    // SAFETY: sd_listen_fds(3): the parent passed descriptors from 3 on to this process, which takes each once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Size of a [`GuardedBuffer`] in bytes: the driver's limit for one copy (`RMAPI_PARAM_COPY_MAX_PARAMS_SIZE`, param_copy.h). The driver
/// refuses anything longer. Only used pages take memory.
pub(crate) const BUFFER_SIZE: usize = 1 << 20;

/// Memory for the driver, followed by the same size of inaccessible memory.
pub(crate) struct GuardedBuffer {
    base: *mut u8,
}

// SAFETY: the memory is this value's alone, so it goes where the value goes.
unsafe impl Send for GuardedBuffer {}

impl GuardedBuffer {
    /// Maps the memory, which uses no pages before its first access.
    pub(crate) fn new() -> io::Result<GuardedBuffer> {
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), 2 * BUFFER_SIZE, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        let fenced = GuardedBuffer { base: base.cast() };
        // SAFETY: the first half of the mapping just made, to which no other reference exists.
        check(unsafe { libc::mprotect(base, BUFFER_SIZE, libc::PROT_READ | libc::PROT_WRITE) })?;
        Ok(fenced)
    }

    /// The address for the driver.
    pub(crate) fn address(&self) -> u64 {
        self.base as u64
    }

    /// The first `len` bytes, or all of them if there are fewer.
    pub(crate) fn bytes(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: these bytes are mapped readable and writable, were zero at first, and are borrowed through `self` only.
        unsafe { std::slice::from_raw_parts_mut(self.base, len.min(BUFFER_SIZE)) }
    }

    /// The last `len` bytes before the page that cannot be written, or all of them if there are fewer.
    pub(crate) fn last(&mut self, len: usize) -> &mut [u8] {
        let all = self.bytes(BUFFER_SIZE);
        let at = all.len().saturating_sub(len);
        &mut all[at..]
    }
}

impl Drop for GuardedBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no slice of it can exist any more.
        unsafe { libc::munmap(self.base.cast(), 2 * BUFFER_SIZE) };
    }
}

/// Maps `count` numbers of a file until this process ends. The file must be long enough, and no process may shorten it.
pub(crate) fn map_atomics(file: &File, count: usize) -> io::Result<&'static [AtomicU64]> {
    let (len, read_write) = (count * size_of::<AtomicU64>(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
    let base = unsafe { mmap(ptr::null_mut(), len, read_write, MapFlags::SHARED, file, 0) }?;
    // SAFETY: the numbers begin at a page boundary, are never unmapped, have no invalid bits, and other processes that map the file
    // change them atomically.
    Ok(unsafe { std::slice::from_raw_parts(base.cast::<AtomicU64>(), count) })
}

/// One slot's contents in a [`Journal`].
#[repr(C)]
pub(crate) struct JournalEntry {
    /// Number of attempts to answer `notification`.
    pub(crate) tries: u64,
    /// Written by the kernel; all zero while there is none.
    pub(crate) notification: seccomp_notif,
}

/// Shared memory with one slot for each worker thread. It survives the process.
pub(crate) struct Journal {
    base: *mut JournalEntry,
    slots: usize,
    used: Mutex<BTreeSet<usize>>,
}

// SAFETY: each slot is handed out once, under the lock.
unsafe impl Send for Journal {}
// SAFETY: as above.
unsafe impl Sync for Journal {}

impl Journal {
    /// Maps the first `slots` slots of `file`, which must be long enough.
    pub(crate) fn map(file: &File, slots: usize) -> io::Result<Arc<Journal>> {
        let (len, read_write) = (slots * size_of::<JournalEntry>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let base = unsafe { mmap(ptr::null_mut(), len, read_write, MapFlags::SHARED, file, 0) }?;
        Ok(Arc::new(Journal { base: base.cast(), slots, used: Mutex::default() }))
    }

    /// Takes a slot for one thread; none if it is in use or beyond the end.
    pub(crate) fn slot(self: &Arc<Journal>, index: usize) -> Option<JournalSlot> {
        let free = index < self.slots && lock(&self.used).insert(index);
        free.then(|| JournalSlot { journal: self.clone(), index })
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and each slot has an `Arc` of the journal, so none is in use.
        unsafe { libc::munmap(self.base.cast(), self.slots * size_of::<JournalEntry>()) };
    }
}

/// One thread's slot of a [`Journal`].
pub(crate) struct JournalSlot {
    journal: Arc<Journal>,
    index: usize,
}

impl JournalSlot {
    pub(crate) fn get(&mut self) -> &mut JournalEntry {
        // SAFETY: the index is below the number of mapped slots.
        let slot = unsafe { self.journal.base.add(self.index) };
        // SAFETY: any bytes are a valid `JournalEntry`. The index was handed out once, and `self` is borrowed mutably.
        unsafe { &mut *slot }
    }

    /// Removes the notification.
    pub(crate) fn clear(&mut self) {
        // SAFETY: a `JournalEntry` has only numbers, all of which may be 0.
        *self.get() = unsafe { std::mem::zeroed() };
    }
}

impl Drop for JournalSlot {
    fn drop(&mut self) {
        lock(&self.journal.used).remove(&self.index);
    }
}
