//! A host process with an open pidfd and its PIDs in all its namespaces. These PIDs never change while it lives, and the pidfd shows
//! when it has ended. Containers share one `Process` for each process.
//!
//! Source: pidfd_open(2) (readable once the process has ended), proc_pid_status(5) (`NSpid`), pid_namespaces(7).

use crate::caller::namespace::{Id, Namespace};
use crate::caller::proc_folder::{field, of_process};
use crate::lock;
use mpu_core::{HostPid, ViewPid};
pub(crate) use mpu_host::maker::Look;
use mpu_host::maker::{self, Has};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// A process's PIDs, from its own namespace up to the host's.
pub(crate) type NamespacePids = Vec<(Id, ViewPid)>;

#[derive(Debug)]
pub(crate) struct Process {
    pidfd: OwnedFd,
    pub(crate) pids: NamespacePids,
    pub(crate) driver_use: Mutex<DriverUse>,
    _counted: CountGuard,
}

/// Processes of all containers' caches. A process in several caches has one pidfd.
#[derive(Debug, Default, Clone)]
pub(crate) struct SharedProcesses(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    count: AtomicUsize,
    processes: Mutex<HashMap<HostPid, Weak<Process>>>,
}

#[derive(Debug)]
struct CountGuard(SharedProcesses);

impl SharedProcesses {
    fn count_one(&self) -> CountGuard {
        self.0.count.fetch_add(1, Relaxed);
        CountGuard(self.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.count.load(Relaxed)
    }

    /// The process with this PID, if it still lives.
    pub(crate) fn live(&self, pid: HostPid) -> Option<Arc<Process>> {
        let processes = lock(&self.0.processes).get(&pid).and_then(Weak::upgrade);
        processes.filter(|process| process.is_alive())
    }

    pub(crate) fn insert(&self, pid: HostPid, process: &Arc<Process>) {
        let mut processes = lock(&self.0.processes);
        if processes.len() > 2 * self.count() + 64 {
            processes.retain(|_, process| process.strong_count() != 0);
        }
        processes.insert(pid, Arc::downgrade(process));
    }

    #[cfg(test)]
    pub(crate) fn add_count(&self, by: usize) {
        self.0.count.fetch_add(by, Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn subtract_count(&self, by: usize) {
        self.0.count.fetch_sub(by, Relaxed);
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.0.count.fetch_sub(1, Relaxed);
    }
}

/// Whether a process has or had a descriptor of the driver.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DriverUse {
    /// Stays so: clients that it made may still exist.
    Yes,
    /// Not when last checked. Not checked again before this time.
    NotBefore(Instant),
    Unknown,
}

impl Process {
    pub(crate) fn new(pidfd: OwnedFd, pids: NamespacePids, all: &SharedProcesses) -> Process {
        Process { pidfd, pids, driver_use: Mutex::new(DriverUse::Unknown), _counted: all.count_one() }
    }

    pub(crate) fn is_alive(&self) -> bool {
        is_alive(&self.pidfd)
    }

    /// Its PID in a namespace.
    pub(crate) fn pid_in(&self, namespace: Id) -> Option<ViewPid> {
        pid_in(namespace, &self.pids)
    }

    /// Whether it can have made a client of the driver, as `ProcessCache::uses_driver`; `pid` is its host PID.
    pub(crate) fn uses_driver(&self, pid: HostPid, look: &Look) -> bool {
        let mut driver_use = lock(&self.driver_use);
        match *driver_use {
            DriverUse::Yes => true,
            DriverUse::NotBefore(then) if Instant::now() < then => false,
            _ => {
                let began = Instant::now();
                let Some(uses_it) = has_driver_fd(pid, look) else { return false };
                // Limits the cost of a process with very many descriptors to a tenth of a processor.
                *driver_use =
                    if uses_it { DriverUse::Yes } else { DriverUse::NotBefore(Instant::now() + 10 * began.elapsed()) };
                uses_it
            }
        }
    }
}

/// Whether the process or thread of a pidfd lives.
pub(crate) fn is_alive(pidfd: &OwnedFd) -> bool {
    let mut readable = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut readable, Some(&Timespec::default())) == Ok(0)
}

pub(crate) fn pid_in(namespace: Id, pids: &NamespacePids) -> Option<ViewPid> {
    pids.iter().find(|(id, _)| *id == namespace).map(|(_, pid)| *pid)
}

/// A process's PIDs by `/proc/PID/status`. All files are read through one open folder, so a reused PID cannot mix two processes.
pub(crate) fn read_namespace_pids(pid: HostPid) -> Option<NamespacePids> {
    let folder = of_process(pid).ok()?;
    let status = folder.read("status").ok()?;
    // Only the TID of a process's first thread is a PID.
    if field(&status, "Tgid")?.parse() != Ok(pid.get()) {
        return None;
    }
    let numbers: Vec<u32> = field(&status, "NSpid")?.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let mut at = folder.pid_namespace().and_then(Namespace::new).ok();
    let mut all = NamespacePids::new();
    for number in numbers.iter().rev() {
        let namespace = at.take()?;
        all.push((namespace.id(), ViewPid::new(*number)?));
        at = namespace.parent().ok();
    }
    Some(all)
}

/// Whether a process has a descriptor of the driver; none if the call's limit of descriptors is used up. Such a process counts as one without
/// the driver for that call. The next call checks it, because results for other processes stay cached.
pub(crate) fn has_driver_fd(pid: HostPid, look: &Look) -> Option<bool> {
    match maker::find_driver_fd(Path::new("/proc"), pid, look) {
        Has::Yes => Some(true),
        Has::No | Has::TooMany => Some(false),
        Has::NoRoom => None,
    }
}
