//! Drivers that remember a client's maker by the thread, and name that where they mean its process (535.113 to 570.144, and 575.51).
//!
//! Owns whose thread is meant, and which drivers have to be asked by threads. The process of a client whose maker has ended
//! cannot be found: its row is missing. Knows no namespace.

use crate::caller::proc_folder::{field, of_process};
use mpu_abi::Control;
use mpu_core::HostPid;
use mpu_host::driver::{Driver, Numbering, native};
use mpu_host::host::Host;
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

/// So long the driver is taken for the one that it was.
const DRIVER_STAYS: Duration = Duration::from_secs(1);

/// What the loaded driver does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Habits {
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
pub(crate) struct Threads {
    /// Read for every call of every container at once.
    habits: RwLock<Option<(Instant, Habits)>>,
}

impl Threads {
    /// For one call of a control.
    pub(crate) fn in_call(&self, control: Control) -> InCall {
        let habits = self.habits();
        InCall {
            names: habits.names,
            wants: habits.wants && control == Control::GpuGetPidInfo,
            // A process of which the driver knows two threads is one row.
            seen: (habits.names && control == Control::GpuGetPids).then(RefCell::default),
        }
    }

    fn habits(&self) -> Habits {
        self.habits_by(Habits::of_loaded)
    }

    fn habits_by(&self, look: impl FnOnce() -> Habits) -> Habits {
        if let Some((since, habits)) = *self.habits.read().unwrap_or_else(PoisonError::into_inner)
            && since.elapsed() < DRIVER_STAYS
        {
            return habits;
        }
        // Without the lock: files are read, and no other container's call waits for that. Who looks at the same time finds
        // the same.
        let found = (Instant::now(), look());
        *self.habits.write().unwrap_or_else(PoisonError::into_inner) = Some(found);
        found.1
    }
}

/// See [`Threads::in_call`].
#[derive(Debug)]
pub(crate) struct InCall {
    names: bool,
    /// Whether a process is to be asked about by each of its threads.
    pub(crate) wants: bool,
    seen: Option<RefCell<HashSet<HostPid>>>,
}

impl InCall {
    /// The process that the driver means by a number; none if it was meant before, where every process is meant once only.
    pub(crate) fn process_of(&self, number: HostPid) -> Option<HostPid> {
        let process = if self.names { process_of(number).unwrap_or(number) } else { number };
        let is_new = self.seen.as_ref().is_none_or(|seen| seen.borrow_mut().insert(process));
        is_new.then_some(process)
    }
}

/// The process of a thread.
fn process_of(thread: HostPid) -> Option<HostPid> {
    let status = of_process(thread).ok()?.read("status").ok()?;
    HostPid::new(field(&status, "Tgid")?.parse().ok()?)
}

/// The threads of a process but its first, which has the process's own number; of more than so many, these.
pub(crate) fn others(process: HostPid, most: usize) -> Vec<HostPid> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", process.get())) else { return Vec::new() };
    let numbers = tasks.flatten().filter_map(|entry| HostPid::new(entry.file_name().to_str()?.parse().ok()?));
    numbers.filter(|thread| *thread != process).take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_is_meant_for_its_process() {
        let (tell, told) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            let _ = wait.recv();
        });
        let thread_id = told.recv().ok().and_then(HostPid::new).expect("its number");
        let own = HostPid::new(std::process::id()).expect("a PID");
        let call = |names, once: bool| InCall { names, wants: false, seen: once.then(RefCell::default) };
        assert_eq!(call(false, false).process_of(thread_id), Some(thread_id), "to other drivers it is no process");
        let list = call(true, true);
        assert_eq!(list.process_of(thread_id), Some(own));
        assert_eq!(list.process_of(own), None, "one row for one process");
        assert!(others(own, 4096).contains(&thread_id) && !others(own, 4096).contains(&own));
        assert_eq!(others(own, 1).len(), 1);
        drop(done);
        let _ = thread.join();
    }

    #[test]
    fn slow_driver_lookup_blocks_no_other_thread() {
        let threads = Threads::default();
        let (look_on, slow) = std::sync::mpsc::channel::<()>();
        let (told, is_looking) = std::sync::mpsc::channel();
        let (answered, answer) = std::sync::mpsc::channel();
        let habits = |names| Habits { names, wants: false };
        let all = &threads;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                all.habits_by(|| {
                    let _ = told.send(());
                    let _ = slow.recv();
                    habits(false)
                })
            });
            is_looking.recv().expect("the first looks");
            scope.spawn(move || answered.send(all.habits_by(|| habits(true))));
            let found = answer.recv_timeout(Duration::from_secs(10));
            drop(look_on);
            assert_eq!(found, Ok(habits(true)));
        });
        assert_eq!(threads.habits_by(|| unreachable!("it was looked just now")), habits(false));
    }
}
