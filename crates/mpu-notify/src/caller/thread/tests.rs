//! This process's own threads as callers.

use super::*;
use rustix::thread::Gid;

#[test]
fn caller_rights_match_kernels_status() {
    let mut caller = Caller::open(Tid::of_this_thread(), None).expect("our own folder");
    let (rights, process) = caller.rights(own_user_namespace().expect("ours").id()).expect("our own status");
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

/// A thread that runs closures sent to it. It ends when this is dropped, a moment later.
pub(crate) struct Worker {
    pub(crate) tid: Tid,
    order: std::sync::mpsc::Sender<fn()>,
    done: std::sync::mpsc::Receiver<Tid>,
}

impl Worker {
    pub(crate) fn start() -> Worker {
        let (done_sender, done) = std::sync::mpsc::channel();
        let (order, orders) = std::sync::mpsc::channel::<fn()>();
        std::thread::spawn(move || {
            let _ = done_sender.send(Tid::of_this_thread());
            while let Ok(order) = orders.recv() {
                order();
                let _ = done_sender.send(Tid::of_this_thread());
            }
        });
        Worker { tid: done.recv().expect("its number"), order, done }
    }

    fn run(&self, job: fn()) {
        self.order.send(job).expect("it lives");
        self.done.recv().expect("done");
    }
}

#[test]
fn dropped_rights_are_seen_on_next_call() {
    use rustix::thread::{set_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can become another user");
    }
    let worker = Worker::start();
    let tid = worker.tid;
    let mut caller = Caller::open(tid, None).expect("it lives");
    let user_namespace = own_user_namespace().expect("ours").id();
    let mut rights = || {
        assert!(caller.is_same_thread(tid) || caller.pidfd.is_none());
        caller.rights(user_namespace).expect("its status").0
    };
    let before = rights();
    assert_eq!(rights(), before);
    worker.run(|| set_thread_groups(&[Gid::from_raw(77)]).expect("root can"));
    std::thread::sleep(GROUPS_CACHE_TIME);
    assert_eq!(rights().groups, [Gid::from_raw(77)]);
    worker.run(|| set_thread_res_gid(None, Gid::from_raw(78), None).expect("root can"));
    assert_eq!(rights().gid, Gid::from_raw(78));
    worker.run(|| {
        let sets = capabilities(None).expect("ours");
        let effective = sets.effective - CapabilitySet::SYS_ADMIN;
        set_capabilities(None, CapabilitySets { effective, ..sets }).expect("less is free");
    });
    assert_eq!(rights().capabilities, before.capabilities - CapabilitySet::SYS_ADMIN);
    worker.run(|| {
        set_thread_groups(&[Gid::from_raw(79)]).expect("root can");
        set_thread_res_uid(None, Uid::from_raw(1234), None).expect("root can");
    });
    let after = rights();
    assert_eq!((after.uid.as_raw(), after.groups), (1234, vec![Gid::from_raw(79)]));
    assert!(after.capabilities.is_empty(), "with the user they went");
}

#[test]
fn only_leaking_kernel_releases_are_detected() {
    for (release, has_leak) in [
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
        assert_eq!(has_pidfd_info_leak(release), has_leak, "{release}");
    }
}

#[test]
fn thread_keeps_identity_until_it_ends() {
    let worker = Worker::start();
    let tid = worker.tid;
    let mut caller = Caller::open(tid, None).expect("it lives");
    if caller.pidfd.is_none() {
        println!("skipped: this kernel has no descriptors of threads: Linux 6.9");
    } else {
        assert!(caller.is_same_thread(tid) && !caller.is_same_thread(Tid::of_this_thread()));
    }
    drop(worker);
    let ended = std::time::Instant::now();
    while caller.is_same_thread(tid) && ended.elapsed().as_secs() < 5 {}
    assert!(!caller.is_same_thread(tid), "its number can be another's by now");
}

#[test]
fn non_driver_fd_refusal_matches_kernel_errno() {
    use std::os::fd::AsRawFd;
    let caller = Caller::open(Tid::of_this_thread(), None).expect("our own folder");
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    assert_eq!(caller.unknown_ioctl_errno(null.as_raw_fd()), libc::ENOTTY);
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let path = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()).expect("/dev/null");
    assert_eq!(caller.unknown_ioctl_errno(path.as_raw_fd()), libc::EBADF);
    assert_eq!(caller.unknown_ioctl_errno(-1), libc::EBADF);
    // Open for neither reading nor writing, without O_PATH: access mode 3 of open(2).
    let neither = OFlags::from_bits_retain(3) | OFlags::CLOEXEC;
    let neither = rustix::fs::open("/dev/null", neither, rustix::fs::Mode::empty()).expect("/dev/null");
    assert_eq!(caller.unknown_ioctl_errno(neither.as_raw_fd()), libc::ENOTTY);
}

/// Bytes that this thread has read, if the kernel counts them (`CONFIG_TASK_IO_ACCOUNTING`).
fn bytes_read() -> Option<u64> {
    field(&std::fs::read_to_string("/proc/thread-self/io").ok()?, "rchar")?.parse().ok()
}

#[test]
fn refusal_of_epoll_reads_little() {
    use rustix::event::{EventfdFlags, epoll, eventfd};
    use std::os::fd::AsRawFd;
    let Some(before) = bytes_read() else { return println!("skipped: this kernel does not count what is read") };
    let many = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
    let watched: Vec<OwnedFd> = (0..200).map(|_| eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")).collect();
    for fd in &watched {
        epoll::add(&many, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).expect("watched");
    }
    let caller = Caller::open(Tid::of_this_thread(), None).expect("our own folder");
    assert_eq!(caller.unknown_ioctl_errno(many.as_raw_fd()), libc::ENOTTY);
    let read = bytes_read().expect("counted before") - before;
    assert!(read < 4096, "{read} bytes");
}

#[test]
fn caller_descriptors_are_copied() {
    let caller = Caller::open(Tid::of_this_thread(), None).expect("our own folder");
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
