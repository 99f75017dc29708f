//! Cache of processes, one for each container. An entry is valid exactly while its process lives, so a reused PID never finds the
//! earlier process. A repeated list costs one poll(2) for each row.

use crate::caller::namespace::Id;
use crate::caller::process::{Look, has_driver_fd};
use crate::caller::process::{NamespacePids, Process, SharedProcesses, pid_in, read_namespace_pids};
use crate::lock;
use mpu_core::{HostPid, ViewPid};
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, pidfd_open};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Limit of one container's cache; a full cache is emptied. The driver lists up to 950 processes of a GPU.
const MAX_PROCESSES: usize = 4096;
/// One container's cache uses at most a quarter of the descriptors for all caches, which are half of the supervisor's.
const SHARE: usize = 4;

/// The processes cached for one container. Its requests evict no process of another container.
#[derive(Debug, Default)]
pub(crate) struct ProcessCache {
    entries: Mutex<Entries>,
    all: SharedProcesses,
}

#[derive(Debug, Default)]
struct Entries {
    processes: HashMap<HostPid, Arc<Process>>,
    /// Host PID by PID in a namespace, when it was read. Valid only if the process's entry confirms it.
    hosts_by_view: HashMap<(Id, ViewPid), HostPid>,
}

impl ProcessCache {
    pub(crate) fn sharing(all: &SharedProcesses) -> ProcessCache {
        ProcessCache { entries: Mutex::default(), all: all.clone() }
    }

    /// The cached process with this PID, if it still lives.
    pub(crate) fn live(&self, pid: HostPid) -> Option<Arc<Process>> {
        let entries = lock(&self.entries).processes.get(&pid).cloned();
        entries.filter(|process| process.is_alive())
    }

    /// A process's PID in a namespace; none for a process outside it, and for a thread.
    pub(crate) fn view_of(&self, namespace: Id, pid: HostPid) -> Option<ViewPid> {
        match self.live(pid) {
            Some(process) => process.pid_in(namespace),
            None => pid_in(namespace, &self.look_up(pid)?),
        }
    }

    /// The host PID of a cached process of a namespace.
    pub(crate) fn host_of(&self, namespace: Id, view: ViewPid) -> Option<HostPid> {
        let host = lock(&self.entries).hosts_by_view.get(&(namespace, view)).copied()?;
        (self.view_of(namespace, host) == Some(view)).then_some(host)
    }

    /// Whether a process can have made a client of the driver: it has a descriptor of the driver, or had one at an earlier check. If it
    /// cannot, the process that made the client has ended, and this process reuses its PID.
    pub(crate) fn uses_driver(&self, pid: HostPid, look: &Look) -> bool {
        let entries = self.live(pid).or_else(|| {
            self.look_up(pid);
            lock(&self.entries).processes.get(&pid).cloned()
        });
        // A process that is not cached has ended, or the cache is full.
        entries.map_or_else(|| has_driver_fd(pid, look) == Some(true), |process| process.uses_driver(pid, look))
    }

    fn look_up(&self, pid: HostPid) -> Option<NamespacePids> {
        if let Some(process) = self.all.live(pid) {
            let pids = process.pids.clone();
            lock(&self.entries).insert(pid, process, &self.all);
            return Some(pids);
        }
        // The pidfd is opened first. If its process still lives after the read, the read was of that process.
        let pidfd = Pid::from_raw(pid.get() as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let pids = read_namespace_pids(pid);
        let mut entries = lock(&self.entries);
        entries.processes.remove(&pid);
        let process = pidfd.zip(pids.clone()).map(|(pidfd, pids)| Process::new(pidfd, pids, &self.all));
        if let Some(process) = process.filter(Process::is_alive).map(Arc::new) {
            self.all.insert(pid, &process);
            entries.insert(pid, process, &self.all);
        }
        pids
    }
}

impl Entries {
    /// Without room, the process is not cached and is read anew in each call.
    fn insert(&mut self, pid: HostPid, process: Arc<Process>, all: &SharedProcesses) {
        // Half of this process's descriptors are for other things.
        let limit = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| files as usize / 2);
        let is_full =
            self.processes.len() >= MAX_PROCESSES.min(limit / SHARE) || self.hosts_by_view.len() >= 4 * MAX_PROCESSES;
        if is_full || all.count() > limit {
            *self = Entries::default();
        }
        if all.count() <= limit {
            self.hosts_by_view.extend(process.pids.iter().map(|view| (*view, pid)));
            self.processes.insert(pid, process);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::namespace::Namespace;
    use crate::caller::process::DriverUse;
    use std::process::{Child, Command};
    use std::time::Instant;

    fn sleep() -> (Child, HostPid) {
        let child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = HostPid::new(child.id()).expect("a PID");
        (child, pid)
    }

    #[test]
    fn cached_pid_is_valid_until_process_ends() {
        let own = Namespace::own().expect("ours").id();
        let (mut child, pid) = sleep();
        let (cache, same) = (ProcessCache::default(), ViewPid::new(pid.get()).expect("a PID"));
        assert_eq!(cache.host_of(own, same), None, "not held yet");
        for _ in 0..2 {
            assert_eq!(cache.view_of(own, pid), Some(same));
            assert_eq!(cache.host_of(own, same), Some(pid));
            assert_eq!(cache.view_of((1, 1), pid), None);
        }
        assert_eq!(lock(&cache.entries).processes.len(), 1);
        child.kill().expect("ours");
        child.wait().expect("ours");
        assert_eq!(cache.host_of(own, same), None);
        assert_eq!(cache.view_of(own, pid), None);
        assert_eq!(lock(&cache.entries).processes.len(), 0, "it is let go");
    }

    #[test]
    fn reused_pid_is_not_cached_process() {
        let own = Namespace::own().expect("ours").id();
        let (mut child, pid) = sleep();
        let (mut other, other_pid) = sleep();
        let cache = ProcessCache::default();
        cache.view_of(own, pid).expect("it lives");
        // As if the other process had got the first one's PID.
        let process = lock(&cache.entries).processes.remove(&pid).expect("held");
        lock(&cache.entries).processes.insert(other_pid, process);
        child.kill().expect("ours");
        child.wait().expect("ours");
        assert_eq!(cache.view_of(own, other_pid), ViewPid::new(other_pid.get()), "the new one's own");
        assert_eq!(cache.host_of(own, ViewPid::new(pid.get()).expect("a PID")), None);
        other.kill().expect("ours");
        other.wait().expect("ours");
    }

    #[test]
    fn process_without_driver_fd_owns_no_client() {
        let (mut child, pid) = sleep();
        let cache = ProcessCache::default();
        assert!(!cache.uses_driver(pid, &Look::default()), "it has no descriptor of the driver's");
        // As if it had had one.
        let process = lock(&cache.entries).processes.get(&pid).cloned().expect("held");
        *process.driver_use.lock().expect("ours") = DriverUse::Yes;
        assert!(cache.uses_driver(pid, &Look::default()), "its clients may still exist");
        child.kill().expect("ours");
        let ended = Instant::now();
        while process.is_alive() && ended.elapsed().as_secs() < 5 {}
        assert!(cache.uses_driver(pid, &Look::default()), "a zombie's descriptors cannot be read");
        child.wait().expect("ours");
        assert!(!cache.uses_driver(pid, &Look::default()), "it is gone");
    }

    #[test]
    fn descriptor_check_continues_in_next_call() {
        let (mut children, pids): (Vec<Child>, Vec<HostPid>) = (0..3).map(|_| sleep()).unzip();
        let cache = ProcessCache::default();
        let is_known = |pid: &HostPid| {
            let process = lock(&cache.entries).processes.get(pid).cloned().expect("held");
            let driver_use = *process.driver_use.lock().expect("ours");
            !matches!(driver_use, DriverUse::Unknown)
        };
        // Room for the first one's descriptors and one more; none is the driver's. A child inherits descriptors of other tests.
        let first = std::fs::read_dir(format!("/proc/{}/fd", children[0].id())).expect("it lives").count();
        let look = Look::at_most(first + 1, crate::caller::proc_folder::is_driver_device);
        assert!(pids.iter().all(|pid| !cache.uses_driver(*pid, &look)));
        assert_eq!(look.left(), 0);
        let entries = |cache: &ProcessCache| {
            assert!(lock(&cache.entries).processes.len() == 3, "they are held all the same");
            pids.iter().filter(|pid| is_known(pid)).count()
        };
        assert_eq!(entries(&cache), 1, "what is looked at in part is not known");
        assert!(pids.iter().all(|pid| !cache.uses_driver(*pid, &Look::default())));
        assert_eq!(entries(&cache), 3);
        for child in &mut children {
            child.kill().expect("ours");
            child.wait().expect("ours");
        }
    }

    #[test]
    fn driver_use_is_shared_between_containers() {
        let all = SharedProcesses::default();
        let (one, other) = (ProcessCache::sharing(&all), ProcessCache::sharing(&all));
        let own = Namespace::own().expect("ours").id();
        let (mut child, pid) = sleep();
        one.view_of(own, pid).expect("it lives");
        // As if it had opened and closed the driver.
        *one.live(pid).expect("held").driver_use.lock().expect("ours") = DriverUse::Yes;
        assert!(other.live(pid).is_none(), "not in this cache yet");
        assert!(other.uses_driver(pid, &Look::default()), "seen once is seen");
        assert_eq!(all.count(), 1, "one descriptor for both");
        child.kill().expect("ours");
        child.wait().expect("ours");
        assert!(!other.uses_driver(pid, &Look::default()), "it is gone");
        drop((one, other));
        assert_eq!(all.count(), 0);
    }

    fn ended_process(all: &SharedProcesses) -> Arc<Process> {
        Arc::new(Process::new(std::fs::File::open("/dev/null").expect("/dev/null").into(), NamespacePids::new(), all))
    }

    fn limit() -> usize {
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| files as usize / 2)
    }

    #[test]
    fn cache_is_limited_by_descriptors() {
        let (mut entries, all) = (Entries::default(), SharedProcesses::default());
        let pid = |number| HostPid::new(number).expect("not 0");
        let limit = MAX_PROCESSES.min(limit() / SHARE) as u32;
        for number in 1..=limit {
            entries.insert(pid(number), ended_process(&all), &all);
        }
        assert_eq!((entries.processes.len(), all.count()), (limit as usize, limit as usize));
        entries.insert(pid(limit + 1), ended_process(&all), &all);
        assert_eq!((entries.processes.len(), all.count()), (1, 1));
    }

    #[test]
    fn cache_evicts_only_own_processes() {
        let all = SharedProcesses::default();
        let (quiet, busy) = (ProcessCache::sharing(&all), ProcessCache::sharing(&all));
        let own = Namespace::own().expect("ours").id();
        let pid = |number| HostPid::new(number).expect("not 0");
        let (mut child, cache) = sleep();
        quiet.view_of(own, cache).expect("it lives");
        for number in 1..=MAX_PROCESSES as u32 + 1 {
            lock(&busy.entries).insert(pid(number), ended_process(&all), &all);
        }
        assert!(quiet.live(cache).is_some(), "the neighbour's is still known");
        // As if other caches used all descriptors.
        all.add_count(limit());
        lock(&quiet.entries).insert(pid(7), ended_process(&all), &all);
        assert_eq!(lock(&quiet.entries).processes.len(), 0, "the cache is full");
        assert_eq!(quiet.view_of(own, cache), ViewPid::new(cache.get()), "right without the cache");
        all.subtract_count(limit());
        assert!(lock(&busy.entries).processes.len() < MAX_PROCESSES);
        child.kill().expect("ours");
        child.wait().expect("ours");
    }
}
