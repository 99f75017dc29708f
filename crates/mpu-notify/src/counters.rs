//! The engine's counters, by the names that every engine uses. They continue from the previous supervisor's values.

use crate::sys;
use mpu_abi::Control;
use mpu_core::{Outcome, Reason};
use rustix::fs::ftruncate;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Their name in the file descriptor store.
pub(crate) const COUNTERS: &str = "counters";

/// Indices of the numbers. Those before [`FIRST_COUNTER`] have the same meaning in every version.
const LAYOUT_HASH: usize = 0;
const SINCE: usize = 1;
const RESTARTS: usize = 2;
const PLANNED_END: usize = 3;
const RECENT: usize = 4;
const RECENT_END: usize = RECENT + crate::MOST_COUNTED as usize;
const FIRST_COUNTER: usize = 16;
const PASSED_ON: usize = FIRST_COUNTER;
const TRANSLATED: usize = PASSED_ON + 1;
const PASSED: usize = TRANSLATED + Control::ALL.len();
const END: usize = PASSED + Reason::ALL.len();
/// Size of the file, with room for counters of later versions.
const BYTES: usize = 4096;

const HOUR: u64 = 3600;

/// Counters since the start of the first supervisor in this chain of successors.
#[derive(Debug)]
pub(crate) struct Counters {
    numbers: &'static [AtomicU64],
    /// Calls that are being translated now.
    pub(crate) inside: AtomicU64,
}

impl Default for Counters {
    fn default() -> Counters {
        // Only tests make more than one in a process.
        let numbers = (0..END).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
        Counters { numbers, inside: AtomicU64::new(0) }
    }
}

impl Counters {
    /// Maps counters in a file that outlives this process; `now` is seconds since 1970.
    pub(crate) fn map_file(file: &File, now: u64) -> io::Result<Counters> {
        if file.metadata()?.len() < BYTES as u64 {
            ftruncate(file, BYTES as u64)?;
        }
        let numbers = sys::map_atomics(file, END)?;
        let counters = Counters { numbers, inside: AtomicU64::new(0) };
        if counters.numbers[LAYOUT_HASH].swap(layout_hash(), Relaxed) != layout_hash() {
            // Written by a version with other counters.
            counters.numbers[FIRST_COUNTER..].iter().for_each(|number| number.store(0, Relaxed));
        }
        if counters.since() == 0 {
            counters.numbers[SINCE].store(now, Relaxed);
        } else if counters.numbers[PLANNED_END].swap(0, Relaxed) == 0 {
            let nth = counters.numbers[RESTARTS].fetch_add(1, Relaxed) as usize;
            counters.numbers[RECENT + nth % (RECENT_END - RECENT)].store(now, Relaxed);
        }
        Ok(counters)
    }

    /// Records that this supervisor ends on command, so the next start counts no restart.
    pub(crate) fn mark_planned_end(&self) {
        self.numbers[PLANNED_END].store(1, Relaxed);
    }

    /// Start of the first supervisor.
    pub(crate) fn since(&self) -> u64 {
        self.numbers[SINCE].load(Relaxed)
    }

    /// How many supervisors replaced one that had died; and in the last hour, up to 8.
    pub(crate) fn restarts(&self, now: u64) -> (u64, u64) {
        let recent = self.numbers[RECENT..RECENT_END].iter().map(|time| time.load(Relaxed));
        let recent = recent.filter(|time| *time != 0 && now.saturating_sub(*time) < HOUR).count();
        (self.numbers[RESTARTS].load(Relaxed), recent as u64)
    }

    /// Counts a call without PIDs that continues to the driver.
    pub(crate) fn pass_on(&self) {
        self.numbers[PASSED_ON].fetch_add(1, Relaxed);
    }

    pub(crate) fn passed_on(&self) -> u64 {
        self.numbers[PASSED_ON].load(Relaxed)
    }

    /// Counts an answered call of this control.
    pub(crate) fn count(&self, control: Control, outcome: Outcome) {
        match outcome {
            Outcome::Rewritten { .. } => {
                self.numbers[TRANSLATED + control as usize].fetch_add(1, Relaxed);
            }
            Outcome::Not(reason) => self.pass(reason),
        }
    }

    /// Counts a call that was not translated in the usual way.
    pub(crate) fn pass(&self, reason: Reason) {
        self.numbers[PASSED + reason as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn translated(&self) -> BTreeMap<String, u64> {
        let named = Control::ALL.iter().zip(&self.numbers[TRANSLATED..PASSED]);
        named.map(|(control, counter)| (control.name().to_string(), counter.load(Relaxed))).collect()
    }

    pub(crate) fn passed(&self) -> BTreeMap<String, u64> {
        let named = Reason::ALL.iter().zip(&self.numbers[PASSED..]);
        named.map(|(reason, counter)| (reason.name().to_string(), counter.load(Relaxed))).collect()
    }
}

/// Hash of the counters' names in their order; never 0 (FNV-1a).
fn layout_hash() -> u64 {
    let names = Control::ALL.iter().map(|control| control.name()).chain(Reason::ALL.iter().map(|reason| reason.name()));
    let bytes = names.flat_map(|name| name.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)) | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    #[test]
    fn counters_survive_restart_of_supervisor() {
        let file = File::from(memfd_create("mpu-test", MemfdFlags::CLOEXEC).expect("memory"));
        let first = Counters::map_file(&file, 1000).expect("mapped");
        first.count(Control::GpuGetPids, Outcome::Rewritten { kept: 1, hidden: 2 });
        first.pass(Reason::Exempt);
        first.pass_on();
        first.inside.store(3, Relaxed);
        let second = Counters::map_file(&file, 2000).expect("mapped");
        assert_eq!((second.since(), second.restarts(2000), second.passed_on()), (1000, (1, 1), 1));
        assert_eq!((second.translated()["GPU_GET_PIDS"], second.passed()["exempt"]), (1, 1));
        assert_eq!(second.inside.load(Relaxed), 0, "no caller is inside a supervisor that died");

        second.mark_planned_end();
        assert_eq!(Counters::map_file(&file, 3000).expect("mapped").restarts(3000), (1, 1), "nothing died");
        for now in 4000..4020 {
            Counters::map_file(&file, now).expect("mapped");
        }
        let last = Counters::map_file(&file, 9000).expect("mapped");
        assert_eq!(last.restarts(9000), (22, 1), "older than an hour but one");
        assert_eq!(last.restarts(4020).1, 8);

        // Counters of another version.
        last.numbers[LAYOUT_HASH].store(7, Relaxed);
        let other = Counters::map_file(&file, 9001).expect("mapped");
        assert_eq!((other.since(), other.restarts(9001).0, other.passed_on()), (1000, 23, 0));
        assert!(other.translated().values().all(|count| *count == 0));
    }

    #[test]
    fn counters_fit_in_file() {
        assert!(END * size_of::<u64>() <= BYTES && RECENT_END <= FIRST_COUNTER);
    }
}
