//! Accounting records, and whose they are.
//!
//! Owns that a record goes to the process that it is of: the driver keeps records of processes that have ended by their numbers, and a
//! number comes again. A record that begins before the process with its number started is another process's. Knows no namespace.
//!
//! Outside truth: NV0000_CTRL_GPUACCT_GET_PROC_ACCOUNTING_INFO_PARAMS and …_GET_ACCOUNTING_PIDS_PARAMS of ctrl0000gpuacct.h (times in
//! microseconds since 1970, by the host's clock); proc_pid_stat(5).

use crate::bytes::{put, wide, word};
use crate::caller::proc_folder::of_process;
use mpu_abi::{ControlCmd, Rows};
use mpu_core::HostPid;
use mpu_host::maker;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::collections::HashMap;

/// `NV0000_CTRL_CMD_GPUACCT_GET_PROC_ACCOUNTING_INFO`, and its parameters' size and fields.
pub(crate) const GET_INFO: ControlCmd = ControlCmd(0xb03);
pub(crate) const INFO_BYTES: usize = 48;
const GPU: usize = 0;
const PID: usize = 4;
const START: usize = 32;

/// `/proc` has a process's start in ticks of ten milliseconds, so a record can seem to begin a little before. No number comes again
/// within that time.
const TICKS: u64 = 20_000;

/// The question for one process's record, on the GPU that a list is of.
pub(crate) fn question(list: &[u8], pid: HostPid) -> [u8; INFO_BYTES] {
    let mut question = [0; INFO_BYTES];
    put(&mut question, GPU, word(list, GPU));
    put(&mut question, PID, pid.get());
    question
}

/// Whether the driver's answer about a process is of that process.
fn is_of(answer: &[u8], pid: HostPid) -> bool {
    started(pid).is_some_and(|started| wide(answer, START) >= started)
}

/// Leaves each process once in a list of those that have a record, and none that has another's only. `sees` says which are looked at,
/// `record` asks the driver for a process's record.
pub(crate) fn leave_own(
    list: &mut [u8],
    rows: &Rows,
    sees: impl Fn(HostPid) -> bool,
    mut record: impl FnMut(HostPid) -> Option<[u8; INFO_BYTES]>,
) {
    let count = word(list, rows.count.into()).min(rows.capacity.into()) as usize;
    let place = |entry: usize| usize::from(rows.first) + entry * usize::from(rows.stride) + usize::from(rows.pid);
    let mut entries: HashMap<HostPid, Vec<usize>> = HashMap::new();
    for at in (0..count).map(place) {
        if let Some(pid) = HostPid::new(word(list, at)).filter(|pid| sees(*pid)) {
            entries.entry(pid).or_default().push(at);
        }
    }
    for (pid, places) in entries {
        // Of two, one is of the process that lives: the driver keeps one record of the dead for a number, and one of the living.
        let own = if places.len() > 1 { 1 } else { usize::from(record(pid).is_none_or(|answer| is_of(&answer, pid))) };
        for at in places.into_iter().skip(own) {
            put(list, at, 0);
        }
    }
}

/// When a process began, in microseconds since 1970. A record that begins earlier is not its own.
pub(crate) fn started(pid: HostPid) -> Option<u64> {
    let stat = of_process(pid).ok()?.read("stat").ok()?;
    let up = maker::started_ticks(&stat)?.checked_mul(1_000_000)? / rustix::param::clock_ticks_per_second();
    let micros = |time: Timespec| time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000;
    let now = micros(clock_gettime(ClockId::Realtime));
    Some((now.saturating_sub(micros(clock_gettime(ClockId::Boottime))) + up).saturating_sub(TICKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: Rows = Rows::new(16008, 8, 4, 4000, 0);

    fn list(pids: &[u32]) -> Vec<u8> {
        let mut list = vec![0; 16012];
        put(&mut list, 16008, pids.len() as u32);
        pids.iter().enumerate().for_each(|(entry, pid)| put(&mut list, 8 + 4 * entry, *pid));
        list
    }

    fn record(start: u64) -> [u8; INFO_BYTES] {
        let mut record = [0; INFO_BYTES];
        crate::bytes::put_wide(&mut record, START, start);
        record
    }

    #[test]
    fn record_from_before_process_is_not_its_own() {
        let own = HostPid::new(std::process::id()).expect("a PID");
        let began = started(own).expect("our own");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_micros();
        assert!(began <= now as u64 && now as u64 - began < 3_600_000_000, "{began} of {now}");
        assert!(is_of(&record(began + 5_000_000), own));
        // Two looks at the clocks differ a little.
        assert!(is_of(&record(began + TICKS / 2), own));
        assert!(!is_of(&record(began - 2 * TICKS), own));
        assert!(!is_of(&record(began), HostPid::new(0x7fff_fffe).expect("a PID")), "no process's");
    }

    #[test]
    fn each_process_is_listed_once_and_by_its_own_record() {
        let own = HostPid::new(std::process::id()).expect("a PID");
        let began = started(own).expect("our own");
        let left = |pids: &[u32], start: Option<u64>| {
            let mut list = list(pids);
            leave_own(&mut list, &ROWS, |pid| pid == own, |_| start.map(record));
            (0..pids.len()).map(|entry| word(&list, 8 + 4 * entry)).filter(|pid| *pid == own.get()).count()
        };
        assert_eq!(left(&[7, own.get(), 9], Some(began + TICKS / 2)), 1);
        assert_eq!(left(&[7, own.get(), 9], Some(1)), 0, "of one that is dead and had the number");
        assert_eq!(left(&[own.get(), 9, own.get()], Some(1)), 1, "of that one, and its own");
        assert_eq!(left(&[own.get()], None), 1);

        let mut full = list(&[own.get(); 4000]);
        put(&mut full, 16008, 4001);
        leave_own(&mut full, &ROWS, |pid| pid == own, |_| Some(record(1)));
        let kept = (0..4000).filter(|entry| word(&full, 8 + 4 * entry) == own.get()).count();
        assert_eq!(kept, 1, "no more entries than the table has are looked at");
    }
}
