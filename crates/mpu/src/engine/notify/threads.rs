//! Drivers that remember a client's maker by the thread, and name that where they mean its process (535.113 to 570.144, and 575.51).
//!
//! Owns whose thread is meant, and which thread stands for a process where such a driver has to be asked about one: the thread
//! that it named last. A client whose maker has ended since cannot be told whose it is: its row is missing. Knows no namespace.

use super::folder::{field, Folder};
use crate::driver::{native, Driver, Numbering};
use crate::host::Host;
use mpu_abi::Control;
use mpu_core::HostPid;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So long the driver is taken for the one that it was.
const DRIVER_STAYS: Duration = Duration::from_secs(1);
/// Threads remembered; when there are more, all are forgotten.
const MOST_KNOWN: usize = 4096;

/// What the loaded driver does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Habits {
    /// Names threads in lists.
    names: bool,
    /// Looks a process up by the thread that made its client.
    wants: bool,
}

impl Habits {
    fn of_loaded() -> Habits {
        let release = Driver::loaded(&Host::this()).and_then(|driver| driver.known());
        release.map(native).map_or_else(Habits::default, |native| Habits {
            names: native.pids == Numbering::Thread,
            wants: native.pid_info == Numbering::Thread,
        })
    }
}

/// What is known of threads, and of the driver.
#[derive(Debug, Default)]
pub(super) struct Threads {
    habits: Mutex<Option<(Instant, Habits)>>,
    /// The thread that was named last, by its process.
    named: Mutex<HashMap<HostPid, HostPid>>,
}

impl Threads {
    /// For one call of a control.
    pub(super) fn in_call(&self, control: Control) -> InCall<'_> {
        let habits = self.habits();
        InCall {
            threads: self,
            names: habits.names,
            wants: habits.wants && control == Control::GpuGetPidInfo,
            // A process of which the driver knows two threads is one row.
            seen: (habits.names && control == Control::GpuGetPids).then(RefCell::default),
        }
    }

    fn habits(&self) -> Habits {
        let mut known = self.habits.lock().unwrap_or_else(PoisonError::into_inner);
        match *known {
            Some((since, habits)) if since.elapsed() < DRIVER_STAYS => habits,
            _ => known.insert((Instant::now(), Habits::of_loaded())).1,
        }
    }
}

/// See [`Threads::in_call`].
#[derive(Debug)]
pub(super) struct InCall<'a> {
    threads: &'a Threads,
    names: bool,
    wants: bool,
    seen: Option<RefCell<HashSet<HostPid>>>,
}

impl InCall<'_> {
    /// The process that the driver means by a number; none if it was meant before, where every process is meant once only.
    pub(super) fn process_of(&self, number: HostPid) -> Option<HostPid> {
        let process = if self.names { self.look_up(number) } else { number };
        let is_new = self.seen.as_ref().is_none_or(|seen| seen.borrow_mut().insert(process));
        is_new.then_some(process)
    }

    fn look_up(&self, number: HostPid) -> HostPid {
        let Some(process) = process_of(number).filter(|process| *process != number) else { return number };
        let mut named = self.threads.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.len() >= MOST_KNOWN {
            named.clear();
        }
        named.insert(process, number);
        process
    }

    /// The number by which the driver knows a process.
    pub(super) fn number_of(&self, process: HostPid) -> HostPid {
        if !self.wants {
            return process;
        }
        let named = self.threads.named.lock().unwrap_or_else(PoisonError::into_inner).get(&process).copied();
        named.filter(|thread| process_of(*thread) == Some(process)).unwrap_or(process)
    }
}

/// The process of a thread.
fn process_of(thread: HostPid) -> Option<HostPid> {
    let status = Folder::of_process(thread).ok()?.read("status").ok()?;
    HostPid::new(field(&status, "Tgid")?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_meant_for_its_process_and_asked_about_by_its_own_number() {
        let (tell, told) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            let _ = wait.recv();
        });
        let thread_id = told.recv().ok().and_then(HostPid::new).expect("its number");
        let own = HostPid::new(std::process::id()).expect("a PID");
        let threads = Threads::default();
        let call =
            |names, wants, once: bool| InCall { threads: &threads, names, wants, seen: once.then(RefCell::default) };
        assert_eq!(call(false, false, false).process_of(thread_id), Some(thread_id), "to other drivers it is nobody");
        assert_eq!(call(true, true, false).number_of(own), own, "no thread was named yet");
        let list = call(true, false, true);
        assert_eq!(list.process_of(thread_id), Some(own));
        assert_eq!(list.process_of(own), None, "one row for one process");
        assert_eq!(call(true, true, false).number_of(own), thread_id);
        assert_eq!(call(true, false, false).number_of(own), own);
        drop(done);
        let _ = thread.join();
        // The thread's folder stays for a moment after it was joined.
        while process_of(thread_id).is_some() {
            std::thread::yield_now();
        }
        assert_eq!(call(true, true, false).number_of(own), own, "it has ended");
    }
}
