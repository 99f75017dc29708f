//! Cache of processes, one for each container.
//!
//! What was read once counts while the process lives and not a moment longer: a number that went to another process is never
//! taken for the old one's, and a list that is asked for again costs one poll a row. Also owns how many are held. Knows nothing of
//! who may see which number.

use crate::caller::namespace::Id;
use crate::caller::process::{Everybody, Numbers, Process, number_in, numbers_of};
use crate::caller::process::{Look, has_the_driver};
use mpu_core::{HostPid, ViewPid};
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, pidfd_open};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Processes held for one container at a time; when there are more, all of its are let go. The driver lists 950 of a GPU.
const MOST: usize = 4096;
/// One container has at most this part of the descriptors that all may have.
const PART: usize = 4;

/// The processes cached for one container. Each container has its own cache: its requests evict no process of another.
#[derive(Debug, Default)]
pub(crate) struct ProcessCache {
    known: Mutex<Known>,
    all: Everybody,
}

#[derive(Debug, Default)]
struct Known {
    processes: HashMap<HostPid, Arc<Process>>,
    /// Whose a number was when it was read; what `processes` says of that one counts.
    whose: HashMap<(Id, ViewPid), HostPid>,
}

impl ProcessCache {
    pub(crate) fn among(all: &Everybody) -> ProcessCache {
        ProcessCache { known: Mutex::default(), all: all.clone() }
    }

    /// A process that is held already, and lives: what is known of it counts, and its number is no other process's.
    pub(crate) fn living(&self, pid: HostPid) -> Option<Arc<Process>> {
        let known = self.lock().processes.get(&pid).cloned();
        known.filter(|process| process.lives())
    }

    /// A process's number in a namespace; none for one that is not in there, and for a thread.
    pub(crate) fn view_of(&self, namespace: Id, pid: HostPid) -> Option<ViewPid> {
        match self.living(pid) {
            Some(process) => process.number_in(namespace),
            None => number_in(namespace, &self.look_up(pid)?),
        }
    }

    /// The host's number of a process of a namespace, if it is held.
    pub(crate) fn host_of(&self, namespace: Id, view: ViewPid) -> Option<HostPid> {
        let host = self.lock().whose.get(&(namespace, view)).copied()?;
        (self.view_of(namespace, host) == Some(view)).then_some(host)
    }

    /// Whether a process can have made a client of the driver's: it has a descriptor of it, or had one when it was looked at before. A
    /// number that a client's maker left behind, and that a process without one got, means no process.
    pub(crate) fn uses_the_driver(&self, pid: HostPid, look: &Look) -> bool {
        let known = self.living(pid).or_else(|| {
            self.look_up(pid);
            self.lock().processes.get(&pid).cloned()
        });
        // One that cannot be held has ended, or there are too many.
        known.map_or_else(|| has_the_driver(pid, look) == Some(true), |process| process.uses_the_driver(pid, look))
    }

    fn look_up(&self, pid: HostPid) -> Option<Numbers> {
        if let Some(process) = self.all.living(pid) {
            let numbers = process.numbers.clone();
            self.lock().keep(pid, process, &self.all);
            return Some(numbers);
        }
        // First, so that what is read by the number is of the process that is held, if that lives even then.
        let pidfd = Pid::from_raw(pid.get() as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let numbers = numbers_of(pid);
        let mut known = self.lock();
        known.processes.remove(&pid);
        let process = pidfd.zip(numbers.clone()).map(|(pidfd, numbers)| Process::new(pidfd, numbers, &self.all));
        if let Some(process) = process.filter(Process::lives).map(Arc::new) {
            self.all.tell(pid, &process);
            known.keep(pid, process, &self.all);
        }
        numbers
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// What there is no room for is not kept, and read anew for each call.
    fn keep(&mut self, pid: HostPid, process: Arc<Process>, all: &Everybody) {
        // Half of the descriptors that this process may have are for other things.
        let most = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| files as usize / 2);
        let is_full = self.processes.len() >= MOST.min(most / PART) || self.whose.len() >= 4 * MOST;
        if is_full || all.count() > most {
            *self = Known::default();
        }
        if all.count() <= most {
            self.whose.extend(process.numbers.iter().map(|number| (*number, pid)));
            self.processes.insert(pid, process);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::namespace::Namespace;
    use crate::caller::process::Uses;
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
        let (held, same) = (ProcessCache::default(), ViewPid::new(pid.get()).expect("a PID"));
        assert_eq!(held.host_of(own, same), None, "not held yet");
        for _ in 0..2 {
            assert_eq!(held.view_of(own, pid), Some(same));
            assert_eq!(held.host_of(own, same), Some(pid));
            assert_eq!(held.view_of((1, 1), pid), None);
        }
        assert_eq!(held.lock().processes.len(), 1);
        child.kill().expect("ours");
        child.wait().expect("ours");
        assert_eq!(held.host_of(own, same), None);
        assert_eq!(held.view_of(own, pid), None);
        assert_eq!(held.lock().processes.len(), 0, "it is let go");
    }

    #[test]
    fn reused_pid_is_not_cached_process() {
        let own = Namespace::own().expect("ours").id();
        let (mut child, pid) = sleep();
        let (mut other, others) = sleep();
        let held = ProcessCache::default();
        held.view_of(own, pid).expect("it lives");
        // As if the number of the one had gone to the other.
        let process = held.lock().processes.remove(&pid).expect("held");
        held.lock().processes.insert(others, process);
        child.kill().expect("ours");
        child.wait().expect("ours");
        assert_eq!(held.view_of(own, others), ViewPid::new(others.get()), "the new one's own");
        assert_eq!(held.host_of(own, ViewPid::new(pid.get()).expect("a PID")), None);
        other.kill().expect("ours");
        other.wait().expect("ours");
    }

    #[test]
    fn process_without_driver_made_none_of_its_clients() {
        let (mut child, pid) = sleep();
        let held = ProcessCache::default();
        assert!(!held.uses_the_driver(pid, &Look::new()), "it has no descriptor of the driver's");
        // As if it had been seen with one.
        let process = held.lock().processes.get(&pid).cloned().expect("held");
        *process.uses.lock().expect("ours") = Uses::Yes;
        assert!(held.uses_the_driver(pid, &Look::new()), "what it made then may be there yet");
        child.kill().expect("ours");
        let ended = Instant::now();
        while process.lives() && ended.elapsed().as_secs() < 5 {}
        assert!(held.uses_the_driver(pid, &Look::new()), "a zombie's descriptors cannot be read");
        child.wait().expect("ours");
        assert!(!held.uses_the_driver(pid, &Look::new()), "it is gone");
    }

    #[test]
    fn call_looks_at_so_many_descriptors_and_next_goes_on() {
        let (mut children, pids): (Vec<Child>, Vec<HostPid>) = (0..3).map(|_| sleep()).unzip();
        let held = ProcessCache::default();
        let is_known = |pid: &HostPid| {
            let process = held.lock().processes.get(pid).cloned().expect("held");
            let uses = *process.uses.lock().expect("ours");
            !matches!(uses, Uses::Unknown)
        };
        // Room for the first one's descriptors and one more; none is the driver's. A child inherits what other tests have open.
        let first = std::fs::read_dir(format!("/proc/{}/fd", children[0].id())).expect("it lives").count();
        let look = Look::at_most(first + 1, crate::caller::proc_folder::is_drivers);
        assert!(pids.iter().all(|pid| !held.uses_the_driver(*pid, &look)));
        assert_eq!(look.left(), 0);
        let known = |held: &ProcessCache| {
            assert!(held.lock().processes.len() == 3, "they are held all the same");
            pids.iter().filter(|pid| is_known(pid)).count()
        };
        assert_eq!(known(&held), 1, "what is looked at in part is not known");
        assert!(pids.iter().all(|pid| !held.uses_the_driver(*pid, &Look::new())));
        assert_eq!(known(&held), 3);
        for child in &mut children {
            child.kill().expect("ours");
            child.wait().expect("ours");
        }
    }

    #[test]
    fn driver_use_is_shared_between_containers() {
        let all = Everybody::default();
        let (one, other) = (ProcessCache::among(&all), ProcessCache::among(&all));
        let own = Namespace::own().expect("ours").id();
        let (mut child, pid) = sleep();
        one.view_of(own, pid).expect("it lives");
        // As if it had been seen with a descriptor of the driver's, and had closed it.
        *one.living(pid).expect("held").uses.lock().expect("ours") = Uses::Yes;
        assert!(other.living(pid).is_none(), "no caller has asked");
        assert!(other.uses_the_driver(pid, &Look::new()), "seen once is seen");
        assert_eq!(all.count(), 1, "one descriptor for both");
        child.kill().expect("ours");
        child.wait().expect("ours");
        assert!(!other.uses_the_driver(pid, &Look::new()), "it is gone");
        drop((one, other));
        assert_eq!(all.count(), 0);
    }

    fn dead_process(all: &Everybody) -> Arc<Process> {
        Arc::new(Process::new(std::fs::File::open("/dev/null").expect("/dev/null").into(), Numbers::new(), all))
    }

    fn most() -> usize {
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| files as usize / 2)
    }

    #[test]
    fn no_more_are_held_than_descriptors_allow() {
        let (mut known, all) = (Known::default(), Everybody::default());
        let pid = |number| HostPid::new(number).expect("not 0");
        let most = MOST.min(most() / PART) as u32;
        for number in 1..=most {
            known.keep(pid(number), dead_process(&all), &all);
        }
        assert_eq!((known.processes.len(), all.count()), (most as usize, most as usize));
        known.keep(pid(most + 1), dead_process(&all), &all);
        assert_eq!((known.processes.len(), all.count()), (1, 1));
    }

    #[test]
    fn cache_evicts_only_own_processes() {
        let all = Everybody::default();
        let (quiet, busy) = (ProcessCache::among(&all), ProcessCache::among(&all));
        let own = Namespace::own().expect("ours").id();
        let pid = |number| HostPid::new(number).expect("not 0");
        let (mut child, held) = sleep();
        quiet.view_of(own, held).expect("it lives");
        for number in 1..=MOST as u32 + 1 {
            busy.lock().keep(pid(number), dead_process(&all), &all);
        }
        assert!(quiet.living(held).is_some(), "the neighbour's is still known");
        // As if others had all descriptors that there are.
        all.as_if_more(most());
        quiet.lock().keep(pid(7), dead_process(&all), &all);
        assert_eq!(quiet.lock().processes.len(), 0, "there is no room");
        assert_eq!(quiet.view_of(own, held), ViewPid::new(held.get()), "what is not kept is right all the same");
        all.as_if_fewer(most());
        assert!(busy.lock().processes.len() < MOST);
        child.kill().expect("ours");
        child.wait().expect("ours");
    }
}
