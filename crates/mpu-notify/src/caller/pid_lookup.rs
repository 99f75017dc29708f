//! Converts between host PIDs and PIDs of a namespace, either by ioctls on the namespace (Linux 6.11) or by `/proc` (`process_cache`).
//! Both are exact at the time of the call: a reused PID never yields the earlier process.

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

/// How PIDs are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    Kernel,
    /// `/proc` is read.
    Proc,
}

impl Lookup {
    /// `Kernel` if the kernel has the ioctls, else `Proc`.
    pub fn of_this_kernel() -> Lookup {
        let answer = Namespace::own().and_then(|own| {
            let pid = HostPid::new(std::process::id()).ok_or(io::ErrorKind::InvalidData)?;
            sys::view_of(own.as_fd(), pid)
        });
        if answer.is_ok() { Lookup::Kernel } else { Lookup::Proc }
    }

    pub fn name(self) -> &'static str {
        match self {
            Lookup::Kernel => "kernel",
            Lookup::Proc => "proc",
        }
    }
}

/// Looks up PIDs of one namespace, for one call.
pub(crate) struct PidLookup<'a> {
    namespace: &'a Namespace,
    lookup: Lookup,
    /// Host PIDs by PID in the namespace, from a walk through `/proc`: at most one walk in a call.
    walk_result: RefCell<Option<HashMap<ViewPid, HostPid>>>,
    cache: &'a ProcessCache,
}

impl<'a> PidLookup<'a> {
    pub(crate) fn new(namespace: &'a Namespace, lookup: Lookup, cache: &'a ProcessCache) -> PidLookup<'a> {
        PidLookup { namespace, lookup, walk_result: RefCell::new(None), cache }
    }

    /// The PID of a cached process, whose PIDs never change.
    pub(crate) fn view_of_process(&self, process: &Process) -> Option<ViewPid> {
        process.pid_in(self.namespace.id())
    }

    /// The PID in the namespace of a host process.
    pub(crate) fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
        match self.lookup {
            Lookup::Kernel => sys::view_of(self.namespace.as_fd(), pid).ok().flatten(),
            Lookup::Proc => self.cache.view_of(self.namespace.id(), pid),
        }
    }

    /// The host PID of a process of the namespace.
    pub(crate) fn host_of(&self, pid: ViewPid) -> Option<HostPid> {
        match self.lookup {
            Lookup::Kernel => sys::host_of(self.namespace.as_fd(), pid).ok().flatten(),
            Lookup::Proc => self.cache.host_of(self.namespace.id(), pid).or_else(|| {
                let mut walk_result = self.walk_result.borrow_mut();
                walk_result.get_or_insert_with(|| self.walk()).get(&pid).copied()
            }),
        }
    }

    /// Host PIDs of all processes of the namespace, by their PID there.
    fn walk(&self) -> HashMap<ViewPid, HostPid> {
        let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // Most processes of a host are in few namespaces, so results are cached by namespace.
        let mut is_inside_by_namespace = HashMap::new();
        let hosts = pids
            .filter_map(HostPid::new)
            .filter(|host| self.is_inside(*host, &mut is_inside_by_namespace) == Some(true));
        hosts.filter_map(|host| Some((self.cache.view_of(self.namespace.id(), host)?, host))).collect()
    }

    /// Whether a process is in the namespace or in a descendant of it.
    fn is_inside(&self, pid: HostPid, is_inside_by_namespace: &mut HashMap<Id, (Namespace, bool)>) -> Option<bool> {
        let folder = of_process(pid).ok()?;
        if let Some((_, is_inside)) = is_inside_by_namespace.get(&folder.identity("ns/pid").ok()?) {
            return Some(*is_inside);
        }
        let namespace = Namespace::new(folder.pid_namespace().ok()?).ok()?;
        let mut next = Some(namespace.try_clone().ok()?);
        let mut is_inside = false;
        while let Some(at) = next.take().filter(|_| !is_inside) {
            is_inside = at.id() == self.namespace.id();
            next = at.parent().ok();
        }
        // Kept open during the walk, so no other namespace gets its inode number meanwhile.
        is_inside_by_namespace.insert(namespace.id(), (namespace, is_inside));
        Some(is_inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::thread::tests::Worker;
    use std::process::{Child, Command, Stdio};

    /// A process that is PID 1 of a new namespace, and one below it.
    fn spawn_nested() -> Option<Vec<Child>> {
        let children = std::thread::spawn(|| {
            mpu_host::sys::unshare_pid_namespace_of_children().ok()?;
            let sleep = || Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().ok();
            Some(vec![sleep()?, sleep()?])
        });
        children.join().ok()?
    }

    fn host(pid: u32) -> HostPid {
        HostPid::new(pid).expect("a PID")
    }

    #[test]
    fn kernel_and_proc_lookup_agree() {
        let Some(mut children) = spawn_nested() else { return println!("skipped: only root makes PID namespaces") };
        let pids: Vec<HostPid> = children.iter().map(|child| host(child.id())).collect();
        let namespace =
            of_process(pids[1]).and_then(|folder| folder.pid_namespace()).and_then(Namespace::new).expect("theirs");
        assert_ne!(namespace.id(), Namespace::own().expect("ours").id());
        let mut methods = vec![Lookup::Proc];
        match Lookup::of_this_kernel() {
            Lookup::Kernel => methods.push(Lookup::Kernel),
            Lookup::Proc => println!("skipped: this kernel has no PID ioctls of namespaces: Linux 6.11"),
        }
        let cache = ProcessCache::default();
        for method in methods {
            let lookup = PidLookup::new(&namespace, method, &cache);
            for (view, pid) in (1..).zip(&pids) {
                assert_eq!(lookup.view_of(*pid), ViewPid::new(view), "{method:?}");
                assert_eq!(lookup.host_of(ViewPid::new(view).expect("a PID")), Some(*pid), "{method:?}");
            }
            assert_eq!(lookup.view_of(host(std::process::id())), None, "{method:?}: we are not in there");
            assert_eq!(lookup.host_of(ViewPid::new(3).expect("a PID")), None, "{method:?}: there are two");
        }
        for child in children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Cached results are not used any more.
        for method in [Lookup::Proc, Lookup::of_this_kernel()] {
            let lookup = PidLookup::new(&namespace, method, &cache);
            assert_eq!(lookup.host_of(ViewPid::new(2).expect("a PID")), None, "{method:?}");
            assert_eq!(lookup.view_of(pids[1]), None, "{method:?}");
        }
    }

    #[test]
    fn thread_is_no_process() {
        let worker = Worker::start();
        let thread_id = host(worker.tid.get());
        let (own, cache) = (Namespace::own().expect("ours"), ProcessCache::default());
        for method in [Lookup::Proc, Lookup::of_this_kernel()] {
            let lookup = PidLookup::new(&own, method, &cache);
            assert_eq!(lookup.view_of(thread_id), None, "{method:?}");
            let same = ViewPid::new(std::process::id());
            assert_eq!(lookup.view_of(host(std::process::id())), same, "{method:?}");
        }
    }
}
