//! A process of the host, held by a descriptor, with the numbers that it has in PID namespaces.
//!
//! Owns that the descriptor tells when the process does not live any more: its numbers never change until then. Also owns that one which
//! is held for several containers is held once. Knows nothing of who may see which number.
//!
//! Outside truth: pidfd_open(2) (readable once the process has ended), proc_pid_status(5) (`NSpid`), pid_namespaces(7).

use crate::caller::namespace::{Id, Namespace};
use crate::caller::proc_folder::{field, of_process};
use mpu_core::{HostPid, ViewPid};
pub(crate) use mpu_host::maker::Look;
use mpu_host::maker::{self, Has};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

/// A process's numbers, from its own namespace up to the host's.
pub(crate) type Numbers = Vec<(Id, ViewPid)>;

#[derive(Debug)]
pub(crate) struct Process {
    pidfd: OwnedFd,
    pub(crate) numbers: Numbers,
    pub(crate) uses: Mutex<Uses>,
    _counted: Counted,
}

/// Those of all containers: who is held for one of them is known to the others, too, and is one descriptor of this process. Asked only about a
/// process that a container does not hold yet.
#[derive(Debug, Default, Clone)]
pub(crate) struct Everybody(Arc<All>);

#[derive(Debug, Default)]
struct All {
    count: AtomicUsize,
    known: Mutex<HashMap<HostPid, Weak<Process>>>,
}

#[derive(Debug)]
struct Counted(Everybody);

impl Everybody {
    fn one_more(&self) -> Counted {
        self.0.count.fetch_add(1, Relaxed);
        Counted(self.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.count.load(Relaxed)
    }

    /// One that lives, so that its number is still its own.
    pub(crate) fn living(&self, pid: HostPid) -> Option<Arc<Process>> {
        let known = self.lock().get(&pid).and_then(Weak::upgrade);
        known.filter(|process| process.lives())
    }

    pub(crate) fn tell(&self, pid: HostPid, process: &Arc<Process>) {
        let mut known = self.lock();
        if known.len() > 2 * self.count() + 64 {
            known.retain(|_, process| process.strong_count() != 0);
        }
        known.insert(pid, Arc::downgrade(process));
    }

    #[cfg(test)]
    pub(crate) fn as_if_more(&self, by: usize) {
        self.0.count.fetch_add(by, Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn as_if_fewer(&self, by: usize) {
        self.0.count.fetch_sub(by, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<HostPid, Weak<Process>>> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.count.fetch_sub(1, Relaxed);
    }
}

/// Whether a process has been seen with a descriptor of the driver's.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Uses {
    /// Once is enough: what it made then may be there yet.
    Yes,
    /// Not so far; looked at again from then on.
    NotBefore(Instant),
    Unknown,
}

impl Process {
    pub(crate) fn new(pidfd: OwnedFd, numbers: Numbers, all: &Everybody) -> Process {
        Process { pidfd, numbers, uses: Mutex::new(Uses::Unknown), _counted: all.one_more() }
    }

    pub(crate) fn lives(&self) -> bool {
        lives(&self.pidfd)
    }

    /// Its number in a namespace.
    pub(crate) fn number_in(&self, namespace: Id) -> Option<ViewPid> {
        number_in(namespace, &self.numbers)
    }

    /// Whether it can have made a client of the driver's, as `ProcessCache::uses_the_driver`; `pid` is its number.
    pub(crate) fn uses_the_driver(&self, pid: HostPid, look: &Look) -> bool {
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        match *uses {
            Uses::Yes => true,
            Uses::NotBefore(then) if Instant::now() < then => false,
            _ => {
                let began = Instant::now();
                let Some(has) = has_the_driver(pid, look) else { return false };
                // A process with very many descriptors costs us a tenth of a processor at most.
                *uses = if has { Uses::Yes } else { Uses::NotBefore(Instant::now() + 10 * began.elapsed()) };
                has
            }
        }
    }
}

/// Whether a process or thread lives, by a descriptor of it.
pub(crate) fn lives(pidfd: &OwnedFd) -> bool {
    let mut readable = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut readable, Some(&Timespec::default())) == Ok(0)
}

pub(crate) fn number_in(namespace: Id, numbers: &Numbers) -> Option<ViewPid> {
    numbers.iter().find(|(id, _)| *id == namespace).map(|(_, number)| *number)
}

/// As `/proc/PID/status` lists them from the host's namespace down to the process's own. All is read through one folder, which does
/// not follow the number to the next who gets it.
pub(crate) fn numbers_of(pid: HostPid) -> Option<Numbers> {
    let folder = of_process(pid).ok()?;
    let status = folder.read("status").ok()?;
    // A number may be a thread's only.
    if field(&status, "Tgid")?.parse() != Ok(pid.get()) {
        return None;
    }
    let numbers: Vec<u32> = field(&status, "NSpid")?.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let mut at = folder.pid_namespace().and_then(Namespace::new).ok();
    let mut all = Numbers::new();
    for number in numbers.iter().rev() {
        let namespace = at.take()?;
        all.push((namespace.id(), ViewPid::new(*number)?));
        at = namespace.parent().ok();
    }
    Some(all)
}

/// Whether a process has a descriptor of the driver's; none if the call may not look so far. A process that there is no room for counts as
/// one without the driver in that call; it is looked at in the next one, since what was found out about others stays.
pub(crate) fn has_the_driver(pid: HostPid, look: &Look) -> Option<bool> {
    match maker::has_the_driver(Path::new("/proc"), pid, look) {
        Has::Yes => Some(true),
        Has::No | Has::TooMany => Some(false),
        Has::NoRoom => None,
    }
}
