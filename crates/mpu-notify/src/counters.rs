//! What the engine did, in numbers.
//!
//! Owns the counters, by the names that every engine uses, and that they go on where the supervisor before left them. Knows no code that
//! counts.

use crate::sys;
use mpu_abi::Control;
use mpu_core::{Outcome, Reason};
use rustix::fs::ftruncate;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Their name with the keeper.
pub(crate) const COUNTERS: &str = "counters";

/// Places of the numbers. What comes before [`COUNTED`] means the same in every version.
const SHAPE: usize = 0;
const SINCE: usize = 1;
const RESTARTS: usize = 2;
const ON_PURPOSE: usize = 3;
const RECENT: usize = 4;
const RECENT_END: usize = RECENT + crate::MOST_COUNTED as usize;
const COUNTED: usize = 16;
const PASSED_ON: usize = COUNTED;
const TRANSLATED: usize = PASSED_ON + 1;
const PASSED: usize = TRANSLATED + Control::ALL.len();
const END: usize = PASSED + Reason::ALL.len();
/// Room for what later versions count.
const BYTES: usize = 4096;

const HOUR: u64 = 3600;

/// Counters since the first supervisor of a row that took over from each other.
#[derive(Debug)]
pub(crate) struct Counters {
    numbers: &'static [AtomicU64],
    /// Calls that are being translated now.
    pub(crate) inside: AtomicU64,
}

impl Default for Counters {
    fn default() -> Counters {
        // One for each process but for tests.
        let numbers = (0..END).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
        Counters { numbers, inside: AtomicU64::new(0) }
    }
}

impl Counters {
    /// Those in a file that outlives this process; `now` is seconds since 1970.
    pub(crate) fn kept(file: &File, now: u64) -> io::Result<Counters> {
        if file.metadata()?.len() < BYTES as u64 {
            ftruncate(file, BYTES as u64)?;
        }
        let numbers = sys::shared_numbers(file, END)?;
        let counters = Counters { numbers, inside: AtomicU64::new(0) };
        if counters.numbers[SHAPE].swap(shape(), Relaxed) != shape() {
            // Another version counted other things.
            counters.numbers[COUNTED..].iter().for_each(|number| number.store(0, Relaxed));
        }
        if counters.since() == 0 {
            counters.numbers[SINCE].store(now, Relaxed);
        } else if counters.numbers[ON_PURPOSE].swap(0, Relaxed) == 0 {
            let nth = counters.numbers[RESTARTS].fetch_add(1, Relaxed) as usize;
            counters.numbers[RECENT + nth % (RECENT_END - RECENT)].store(now, Relaxed);
        }
        Ok(counters)
    }

    /// Records that this supervisor ends on command, so the next start counts no death.
    pub(crate) fn ends_on_purpose(&self) {
        self.numbers[ON_PURPOSE].store(1, Relaxed);
    }

    /// When the first supervisor began.
    pub(crate) fn since(&self) -> u64 {
        self.numbers[SINCE].load(Relaxed)
    }

    /// How often a supervisor took the place of one that had died; and in the last hour, up to 8.
    pub(crate) fn restarts(&self, now: u64) -> (u64, u64) {
        let recent = self.numbers[RECENT..RECENT_END].iter().map(|time| time.load(Relaxed));
        let recent = recent.filter(|time| *time != 0 && now.saturating_sub(*time) < HOUR).count();
        (self.numbers[RESTARTS].load(Relaxed), recent as u64)
    }

    /// A call that carries no PID went on to the driver.
    pub(crate) fn pass_on(&self) {
        self.numbers[PASSED_ON].fetch_add(1, Relaxed);
    }

    pub(crate) fn passed_on(&self) -> u64 {
        self.numbers[PASSED_ON].load(Relaxed)
    }

    /// A call of this control was answered.
    pub(crate) fn count(&self, control: Control, outcome: Outcome) {
        match outcome {
            Outcome::Rewritten { .. } => {
                self.numbers[TRANSLATED + control as usize].fetch_add(1, Relaxed);
            }
            Outcome::Not(reason) => self.pass(reason),
        }
    }

    /// A call was not translated in the usual way.
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

/// Of what is counted in which place; never 0 (FNV-1a).
fn shape() -> u64 {
    let names = Control::ALL.iter().map(|control| control.name()).chain(Reason::ALL.iter().map(|reason| reason.name()));
    let bytes = names.flat_map(|name| name.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)) | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    #[test]
    fn counters_go_on_where_supervisor_before_left_them() {
        let file = File::from(memfd_create("mpu-test", MemfdFlags::CLOEXEC).expect("memory"));
        let first = Counters::kept(&file, 1000).expect("mapped");
        first.count(Control::GpuGetPids, Outcome::Rewritten { kept: 1, hidden: 2 });
        first.pass(Reason::Exempt);
        first.pass_on();
        first.inside.store(3, Relaxed);
        let second = Counters::kept(&file, 2000).expect("mapped");
        assert_eq!((second.since(), second.restarts(2000), second.passed_on()), (1000, (1, 1), 1));
        assert_eq!((second.translated()["GPU_GET_PIDS"], second.passed()["exempt"]), (1, 1));
        assert_eq!(second.inside.load(Relaxed), 0, "no caller is inside a supervisor that died");

        second.ends_on_purpose();
        assert_eq!(Counters::kept(&file, 3000).expect("mapped").restarts(3000), (1, 1), "nothing died");
        for now in 4000..4020 {
            Counters::kept(&file, now).expect("mapped");
        }
        let last = Counters::kept(&file, 9000).expect("mapped");
        assert_eq!(last.restarts(9000), (22, 1), "older than an hour but one");
        assert_eq!(last.restarts(4020).1, 8);

        // Another version's, whose names are others.
        last.numbers[SHAPE].store(7, Relaxed);
        let other = Counters::kept(&file, 9001).expect("mapped");
        assert_eq!((other.since(), other.restarts(9001).0, other.passed_on()), (1000, 23, 0));
        assert!(other.translated().values().all(|count| *count == 0));
    }

    #[test]
    fn numbers_fit() {
        assert!(END * size_of::<u64>() <= BYTES && RECENT_END <= COUNTED);
    }
}
