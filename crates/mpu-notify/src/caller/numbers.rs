//! Who has which number in a PID namespace.
//!
//! Owns the two ways to ask the kernel: by the namespace itself (Linux 6.11), and by `/proc`, where every process tells its
//! numbers (`process_cache`). Both are exact at the moment of asking, so a number that went to another process is never taken for the old
//! one's. Knows nothing of policy.

use crate::caller::namespace::{Id, Namespace};
use crate::caller::proc_folder::of_process;
use crate::caller::process::Process;
use crate::caller::process_cache::ProcessCache;
use crate::sys;
use mpu_core::{HostPid, ViewPid};
use rustix::fd::AsFd;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::io;

/// How numbers are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    Kernel,
    /// `/proc` is read.
    Proc,
}

impl Lookup {
    /// The best that this kernel has.
    pub fn of_this_kernel() -> Lookup {
        let asked = Namespace::own().and_then(|own| {
            let pid = HostPid::new(std::process::id()).ok_or(io::ErrorKind::InvalidData)?;
            sys::view_of(own.as_fd(), pid)
        });
        if asked.is_ok() { Lookup::Kernel } else { Lookup::Proc }
    }

    pub fn name(self) -> &'static str {
        match self {
            Lookup::Kernel => "kernel",
            Lookup::Proc => "proc",
        }
    }
}

/// Numbers in one namespace, as one call needs them.
pub(crate) struct Numbers<'a> {
    namespace: &'a Namespace,
    lookup: Lookup,
    /// Host numbers by number in the namespace, from one walk through `/proc`: at most one a call.
    walked: RefCell<Option<HashMap<ViewPid, HostPid>>>,
    held: &'a ProcessCache,
}

impl<'a> Numbers<'a> {
    pub(crate) fn new(namespace: &'a Namespace, lookup: Lookup, held: &'a ProcessCache) -> Numbers<'a> {
        Numbers { namespace, lookup, walked: RefCell::new(None), held }
    }

    /// The same of a process that is held: its numbers never change, so the kernel is not asked.
    pub(crate) fn view_of_held(&self, process: &Process) -> Option<ViewPid> {
        process.number_in(self.namespace.id())
    }

    /// The number in the namespace of a process of the host.
    pub(crate) fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
        match self.lookup {
            Lookup::Kernel => sys::view_of(self.namespace.as_fd(), pid).ok().flatten(),
            Lookup::Proc => self.held.view_of(self.namespace.id(), pid),
        }
    }

    /// The host's number of a process of the namespace.
    pub(crate) fn host_of(&self, pid: ViewPid) -> Option<HostPid> {
        match self.lookup {
            Lookup::Kernel => sys::host_of(self.namespace.as_fd(), pid).ok().flatten(),
            Lookup::Proc => self.held.host_of(self.namespace.id(), pid).or_else(|| {
                let mut walked = self.walked.borrow_mut();
                walked.get_or_insert_with(|| self.walk()).get(&pid).copied()
            }),
        }
    }

    /// Every process of the namespace, by its number there.
    fn walk(&self) -> HashMap<ViewPid, HostPid> {
        let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
        let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // Most processes of a host are in few namespaces, and those are looked at once each.
        let mut seen = HashMap::new();
        let inside = numbers.filter_map(HostPid::new).filter(|host| self.may_hold(*host, &mut seen) == Some(true));
        inside.filter_map(|host| Some((self.held.view_of(self.namespace.id(), host)?, host))).collect()
    }

    /// Whether a process lives in the namespace or in one below it.
    fn may_hold(&self, pid: HostPid, seen: &mut HashMap<Id, (Namespace, bool)>) -> Option<bool> {
        let folder = of_process(pid).ok()?;
        if let Some((_, inside)) = seen.get(&folder.identity("ns/pid").ok()?) {
            return Some(*inside);
        }
        let namespace = Namespace::new(folder.pid_namespace().ok()?).ok()?;
        let mut above = Some(namespace.again().ok()?);
        let mut inside = false;
        while let Some(at) = above.take().filter(|_| !inside) {
            inside = at.id() == self.namespace.id();
            above = at.parent().ok();
        }
        // Kept open for the walk, so that no other namespace gets its inode number in the meantime.
        seen.insert(namespace.id(), (namespace, inside));
        Some(inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// A process that is PID 1 of a new namespace, and one below it.
    fn nested() -> Option<Vec<Child>> {
        let made = std::thread::spawn(|| {
            mpu_host::own::unshare_pid_namespace_of_children().ok()?;
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
        let namespace =
            of_process(pids[1]).and_then(|folder| folder.pid_namespace()).and_then(Namespace::new).expect("theirs");
        assert_ne!(namespace.id(), Namespace::own().expect("ours").id());
        let mut ways = vec![Lookup::Proc];
        match Lookup::of_this_kernel() {
            Lookup::Kernel => ways.push(Lookup::Kernel),
            Lookup::Proc => println!("skipped: this kernel's namespaces cannot be asked: Linux 6.11"),
        }
        let held = ProcessCache::default();
        for way in ways {
            let numbers = Numbers::new(&namespace, way, &held);
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
            let numbers = Numbers::new(&namespace, way, &held);
            assert_eq!(numbers.host_of(ViewPid::new(2).expect("a PID")), None, "{way:?}");
            assert_eq!(numbers.view_of(pids[1]), None, "{way:?}");
        }
    }

    #[test]
    fn thread_is_no_process() {
        let (tell, told) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            let _ = wait.recv();
        });
        let thread_id = host(told.recv().expect("its number"));
        let (own, held) = (Namespace::own().expect("ours"), ProcessCache::default());
        for way in [Lookup::Proc, Lookup::of_this_kernel()] {
            let numbers = Numbers::new(&own, way, &held);
            assert_eq!(numbers.view_of(thread_id), None, "{way:?}");
            let same = ViewPid::new(std::process::id());
            assert_eq!(numbers.view_of(host(std::process::id())), same, "{way:?}");
        }
        drop(done);
        let _ = thread.join();
    }
}
