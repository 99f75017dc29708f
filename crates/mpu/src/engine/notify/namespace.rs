//! A PID namespace, and who has which number in it.
//!
//! Owns the two ways to ask the kernel: by the namespace itself (Linux 6.11), and by `/proc`, where every process tells its
//! numbers. Both are exact at the moment of asking, so a number that went to somebody else is never taken for the old one's.
//! Knows nothing of policy.

use super::folder::{field, Folder};
use super::sys;
use mpu_core::{HostPid, ViewPid};
use rustix::fd::{AsFd, OwnedFd};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::io;

/// A PID namespace that is held, so that it stays itself.
#[derive(Debug)]
pub(super) struct Namespace {
    fd: OwnedFd,
    id: (u64, u64),
}

impl Namespace {
    pub(super) fn new(fd: OwnedFd) -> io::Result<Namespace> {
        let stat = rustix::fs::fstat(&fd)?;
        Ok(Namespace { id: (stat.st_dev, stat.st_ino), fd })
    }

    /// The namespace of this process: the host's, for a supervisor.
    pub(super) fn own() -> io::Result<Namespace> {
        Namespace::new(fs::File::open("/proc/self/ns/pid")?.into())
    }

    /// Which one it is.
    pub(super) fn id(&self) -> (u64, u64) {
        self.id
    }

    fn parent(&self) -> io::Result<Namespace> {
        Namespace::new(sys::parent(self.fd.as_fd())?)
    }
}

/// How numbers are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The namespace is asked.
    Kernel,
    /// `/proc` is read.
    Proc,
}

impl Lookup {
    /// The best that this kernel has.
    pub fn of_this_kernel() -> Lookup {
        let asked = Namespace::own().and_then(|own| {
            let pid = HostPid::new(std::process::id()).ok_or(io::ErrorKind::InvalidData)?;
            sys::view_of(own.fd.as_fd(), pid)
        });
        if asked.is_ok() {
            Lookup::Kernel
        } else {
            Lookup::Proc
        }
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Lookup::Kernel => "kernel",
            Lookup::Proc => "proc",
        }
    }
}

/// Numbers in one namespace, as one call needs them.
pub(super) struct Numbers<'a> {
    namespace: &'a Namespace,
    lookup: Lookup,
    /// Host numbers by number in the namespace, from one walk through `/proc`: at most one a call.
    walked: RefCell<Option<HashMap<ViewPid, HostPid>>>,
    /// What earlier calls of this listener found; each is looked at again before it counts.
    known: &'a RefCell<Known>,
}

/// Pairs that were true once.
pub(super) type Known = HashMap<((u64, u64), ViewPid), HostPid>;

/// Pairs remembered for a listener; when there are more, all are forgotten.
const MOST_KNOWN: usize = 4096;

impl<'a> Numbers<'a> {
    pub(super) fn new(namespace: &'a Namespace, lookup: Lookup, known: &'a RefCell<Known>) -> Numbers<'a> {
        Numbers { namespace, lookup, walked: RefCell::new(None), known }
    }

    /// The number in the namespace of a process of the host.
    pub(super) fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
        if self.lookup == Lookup::Kernel {
            return sys::view_of(self.namespace.fd.as_fd(), pid).ok().flatten();
        }
        let view = view_by_proc(self.namespace, pid)?;
        let mut known = self.known.borrow_mut();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert((self.namespace.id, view), pid);
        Some(view)
    }

    /// The host's number of a process of the namespace.
    pub(super) fn host_of(&self, pid: ViewPid) -> Option<HostPid> {
        if self.lookup == Lookup::Kernel {
            return sys::host_of(self.namespace.fd.as_fd(), pid).ok().flatten();
        }
        let known = self.known.borrow().get(&(self.namespace.id, pid)).copied();
        let still = |host: &HostPid| view_by_proc(self.namespace, *host) == Some(pid);
        known.filter(still).or_else(|| {
            let mut walked = self.walked.borrow_mut();
            walked.get_or_insert_with(|| walk(self.namespace)).get(&pid).copied()
        })
    }
}

/// Every process of a namespace, by its number there.
fn walk(namespace: &Namespace) -> HashMap<ViewPid, HostPid> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(HostPid::new).filter_map(|host| Some((view_by_proc(namespace, host)?, host))).collect()
}

/// A process's number in a namespace, as `/proc/PID/status` lists them from the host's namespace down to its own.
fn view_by_proc(namespace: &Namespace, pid: HostPid) -> Option<ViewPid> {
    let folder = Folder::of_process(pid).ok()?;
    let status = folder.read("status").ok()?;
    // A number may be a thread's only.
    if field(&status, "Tgid")?.parse() != Ok(pid.get()) {
        return None;
    }
    let numbers: Vec<u32> = field(&status, "NSpid")?.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let mut at = folder.pid_namespace().and_then(Namespace::new).ok()?;
    for number in numbers.iter().rev() {
        if at.id == namespace.id {
            return ViewPid::new(*number);
        }
        at = at.parent().ok()?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::notify::folder::Folder;
    use std::process::{Child, Command, Stdio};

    /// A process that is PID 1 of a new namespace, and one below it.
    fn nested() -> Option<Vec<Child>> {
        let made = std::thread::spawn(|| {
            crate::sys::unshare_pid_namespace_of_children().ok()?;
            let sleep = || Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().ok();
            Some(vec![sleep()?, sleep()?])
        });
        made.join().ok()?
    }

    fn host(pid: u32) -> HostPid {
        HostPid::new(pid).expect("a PID")
    }

    #[test]
    fn both_ways_to_look_up_say_the_same() {
        let Some(mut children) = nested() else {
            println!("skipped: only root makes PID namespaces");
            return;
        };
        let pids: Vec<HostPid> = children.iter().map(|child| host(child.id())).collect();
        let namespace = Folder::of_process(pids[1])
            .and_then(|folder| folder.pid_namespace())
            .and_then(Namespace::new)
            .expect("theirs");
        assert_ne!(namespace.id(), Namespace::own().expect("ours").id());
        let mut ways = vec![Lookup::Proc];
        match Lookup::of_this_kernel() {
            Lookup::Kernel => ways.push(Lookup::Kernel),
            Lookup::Proc => println!("skipped: this kernel's namespaces cannot be asked: Linux 6.11"),
        }
        let known = RefCell::default();
        for way in ways {
            let numbers = Numbers::new(&namespace, way, &known);
            for (view, pid) in (1..).zip(&pids) {
                assert_eq!(numbers.view_of(*pid), ViewPid::new(view), "{way:?}");
                assert_eq!(numbers.host_of(ViewPid::new(view).expect("a PID")), Some(*pid), "{way:?}");
            }
            assert_eq!(numbers.view_of(host(std::process::id())), None, "{way:?}: we are not in there");
            assert_eq!(numbers.host_of(ViewPid::new(3).expect("a PID")), None, "{way:?}: there are two");
        }
        for child in children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // What was found before does not count any more.
        for way in [Lookup::Proc, Lookup::of_this_kernel()] {
            let numbers = Numbers::new(&namespace, way, &known);
            assert_eq!(numbers.host_of(ViewPid::new(2).expect("a PID")), None, "{way:?}");
            assert_eq!(numbers.view_of(pids[1]), None, "{way:?}");
        }
    }

    #[test]
    fn a_thread_is_no_process() {
        let (tell, told) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            let _ = wait.recv();
        });
        let thread_id = host(told.recv().expect("its number"));
        let (own, known) = (Namespace::own().expect("ours"), RefCell::default());
        for way in [Lookup::Proc, Lookup::of_this_kernel()] {
            let numbers = Numbers::new(&own, way, &known);
            assert_eq!(numbers.view_of(thread_id), None, "{way:?}");
            let same = ViewPid::new(std::process::id());
            assert_eq!(numbers.view_of(host(std::process::id())), same, "{way:?}");
        }
        drop(done);
        let _ = thread.join();
    }
}
