//! One thread that waits for an answer: who it is, what it may do, and its descriptors.
//!
//! Guarantees that all facts are of that thread and not of a later one with its number. Knows nothing of the driver.
//!
//! Outside truth: proc(5), `proc_pid_status(5)`, pidfd_getfd(2); `PIDFD_THREAD` is Linux 6.9.

use crate::caller::memory::Memory;
use crate::caller::namespace::Namespace;
use crate::caller::proc_folder::{Folder, device, field, of_thread};
use crate::caller::process::lives;
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

/// So long a thread is taken to have the supplementary groups that it had, if nothing else that it may do has changed. No driver of NVIDIA's
/// looks at groups (os-interface.c of the open releases: the effective user, and capabilities).
const GROUPS_STAY: Duration = Duration::from_millis(100);

/// What a thread might do when it was looked at.
#[derive(Debug, Clone)]
struct Known {
    at: Instant,
    info: Info,
    sets: CapabilitySets,
    rights: Rights,
}

/// A thread, by its folder in `/proc` and a descriptor of it. Both are of the thread that had the number when they were opened.
#[derive(Debug)]
pub(crate) struct Caller {
    tid: Tid,
    /// Of the thread itself; none before Linux 6.9.
    pidfd: Option<OwnedFd>,
    pub(crate) folder: Folder,
    /// Its PID namespace, which it has for life: only its children can be born in another (pid_namespaces(7)).
    pub(crate) namespace: Arc<Namespace>,
    /// What the kernel said of it for this call; none before Linux 6.13.
    now: Option<Info>,
    /// What it may do, as it was when it asked last.
    known: Option<Known>,
}

impl Caller {
    /// The thread that has this number now. Whether it is the one that waits, the listener tells: ask it after this. `last` is a namespace
    /// that is held: most threads are in the one that was asked from last.
    pub(crate) fn of(tid: Tid, last: Option<&Arc<Namespace>>) -> io::Result<Caller> {
        let pidfd = match pidfd_open(raw(tid)?, PIDFD_THREAD) {
            Err(rustix::io::Errno::INVAL) => None,
            opened => Some(opened?),
        };
        let folder = of_thread(tid)?;
        // One that is held is known by its file's number, which no other has as long as it is held.
        let id = folder.identity("ns/pid")?;
        let namespace = match last.filter(|last| last.id() == id) {
            Some(last) => last.clone(),
            None => Arc::new(Namespace::new(folder.pid_namespace()?)?),
        };
        let mut caller = Caller { tid, pidfd, folder, namespace, now: None, known: None };
        caller.now = caller.info();
        Ok(caller)
    }

    /// Whether this is the thread that has the number now. One that lives has had it all the time, so that what is held of it need not be
    /// opened anew. Nothing of what it has or is mapped to is known by that: that is read each time.
    pub(crate) fn is_still(&mut self, tid: Tid) -> bool {
        self.now = if self.tid == tid { self.info() } else { None };
        self.now.is_some() || self.tid == tid && self.pidfd.as_ref().is_some_and(lives)
    }

    /// None also for a number that is not its own any more: one that was waited for has none.
    fn info(&self) -> Option<Info> {
        static LEAKS: LazyLock<bool> =
            LazyLock::new(|| leaks_tasks(&rustix::system::uname().release().to_string_lossy()));
        if *LEAKS {
            return None;
        }
        let info = self.pidfd.as_ref().and_then(|pidfd| sys::info(pidfd.as_fd()));
        info.filter(|info| info.pid == self.tid.get())
    }

    /// Users that it may have been before, by the host's numbers, but for the one whose rights it has now: its real and its saved one, and
    /// root of its user namespace, whose process 1 most containers' programs come from.
    pub(crate) fn other_users(&self) -> Vec<Uid> {
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

    /// How the kernel refuses an `ioctl` that no file with this number knows.
    ///
    /// Its `fdinfo` is read only of one that is open for neither reading nor writing, as one that is a path only is: what others have there
    /// can be as long as a caller likes (everything that an epoll watches), and the kernel makes all of it before it gives a byte.
    pub(crate) fn refusal(&self, number: i32) -> i32 {
        match self.folder.is_open_for_anything(&format!("fd/{number}")) {
            Ok(true) => return libc::ENOTTY,
            Ok(false) => {}
            Err(_) => return libc::EBADF,
        }
        let Ok(text) = self.folder.read(&format!("fdinfo/{number}")) else { return libc::EBADF };
        let flags = field(&text, "flags").and_then(|flags| u32::from_str_radix(flags, 8).ok()).unwrap_or(0);
        if flags & OFlags::PATH.bits() != 0 { libc::EBADF } else { libc::ENOTTY }
    }

    /// Its memory. Stays the memory of the program that runs now, whatever becomes of the number.
    pub(crate) fn memory(&self) -> io::Result<Memory> {
        Memory::of(&self.folder)
    }

    /// What it may do, and its process.
    pub(crate) fn rights(&mut self, init_user_namespace: (u64, u64)) -> io::Result<(Rights, Pid)> {
        let (tgid, mut rights) = self.raw_rights()?;
        // Of no others: a thread may have gone to another user namespace since, with any capabilities there.
        if !rights.capabilities.is_empty() && self.folder.identity("ns/user")? != init_user_namespace {
            rights.capabilities = CapabilitySet::empty();
        }
        let process = Pid::from_raw(tgid as i32).ok_or(io::ErrorKind::InvalidData)?;
        Ok((rights, process))
    }

    /// The same, with capabilities as its user namespace has them. Users, groups and capabilities are the kernel's of now; only the
    /// supplementary groups, which nothing but the long text of `status` tells, may be those of [`GROUPS_STAY`] ago.
    fn raw_rights(&mut self) -> io::Result<(u32, Rights)> {
        // Before the text is read: of what changes in between, the next look sees the old.
        let tid = raw(self.tid)?;
        let now = self.now.take().and_then(|info| Some((info, capabilities(Some(tid)).ok()?)));
        if let (Some((info, sets)), Some(known)) = (now, &self.known)
            && known.info == info
            && known.sets == sets
            && known.at.elapsed() < GROUPS_STAY
        {
            return Ok((info.tgid, known.rights.clone()));
        }
        let status = Status::parse(&self.folder.read_record("status")?).ok_or(io::ErrorKind::InvalidData)?;
        let known = now.map(|(info, sets)| Known { at: Instant::now(), info, sets, rights: status.rights.clone() });
        self.known = known;
        Ok((status.tgid, status.rights))
    }

    /// Which character device one of its descriptors is of, if any. No file system is asked, since a caller may be running that.
    ///
    /// # Errors
    /// `ENOENT` when there is no such descriptor.
    pub(crate) fn device(&self, number: i32) -> io::Result<Option<(u32, u32)>> {
        self.folder.device(&format!("fd/{number}"))
    }

    /// The file behind one of its descriptors: the same open file, not another one of the same name. `still_waits` is asked once
    /// the number has been looked up.
    ///
    /// # Errors
    /// `ESTALE` when the number was looked up too late; any other of `pidfd_getfd(2)`.
    pub(crate) fn file(&self, process: Pid, number: i32, still_waits: impl Fn() -> bool) -> io::Result<OwnedFd> {
        let is_of_thread = self.pidfd.is_some() || process == raw(self.tid)?;
        let of_process = match self.pidfd {
            None => Some(pidfd_open(process, PidfdFlags::empty())?),
            Some(_) => None,
        };
        let pidfd = self.pidfd.as_ref().or(of_process.as_ref()).ok_or(io::ErrorKind::NotFound)?;
        if !still_waits() {
            return Err(rustix::io::Errno::STALE.into());
        }
        match pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty()) {
            // The thread has a table of files of its own, or its process's first thread has ended.
            Err(rustix::io::Errno::BADF) if !is_of_thread => Err(rustix::io::Errno::OPNOTSUPP.into()),
            file => Ok(file?),
        }
    }
}

fn raw(tid: Tid) -> io::Result<Pid> {
    Pid::from_raw(tid.get() as i32).ok_or(io::ErrorKind::InvalidInput.into())
}

/// The user namespace of this process as [`Caller::rights`] wants it, and its file: while that is open, the kernel does not make it anew
/// for each look, which halves what a look costs.
pub(crate) fn own_user_namespace() -> io::Result<((u64, u64), OwnedFd)> {
    let file = std::fs::File::open("/proc/self/ns/user")?;
    let stat = rustix::fs::fstat(&file)?;
    Ok(((stat.st_dev, stat.st_ino), file.into()))
}

/// Device number of an open character device. No file system is asked.
pub(crate) fn character_device(file: BorrowedFd<'_>) -> Option<(u32, u32)> {
    device(file, "", AtFlags::EMPTY_PATH).ok().flatten()
}

/// Whether a descriptor is of an open file, for which the device cgroup and the mount were asked: `O_PATH` asks neither.
pub(crate) fn is_open(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(|flags| !flags.contains(OFlags::PATH))
}

/// Whether a kernel of this release keeps every task that `PIDFD_GET_INFO` was asked about for ever: from 6.15 on, until "pidfs: Fix memory leak in
/// pidfd_info()" came with 6.17 and 6.16.4. A vendor's kernel may have it mended earlier: then `/proc` is read for nothing.
fn leaks_tasks(release: &str) -> bool {
    let mut numbers = release.split(['.', '-', '+', '_']).map(|number| number.parse::<u32>().unwrap_or(0));
    let version: [u32; 3] = std::array::from_fn(|_| numbers.next().unwrap_or(0));
    ([6, 15, 0]..[6, 16, 4]).contains(&version)
}

#[cfg(test)]
mod tests;
