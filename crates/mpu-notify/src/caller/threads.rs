//! Thread numbering: drivers from 535.113 to 570.144, and 575.51, record the thread that made a client and report its TID as a PID.
//!
//! Finds the process of such a TID. If the thread has ended, its process cannot be found and its row is missing.

use crate::caller::proc_folder::{field, of_process};
use mpu_abi::Control;
use mpu_core::HostPid;
use mpu_host::driver::{Driver, Numbering, native};
use mpu_host::host::Host;
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long the facts of the loaded driver are cached.
const DRIVER_CACHE_TIME: Duration = Duration::from_secs(1);

/// Where the loaded driver uses TIDs for processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ThreadNumbering {
    /// Its answers have TIDs.
    reports_tids: bool,
    /// It looks up a client by the thread that made it.
    queries_by_tid: bool,
}

impl ThreadNumbering {
    fn of_loaded_driver() -> ThreadNumbering {
        let release = Driver::loaded(&Host::this()).and_then(|driver| driver.known());
        release.map(native).map_or_else(ThreadNumbering::default, |native| ThreadNumbering {
            reports_tids: native.pids == Numbering::Thread,
            queries_by_tid: native.pid_info == Numbering::Thread,
        })
    }
}

/// Cached thread numbering of the loaded driver.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    /// Calls of all containers read it concurrently.
    numbering: RwLock<Option<(Instant, ThreadNumbering)>>,
}

impl Threads {
    /// For one call of a control.
    pub(crate) fn for_call(&self, control: Control) -> CallThreads {
        let numbering = self.numbering();
        CallThreads {
            reports_tids: numbering.reports_tids,
            queries_by_tid: numbering.queries_by_tid && control == Control::GpuGetPidInfo,
            // A process is one row, even if the driver lists two of its threads.
            seen: (numbering.reports_tids && control == Control::GpuGetPids).then(RefCell::default),
        }
    }

    fn numbering(&self) -> ThreadNumbering {
        self.numbering_by(ThreadNumbering::of_loaded_driver)
    }

    fn numbering_by(&self, read: impl FnOnce() -> ThreadNumbering) -> ThreadNumbering {
        if let Some((since, numbering)) = *self.numbering.read().unwrap_or_else(PoisonError::into_inner)
            && since.elapsed() < DRIVER_CACHE_TIME
        {
            return numbering;
        }
        // Reads files without the lock, so no other call waits. Concurrent reads find the same.
        let found = (Instant::now(), read());
        *self.numbering.write().unwrap_or_else(PoisonError::into_inner) = Some(found);
        found.1
    }
}

/// See [`Threads::for_call`].
#[derive(Debug)]
pub(crate) struct CallThreads {
    reports_tids: bool,
    /// Whether a process must be looked up by each of its threads.
    pub(crate) queries_by_tid: bool,
    seen: Option<RefCell<HashSet<HostPid>>>,
}

impl CallThreads {
    /// The process of a number in the driver's answer; none for a repetition in a list.
    pub(crate) fn process_of(&self, number: HostPid) -> Option<HostPid> {
        let process = if self.reports_tids { process_of(number).unwrap_or(number) } else { number };
        let is_new = self.seen.as_ref().is_none_or(|seen| seen.borrow_mut().insert(process));
        is_new.then_some(process)
    }
}

/// The process of a thread.
fn process_of(thread: HostPid) -> Option<HostPid> {
    let status = of_process(thread).ok()?.read("status").ok()?;
    HostPid::new(field(&status, "Tgid")?.parse().ok()?)
}

/// Threads of a process without the first, whose TID is the PID; at most `limit`.
pub(crate) fn other_threads(process: HostPid, limit: usize) -> Vec<HostPid> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", process.get())) else { return Vec::new() };
    let tids = tasks.flatten().filter_map(|entry| HostPid::new(entry.file_name().to_str()?.parse().ok()?));
    tids.filter(|thread| *thread != process).take(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::thread::tests::Worker;

    #[test]
    fn reported_thread_resolves_to_its_process() {
        let worker = Worker::start();
        let thread_id = HostPid::new(worker.tid.get()).expect("a number");
        let own = HostPid::new(std::process::id()).expect("a PID");
        let call = |reports_tids, once: bool| CallThreads {
            reports_tids,
            queries_by_tid: false,
            seen: once.then(RefCell::default),
        };
        assert_eq!(call(false, false).process_of(thread_id), Some(thread_id), "to other drivers it is no process");
        let list = call(true, true);
        assert_eq!(list.process_of(thread_id), Some(own));
        assert_eq!(list.process_of(own), None, "one row for one process");
        assert!(other_threads(own, 4096).contains(&thread_id) && !other_threads(own, 4096).contains(&own));
        assert_eq!(other_threads(own, 1).len(), 1);
    }

    #[test]
    fn slow_driver_lookup_blocks_no_other_thread() {
        let threads = Threads::default();
        let (resume, resumed) = std::sync::mpsc::channel::<()>();
        let (receiver, started) = std::sync::mpsc::channel();
        let (answer_sender, answer_receiver) = std::sync::mpsc::channel();
        let numbering = |reports_tids| ThreadNumbering { reports_tids, queries_by_tid: false };
        let all = &threads;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                all.numbering_by(|| {
                    let _ = receiver.send(());
                    let _ = resumed.recv();
                    numbering(false)
                })
            });
            started.recv().expect("the first looks");
            scope.spawn(move || answer_sender.send(all.numbering_by(|| numbering(true))));
            let found = answer_receiver.recv_timeout(Duration::from_secs(10));
            drop(resume);
            assert_eq!(found, Ok(numbering(true)));
        });
        assert_eq!(threads.numbering_by(|| unreachable!("it was looked just now")), numbering(false));
    }
}
