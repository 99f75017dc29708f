//! A waiting thread: its identity, rights and descriptors. Guarantees that no fact is of a later thread with the same TID.
//!
//! Source: proc(5), `proc_pid_status(5)`, pidfd_getfd(2); `PIDFD_THREAD` is Linux 6.9.

use crate::caller::memory::Memory;
use crate::caller::namespace::Namespace;
use crate::caller::proc_folder::{Folder, device, field, of_thread};
use crate::caller::process::is_alive;
use crate::caller::rights::Rights;
use crate::caller::rights::{Status, root_of};
use crate::kernel::Tid;
use crate::sys::{self, Info};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, OFlags};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::thread::{CapabilitySet, CapabilitySets, Pid, Uid, capabilities};
use std::io;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// `PIDFD_THREAD`: a descriptor of the thread itself, whose table of files may be its own.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());

/// How long a thread's supplementary groups are cached, unless another right changes. NVIDIA's driver does not check groups
/// (os-interface.c of the open releases: the effective user, and capabilities).
const GROUPS_CACHE_TIME: Duration = Duration::from_millis(100);

/// A thread's rights, and the facts that show whether they changed since.
#[derive(Debug, Clone)]
struct CachedRights {
    at: Instant,
    info: Info,
    sets: CapabilitySets,
    rights: Rights,
}

/// A thread, by its folder in `/proc` and its pidfd. Both are of the thread that had the TID when they were opened.
#[derive(Debug)]
pub(crate) struct Caller {
    tid: Tid,
    /// A descriptor of the thread itself; none before Linux 6.9.
    pidfd: Option<OwnedFd>,
    pub(crate) folder: Folder,
    /// Its PID namespace, which never changes: only its children can get another one (pid_namespaces(7)).
    pub(crate) namespace: Arc<Namespace>,
    /// The kernel's facts for this call; none before Linux 6.13.
    now: Option<Info>,
    /// Its rights as they were last read.
    cached_rights: Option<CachedRights>,
}

impl Caller {
    /// The thread that has this TID now. Afterwards, check with the listener that the caller still waits: only then is this the
    /// caller. `last` is the namespace of the last caller, reused if it is the same.
    pub(crate) fn open(tid: Tid, last: Option<&Arc<Namespace>>) -> io::Result<Caller> {
        let pidfd = match pidfd_open(raw_tid(tid)?, PIDFD_THREAD) {
            Err(rustix::io::Errno::INVAL) => None,
            opened => Some(opened?),
        };
        let folder = of_thread(tid)?;
        // No other namespace gets the inode number of an open one.
        let id = folder.identity("ns/pid")?;
        let namespace = match last.filter(|last| last.id() == id) {
            Some(last) => last.clone(),
            None => Arc::new(Namespace::new(folder.pid_namespace()?)?),
        };
        let mut caller = Caller { tid, pidfd, folder, namespace, now: None, cached_rights: None };
        caller.now = caller.info();
        Ok(caller)
    }

    /// Whether this is still the thread with this TID, so its folder and pidfd can be reused. Its descriptors and mappings may have
    /// changed; they are read each time.
    pub(crate) fn is_same_thread(&mut self, tid: Tid) -> bool {
        self.now = if self.tid == tid { self.info() } else { None };
        self.now.is_some() || self.tid == tid && self.pidfd.as_ref().is_some_and(is_alive)
    }

    /// None also for a thread that was waited for, so its TID may be reused.
    fn info(&self) -> Option<Info> {
        static HAS_LEAK: LazyLock<bool> =
            LazyLock::new(|| has_pidfd_info_leak(&rustix::system::uname().release().to_string_lossy()));
        if *HAS_LEAK {
            return None;
        }
        let info = self.pidfd.as_ref().and_then(|pidfd| sys::info(pidfd.as_fd()));
        info.filter(|info| info.pid == self.tid.get())
    }

    /// Users that it may have had before, by host UID: its real and saved user, and root of its user namespace, because most containers
    /// start as root. Its effective user is left out.
    pub(crate) fn possible_users(&self) -> Vec<Uid> {
        let status = self.folder.read("status").unwrap_or_default();
        let ids: Vec<u32> = field(&status, "Uid")
            .map(|ids| ids.split_whitespace().filter_map(|id| id.parse().ok()).collect())
            .unwrap_or_default();
        let root = self.folder.read("uid_map").ok().and_then(|map| root_of(&map));
        let effective = ids.get(1).copied();
        let mut users: Vec<u32> = ids.into_iter().chain(root).filter(|id| Some(*id) != effective).collect();
        users.sort_unstable();
        users.dedup();
        users.into_iter().map(Uid::from_raw).collect()
    }

    /// The kernel's errno for an unknown `ioctl` on this descriptor.
    ///
    /// Reads `fdinfo` only for a descriptor open for neither reading nor writing, as with `O_PATH`. A caller controls the length of
    /// other `fdinfo` files (everything that an epoll watches), and the kernel generates all of it before the first byte.
    pub(crate) fn unknown_ioctl_errno(&self, number: i32) -> i32 {
        match self.folder.is_readable_or_writable(&format!("fd/{number}")) {
            Ok(true) => return libc::ENOTTY,
            Ok(false) => {}
            Err(_) => return libc::EBADF,
        }
        let Ok(text) = self.folder.read(&format!("fdinfo/{number}")) else { return libc::EBADF };
        let flags = field(&text, "flags").and_then(|flags| u32::from_str_radix(flags, 8).ok()).unwrap_or(0);
        if flags & OFlags::PATH.bits() != 0 { libc::EBADF } else { libc::ENOTTY }
    }

    /// Memory of the program that it runs now.
    pub(crate) fn memory(&self) -> io::Result<Memory> {
        Memory::open(&self.folder)
    }

    /// Its rights on the host, and its process.
    pub(crate) fn rights(&mut self, init_user_namespace: (u64, u64)) -> io::Result<(Rights, Pid)> {
        let (tgid, mut rights) = self.raw_rights()?;
        // Capabilities of another user namespace do not count on the host.
        if !rights.capabilities.is_empty() && self.folder.identity("ns/user")? != init_user_namespace {
            rights.capabilities = CapabilitySet::empty();
        }
        let process = Pid::from_raw(tgid as i32).ok_or(io::ErrorKind::InvalidData)?;
        Ok((rights, process))
    }

    /// Its process, and its rights with capabilities of its user namespace. All are current, except for supplementary groups: only the
    /// long text of `status` has these, so they may be [`GROUPS_CACHE_TIME`] old.
    fn raw_rights(&mut self) -> io::Result<(u32, Rights)> {
        // Before `status` is read: a change in between makes the next call read it again.
        let tid = raw_tid(self.tid)?;
        let now = self.now.take().and_then(|info| Some((info, capabilities(Some(tid)).ok()?)));
        if let (Some((info, sets)), Some(cached)) = (now, &self.cached_rights)
            && cached.info == info
            && cached.sets == sets
            && cached.at.elapsed() < GROUPS_CACHE_TIME
        {
            return Ok((info.tgid, cached.rights.clone()));
        }
        let status = Status::parse(&self.folder.read_record("status")?).ok_or(io::ErrorKind::InvalidData)?;
        self.cached_rights =
            now.map(|(info, sets)| CachedRights { at: Instant::now(), info, sets, rights: status.rights.clone() });
        Ok((status.tgid, status.rights))
    }

    /// Device number of one of its descriptors, if it is a character device. Does not call the file system: a caller's FUSE file system
    /// may never answer.
    ///
    /// # Errors
    /// `ENOENT` if there is no such descriptor.
    pub(crate) fn device(&self, number: i32) -> io::Result<Option<(u32, u32)>> {
        self.folder.device(&format!("fd/{number}"))
    }

    /// Copies one of its descriptors, of the same open file. Calls `is_waiting` after the lookup of the process.
    ///
    /// # Errors
    /// `ESTALE` if the caller does not wait any more; any other of `pidfd_getfd(2)`.
    pub(crate) fn file(&self, process: Pid, number: i32, is_waiting: impl Fn() -> bool) -> io::Result<OwnedFd> {
        let is_own_table = self.pidfd.is_some() || process == raw_tid(self.tid)?;
        let process_fd = match self.pidfd {
            None => Some(pidfd_open(process, PidfdFlags::empty())?),
            Some(_) => None,
        };
        let pidfd = self.pidfd.as_ref().or(process_fd.as_ref()).ok_or(io::ErrorKind::NotFound)?;
        if !is_waiting() {
            return Err(rustix::io::Errno::STALE.into());
        }
        match pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty()) {
            // The thread has a table of files of its own, or its process's first thread has ended.
            Err(rustix::io::Errno::BADF) if !is_own_table => Err(rustix::io::Errno::OPNOTSUPP.into()),
            file => Ok(file?),
        }
    }
}

fn raw_tid(tid: Tid) -> io::Result<Pid> {
    Pid::from_raw(tid.get() as i32).ok_or(io::ErrorKind::InvalidInput.into())
}

/// This process's user namespace, for [`Caller::rights`]. While it is open, the kernel does not create its inode for each read, which
/// halves the cost of a read.
pub(crate) fn own_user_namespace() -> io::Result<Namespace> {
    Namespace::new(std::fs::File::open("/proc/self/ns/user")?.into())
}

/// Device number of an open character device. Does not call the file system.
pub(crate) fn character_device(file: BorrowedFd<'_>) -> Option<(u32, u32)> {
    device(file, "", AtFlags::EMPTY_PATH).ok().flatten()
}

/// Whether a descriptor is not `O_PATH`. Opening with `O_PATH` checks neither the device cgroup nor the mount.
pub(crate) fn is_open(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(|flags| !flags.contains(OFlags::PATH))
}

/// Whether each `PIDFD_GET_INFO` of this kernel release leaks a task: from 6.15 on, until "pidfs: Fix memory leak in pidfd_info()" in 6.16.4
/// and 6.17. If a vendor's kernel has the fix earlier, `/proc` is read without need.
fn has_pidfd_info_leak(release: &str) -> bool {
    let mut numbers = release.split(['.', '-', '+', '_']).map(|number| number.parse::<u32>().unwrap_or(0));
    let version: [u32; 3] = std::array::from_fn(|_| numbers.next().unwrap_or(0));
    ([6, 15, 0]..[6, 16, 4]).contains(&version)
}

#[cfg(test)]
pub(crate) mod tests;
