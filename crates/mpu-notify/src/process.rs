//! A process of the host, held by a descriptor, with the numbers that it has in PID namespaces.
//!
//! Owns that the descriptor tells when the process does not live any more: its numbers never change until then. Also owns that one which
//! is held for several containers is held once. Knows nothing of who may see which number.
//!
//! Outside truth: pidfd_open(2) (readable once the process has ended), proc_pid_status(5) (`NSpid`), pid_namespaces(7).

use super::folder::{field, of_process};
use super::maker::{has_the_driver, Look};
use super::namespace::{Id, Namespace};
use mpu_core::{HostPid, ViewPid};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

/// A process's numbers, from its own namespace up to the host's.
pub(super) type Numbers = Vec<(Id, ViewPid)>;

#[derive(Debug)]
pub(super) struct Process {
    pidfd: OwnedFd,
    pub(super) numbers: Numbers,
    pub(super) uses: Mutex<Uses>,
    _counted: Counted,
}

/// Those of all containers: who is held for one of them is known to the others, too, and is one descriptor of this process. Asked only about a
/// process that a container does not hold yet.
#[derive(Debug, Default, Clone)]
pub(super) struct Everybody(Arc<All>);

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

    pub(super) fn count(&self) -> usize {
        self.0.count.load(Relaxed)
    }

    /// One that lives, so that its number is still its own.
    pub(super) fn living(&self, pid: HostPid) -> Option<Arc<Process>> {
        let known = self.lock().get(&pid).and_then(Weak::upgrade);
        known.filter(|process| process.lives())
    }

    pub(super) fn tell(&self, pid: HostPid, process: &Arc<Process>) {
        let mut known = self.lock();
        if known.len() > 2 * self.count() + 64 {
            known.retain(|_, process| process.strong_count() != 0);
        }
        known.insert(pid, Arc::downgrade(process));
    }

    #[cfg(test)]
    pub(super) fn as_if_more(&self, by: usize) {
        self.0.count.fetch_add(by, Relaxed);
    }

    #[cfg(test)]
    pub(super) fn as_if_fewer(&self, by: usize) {
        self.0.count.fetch_sub(by, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<HostPid, Weak<Process>>> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0 .0.count.fetch_sub(1, Relaxed);
    }
}

/// Whether a process has been seen with a descriptor of the driver's.
#[derive(Debug, Clone, Copy)]
pub(super) enum Uses {
    /// Once is enough: what it made then may be there yet.
    Yes,
    /// Not so far; looked at again from then on.
    NotBefore(Instant),
    Unknown,
}

impl Process {
    pub(super) fn new(pidfd: OwnedFd, numbers: Numbers, all: &Everybody) -> Process {
        Process { pidfd, numbers, uses: Mutex::new(Uses::Unknown), _counted: all.one_more() }
    }

    pub(super) fn lives(&self) -> bool {
        lives(&self.pidfd)
    }

    /// Its number in a namespace.
    pub(super) fn number_in(&self, namespace: Id) -> Option<ViewPid> {
        number_in(namespace, &self.numbers)
    }

    /// Whether it can have made a client of the driver's, as `Held::uses_the_driver`; `pid` is its number.
    pub(super) fn uses_the_driver(&self, pid: HostPid, look: &Look) -> bool {
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
pub(super) fn lives(pidfd: &OwnedFd) -> bool {
    let mut readable = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut readable, Some(&Timespec::default())) == Ok(0)
}

pub(super) fn number_in(namespace: Id, numbers: &Numbers) -> Option<ViewPid> {
    numbers.iter().find(|(id, _)| *id == namespace).map(|(_, number)| *number)
}

/// As `/proc/PID/status` lists them from the host's namespace down to the process's own. All is read through one folder, which does
/// not follow the number to the next who gets it.
pub(super) fn numbers_of(pid: HostPid) -> Option<Numbers> {
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
