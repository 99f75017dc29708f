//! One thread that waits for an answer: who it is, what it may do, and its descriptors.
//!
//! Owns that everything it tells is of that thread and of nobody who got its number later. Knows nothing of the driver.
//!
//! Outside truth: proc(5), `proc_pid_status(5)`, pidfd_getfd(2); `PIDFD_THREAD` is Linux 6.9.

use super::folder::{device, field, Folder};
use super::held::lives;
use super::memory::Memory;
use super::namespace::Namespace;
use super::rights::Rights;
use super::sys::{self, Info};
use super::tid::Tid;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, OFlags};
use rustix::process::{pidfd_getfd, pidfd_open, PidfdFlags, PidfdGetfdFlags};
use rustix::thread::{capabilities, CapabilitySet, CapabilitySets, Gid, Pid, Uid};
use std::io;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// `PIDFD_THREAD`: a descriptor of the thread itself, whose table of files may be its own.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());

/// So long a thread is taken to have the supplementary groups that it had, if nothing else that it may do has changed. No driver of NVIDIA's
/// looks at groups (os-interface.c of the open releases: the effective user, and capabilities).
const GROUPS_STAY: Duration = Duration::from_millis(100);

/// What `/proc/TID/status` tells.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Status {
    tgid: u32,
    rights: Rights,
}

/// What a thread might do when it was looked at.
#[derive(Debug, Clone)]
struct Known {
    at: Instant,
    info: Info,
    sets: CapabilitySets,
    rights: Rights,
}

/// A thread, by its folder in `/proc` and a descriptor of it. Both are of whoever had the number when they were opened.
#[derive(Debug)]
pub(super) struct Caller {
    tid: Tid,
    /// Of the thread itself; none before Linux 6.9.
    pidfd: Option<OwnedFd>,
    /// Its folder.
    pub(super) folder: Folder,
    /// Its PID namespace, which it has for life: only its children can be born in another (pid_namespaces(7)).
    pub(super) namespace: Arc<Namespace>,
    /// What the kernel said of it for this call; none before Linux 6.13.
    now: Option<Info>,
    /// What it may do, as it was when it asked last.
    known: Option<Known>,
}

impl Caller {
    /// The thread that has this number now. Whether it is the one that waits, the listener tells: ask it after this. `last` is a namespace
    /// that is held: most threads are in the one that was asked from last.
    pub(super) fn of(tid: Tid, last: Option<&Arc<Namespace>>) -> io::Result<Caller> {
        let pidfd = match pidfd_open(raw(tid)?, PIDFD_THREAD) {
            Err(rustix::io::Errno::INVAL) => None,
            opened => Some(opened?),
        };
        let folder = Folder::of_thread(tid)?;
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
    pub(super) fn is_still(&mut self, tid: Tid) -> bool {
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
    pub(super) fn other_users(&self) -> Vec<Uid> {
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
    pub(super) fn refusal(&self, number: i32) -> i32 {
        match self.folder.is_open_for_anything(&format!("fd/{number}")) {
            Ok(true) => return libc::ENOTTY,
            Ok(false) => {}
            Err(_) => return libc::EBADF,
        }
        let Ok(text) = self.folder.read(&format!("fdinfo/{number}")) else { return libc::EBADF };
        let flags = field(&text, "flags").and_then(|flags| u32::from_str_radix(flags, 8).ok()).unwrap_or(0);
        if flags & OFlags::PATH.bits() != 0 {
            libc::EBADF
        } else {
            libc::ENOTTY
        }
    }

    /// Its memory. Stays the memory of the program that runs now, whatever becomes of the number.
    pub(super) fn memory(&self) -> io::Result<Memory> {
        Memory::of(&self.folder)
    }

    /// What it may do, and its process.
    pub(super) fn rights(&mut self, init_user_namespace: (u64, u64)) -> io::Result<(Rights, Pid)> {
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
        if let (Some((info, sets)), Some(known)) = (now, &self.known) {
            if known.info == info && known.sets == sets && known.at.elapsed() < GROUPS_STAY {
                return Ok((info.tgid, known.rights.clone()));
            }
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
    pub(super) fn device(&self, number: i32) -> io::Result<Option<(u32, u32)>> {
        self.folder.device(&format!("fd/{number}"))
    }

    /// The file behind one of its descriptors: the same open file, not another one of the same name. `still_waits` is asked once
    /// the number has been looked up.
    ///
    /// # Errors
    /// `ESTALE` when the number was looked up too late; any other of `pidfd_getfd(2)`.
    pub(super) fn file(&self, process: Pid, number: i32, still_waits: impl Fn() -> bool) -> io::Result<OwnedFd> {
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

impl Status {
    fn parse(text: &str) -> Option<Status> {
        let field = |name| field(text, name);
        // Real, effective, saved and file-system ids, in this order.
        let effective = |name| field(name)?.split_whitespace().nth(1)?.parse::<u32>().ok();
        let groups = field("Groups")?.split_whitespace().map(|group| group.parse().map(Gid::from_raw));
        Some(Status {
            tgid: field("Tgid")?.parse().ok()?,
            rights: Rights {
                uid: Uid::from_raw(effective("Uid")?),
                gid: Gid::from_raw(effective("Gid")?),
                groups: groups.collect::<Result<_, _>>().ok()?,
                capabilities: CapabilitySet::from_bits_retain(u64::from_str_radix(field("CapEff")?, 16).ok()?),
            },
        })
    }
}

/// Who is root in a user namespace, by its `uid_map`: user_namespaces(7).
fn root_of(map: &str) -> Option<u32> {
    let mut lines = map.lines().map(|line| line.split_whitespace());
    lines.find_map(|mut words| if words.next() == Some("0") { words.next()?.parse().ok() } else { None })
}

/// The user namespace of this process as [`Caller::rights`] wants it, and its file: while that is open, the kernel does not make it anew
/// for each look, which halves what a look costs.
pub(super) fn own_user_namespace() -> io::Result<((u64, u64), OwnedFd)> {
    let file = std::fs::File::open("/proc/self/ns/user")?;
    let stat = rustix::fs::fstat(&file)?;
    Ok(((stat.st_dev, stat.st_ino), file.into()))
}

/// Device number of an open character device. No file system is asked.
pub(super) fn character_device(file: BorrowedFd<'_>) -> Option<(u32, u32)> {
    device(file, "", AtFlags::EMPTY_PATH).ok().flatten()
}

/// Whether a kernel of this release keeps every task that `PIDFD_GET_INFO` was asked about for ever: from 6.15 on, until "pidfs: Fix memory leak in
/// pidfd_info()" came with 6.17 and 6.16.4. A vendor's kernel may have it mended earlier: then `/proc` is read for nothing.
fn leaks_tasks(release: &str) -> bool {
    let mut numbers = release.split(['.', '-', '+', '_']).map(|number| number.parse::<u32>().unwrap_or(0));
    let version: [u32; 3] = std::array::from_fn(|_| numbers.next().unwrap_or(0));
    ([6, 15, 0]..[6, 16, 4]).contains(&version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_thread_may_do_is_what_the_kernel_says_of_it() {
        let mut caller = Caller::of(Tid::of_this_thread(), None).expect("our own folder");
        let (rights, process) = caller.rights(own_user_namespace().expect("ours").0).expect("our own status");
        assert_eq!((rights.uid, rights.gid), (rustix::process::geteuid(), rustix::process::getegid()));
        assert_eq!(process, rustix::process::getpid());
        let ours = rustix::thread::capabilities(None).expect("our own").effective;
        assert_eq!(rights.capabilities, ours);
        let (rights, _) = caller.rights((0, 0)).expect("our own status");
        assert_eq!(
            rights.capabilities,
            CapabilitySet::empty(),
            "capabilities of another user namespace count for nothing on the host"
        );
    }

    /// A thread that does what it is told.
    struct Told {
        tid: Tid,
        order: std::sync::mpsc::Sender<fn()>,
        done: std::sync::mpsc::Receiver<Tid>,
    }

    impl Told {
        fn start() -> Told {
            let (tell, done) = std::sync::mpsc::channel();
            let (order, orders) = std::sync::mpsc::channel::<fn()>();
            std::thread::spawn(move || {
                let _ = tell.send(Tid::of_this_thread());
                while let Ok(order) = orders.recv() {
                    order();
                    let _ = tell.send(Tid::of_this_thread());
                }
            });
            Told { tid: done.recv().expect("its number"), order, done }
        }

        fn does(&self, job: fn()) {
            self.order.send(job).expect("it lives");
            self.done.recv().expect("done");
        }
    }

    #[test]
    fn what_a_thread_gave_up_since_it_asked_last_it_does_not_have() {
        use rustix::thread::{set_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can become somebody else");
            return;
        }
        let told = Told::start();
        let tid = told.tid;
        let mut caller = Caller::of(tid, None).expect("it lives");
        let user_namespace = own_user_namespace().expect("ours").0;
        let mut look = || {
            assert!(caller.is_still(tid) || caller.pidfd.is_none());
            caller.rights(user_namespace).expect("its status").0
        };
        let before = look();
        assert_eq!(look(), before);
        told.does(|| set_thread_groups(&[Gid::from_raw(77)]).expect("root can"));
        std::thread::sleep(GROUPS_STAY);
        assert_eq!(look().groups, [Gid::from_raw(77)]);
        told.does(|| set_thread_res_gid(None, Gid::from_raw(78), None).expect("root can"));
        assert_eq!(look().gid, Gid::from_raw(78));
        told.does(|| {
            let sets = capabilities(None).expect("ours");
            let effective = sets.effective - CapabilitySet::SYS_ADMIN;
            set_capabilities(None, CapabilitySets { effective, ..sets }).expect("less is free");
        });
        assert_eq!(look().capabilities, before.capabilities - CapabilitySet::SYS_ADMIN);
        told.does(|| {
            set_thread_groups(&[Gid::from_raw(79)]).expect("root can");
            set_thread_res_uid(None, Uid::from_raw(1234), None).expect("root can");
        });
        let after = look();
        assert_eq!((after.uid.as_raw(), after.groups), (1234, vec![Gid::from_raw(79)]));
        assert!(after.capabilities.is_empty(), "with the user they went");
    }

    #[test]
    fn kernels_that_keep_what_they_are_asked_about_are_not_asked() {
        for (release, leaks) in [
            ("6.14.11-arch1", false),
            ("6.15.0-rc1", true),
            ("6.16", true),
            ("6.16.3+deb14-amd64", true),
            ("6.16.4", false),
            ("6.17.0", false),
            ("7.2.13+deb14-amd64", false),
            ("5.10.0", false),
            ("", false),
        ] {
            assert_eq!(leaks_tasks(release), leaks, "{release}");
        }
    }

    #[test]
    fn a_thread_is_still_who_it_was_until_it_ends() {
        let (tell, told) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = tell.send(Tid::of_this_thread());
            let _ = wait.recv();
        });
        let tid = told.recv().expect("its number");
        let mut caller = Caller::of(tid, None).expect("it lives");
        if caller.pidfd.is_none() {
            println!("skipped: this kernel has no descriptors of threads: Linux 6.9");
        } else {
            assert!(caller.is_still(tid) && !caller.is_still(Tid::of_this_thread()));
        }
        drop(done);
        let _ = thread.join();
        // Joining waits for less than the kernel's last word.
        let ended = std::time::Instant::now();
        while caller.is_still(tid) && ended.elapsed().as_secs() < 5 {}
        assert!(!caller.is_still(tid), "its number can be another's by now");
    }

    #[test]
    fn a_line_that_is_not_there_is_no_right_of_anybody() {
        let whole =
            "Name:\tx\nTgid:\t7\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \nCapEff:\t00000000a80425fb\n";
        let status = Status::parse(whole).expect("whole");
        assert_eq!((status.tgid, status.rights.uid.as_raw(), status.rights.gid.as_raw()), (7, 2, 6));
        assert_eq!(status.rights.groups.len(), 2);
        assert_eq!(status.rights.capabilities.bits(), 0xa804_25fb);
        for line in ["Tgid", "Uid", "Gid", "Groups", "CapEff"] {
            assert_eq!(Status::parse(&whole.replace(line, "Other")), None, "{line}");
        }
    }

    #[test]
    fn root_of_a_user_namespace_is_who_its_map_says() {
        assert_eq!(root_of("         0     100000      65536\n"), Some(100_000));
        assert_eq!(root_of("1000 1000 1\n0 7 1\n"), Some(7));
        assert_eq!(root_of("1000 1000 1\n"), None);
    }

    #[test]
    fn what_is_no_drivers_file_is_refused_as_the_kernel_does() {
        use std::os::fd::AsRawFd;
        let caller = Caller::of(Tid::of_this_thread(), None).expect("our own folder");
        let null = std::fs::File::open("/dev/null").expect("/dev/null");
        assert_eq!(caller.refusal(null.as_raw_fd()), libc::ENOTTY);
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let path = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()).expect("/dev/null");
        assert_eq!(caller.refusal(path.as_raw_fd()), libc::EBADF);
        assert_eq!(caller.refusal(-1), libc::EBADF);
        // Open for neither, and no path: open(2) on the access mode 3.
        let neither = OFlags::from_bits_retain(3) | OFlags::CLOEXEC;
        let neither = rustix::fs::open("/dev/null", neither, rustix::fs::Mode::empty()).expect("/dev/null");
        assert_eq!(caller.refusal(neither.as_raw_fd()), libc::ENOTTY);
    }

    /// Bytes that this thread has read, as far as the kernel counts them (`CONFIG_TASK_IO_ACCOUNTING`).
    fn bytes_read() -> Option<u64> {
        field(&std::fs::read_to_string("/proc/thread-self/io").ok()?, "rchar")?.parse().ok()
    }

    #[test]
    fn a_refusal_does_not_read_all_that_an_epoll_watches() {
        use rustix::event::{epoll, eventfd, EventfdFlags};
        use std::os::fd::AsRawFd;
        let Some(before) = bytes_read() else {
            println!("skipped: this kernel does not count what is read");
            return;
        };
        let many = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
        let watched: Vec<OwnedFd> = (0..200).map(|_| eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")).collect();
        for fd in &watched {
            epoll::add(&many, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).expect("watched");
        }
        let caller = Caller::of(Tid::of_this_thread(), None).expect("our own folder");
        assert_eq!(caller.refusal(many.as_raw_fd()), libc::ENOTTY);
        let read = bytes_read().expect("counted before") - before;
        assert!(read < 4096, "{read} bytes");
    }

    #[test]
    fn files_are_this_processs_own() {
        let caller = Caller::of(Tid::of_this_thread(), None).expect("our own folder");
        let null = std::fs::File::open("/dev/null").expect("/dev/null");
        let number = std::os::fd::AsRawFd::as_raw_fd(&null);
        let file = caller.file(rustix::process::getpid(), number, || true).expect("our own descriptor");
        assert_eq!(character_device(file.as_fd()), Some((1, 3)));
        assert_eq!(caller.device(number).expect("our own descriptor"), Some((1, 3)));
        let socket = std::os::unix::net::UnixDatagram::unbound().expect("a socket");
        assert_eq!(caller.device(std::os::fd::AsRawFd::as_raw_fd(&socket)).expect("our own descriptor"), None);
        assert_eq!(caller.device(-1).expect_err("none").raw_os_error(), Some(libc::ENOENT));
        let late = caller.file(rustix::process::getpid(), number, || false).expect_err("too late");
        assert_eq!(late.raw_os_error(), Some(libc::ESTALE));
    }
}
