//! Matches accounting records to processes. The driver keeps records of ended processes by PID, and PIDs are reused: a record
//! that begins before its process started belongs to an earlier process.
//!
//! Source: NV0000_CTRL_GPUACCT_GET_PROC_ACCOUNTING_INFO_PARAMS and …_GET_ACCOUNTING_PIDS_PARAMS of ctrl0000gpuacct.h (times in
//! microseconds since 1970, by the host's clock); proc_pid_stat(5).

use crate::bytes::{read_u32, read_u64, write_u32};
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

/// Tolerance in microseconds. `/proc` has a process's start in ticks of 10 ms, so a record can seem to begin a little before its
/// process. No PID is reused within that time.
const START_TOLERANCE: u64 = 20_000;

/// Parameters that request one process's record, on the GPU of a list.
pub(crate) fn info_request(list: &[u8], pid: HostPid) -> [u8; INFO_BYTES] {
    let mut info_request = [0; INFO_BYTES];
    write_u32(&mut info_request, GPU, read_u32(list, GPU));
    write_u32(&mut info_request, PID, pid.get());
    info_request
}

/// Whether a record belongs to the process that has this PID now.
fn is_record_of(answer: &[u8], pid: HostPid) -> bool {
    start_time(pid).is_some_and(|started| read_u64(answer, START) >= started)
}

/// In a list of processes with a record, keeps each visible process once, and removes those with records of earlier processes
/// only. `record` requests a process's record from the driver.
pub(crate) fn keep_own_records(
    list: &mut [u8],
    rows: &Rows,
    is_visible: impl Fn(HostPid) -> bool,
    mut record: impl FnMut(HostPid) -> Option<[u8; INFO_BYTES]>,
) {
    let count = read_u32(list, rows.count.into()).min(rows.capacity.into()) as usize;
    let pid_offset = |entry: usize| usize::from(rows.first) + entry * usize::from(rows.stride) + usize::from(rows.pid);
    let mut entries: HashMap<HostPid, Vec<usize>> = HashMap::new();
    for at in (0..count).map(pid_offset) {
        if let Some(pid) = HostPid::new(read_u32(list, at)).filter(|pid| is_visible(*pid)) {
            entries.entry(pid).or_default().push(at);
        }
    }
    for (pid, offsets) in entries {
        // For one PID the driver keeps at most one record of ended processes and one of the running process. So of two, one is
        // the running process's.
        let kept = if offsets.len() > 1 {
            1
        } else {
            usize::from(record(pid).is_none_or(|answer| is_record_of(&answer, pid)))
        };
        for at in offsets.into_iter().skip(kept) {
            write_u32(list, at, 0);
        }
    }
}

/// Start of a process in microseconds since 1970, minus the tolerance [`START_TOLERANCE`].
pub(crate) fn start_time(pid: HostPid) -> Option<u64> {
    let stat = of_process(pid).ok()?.read("stat").ok()?;
    let up = maker::started_ticks(&stat)?.checked_mul(1_000_000)? / rustix::param::clock_ticks_per_second();
    let micros = |time: Timespec| time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000;
    let now = micros(clock_gettime(ClockId::Realtime));
    Some((now.saturating_sub(micros(clock_gettime(ClockId::Boottime))) + up).saturating_sub(START_TOLERANCE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: Rows = Rows::new(16008, 8, 4, 4000, 0);

    fn list(pids: &[u32]) -> Vec<u8> {
        let mut list = vec![0; 16012];
        write_u32(&mut list, 16008, pids.len() as u32);
        pids.iter().enumerate().for_each(|(entry, pid)| write_u32(&mut list, 8 + 4 * entry, *pid));
        list
    }

    fn record(start: u64) -> [u8; INFO_BYTES] {
        let mut record = [0; INFO_BYTES];
        crate::bytes::write_u64(&mut record, START, start);
        record
    }

    #[test]
    fn record_from_before_process_is_not_its_own() {
        let own = HostPid::new(std::process::id()).expect("a PID");
        let began = start_time(own).expect("our own");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_micros();
        assert!(began <= now as u64 && now as u64 - began < 3_600_000_000, "{began} of {now}");
        assert!(is_record_of(&record(began + 5_000_000), own));
        // Two reads of the clocks differ a little.
        assert!(is_record_of(&record(began + START_TOLERANCE / 2), own));
        assert!(!is_record_of(&record(began - 2 * START_TOLERANCE), own));
        assert!(!is_record_of(&record(began), HostPid::new(0x7fff_fffe).expect("a PID")), "no process's");
    }

    #[test]
    fn process_is_listed_once_by_own_record() {
        let own = HostPid::new(std::process::id()).expect("a PID");
        let began = start_time(own).expect("our own");
        let remaining = |pids: &[u32], start: Option<u64>| {
            let mut list = list(pids);
            keep_own_records(&mut list, &ROWS, |pid| pid == own, |_| start.map(record));
            (0..pids.len()).map(|entry| read_u32(&list, 8 + 4 * entry)).filter(|pid| *pid == own.get()).count()
        };
        assert_eq!(remaining(&[7, own.get(), 9], Some(began + START_TOLERANCE / 2)), 1);
        assert_eq!(remaining(&[7, own.get(), 9], Some(1)), 0, "the record of an ended process");
        assert_eq!(remaining(&[own.get(), 9, own.get()], Some(1)), 1, "one record of an ended process, one of its own");
        assert_eq!(remaining(&[own.get()], None), 1);

        let mut full = list(&[own.get(); 4000]);
        write_u32(&mut full, 16008, 4001);
        keep_own_records(&mut full, &ROWS, |pid| pid == own, |_| Some(record(1)));
        let kept = (0..4000).filter(|entry| read_u32(&full, 8 + 4 * entry) == own.get()).count();
        assert_eq!(kept, 1, "no more entries than the table has are looked at");
    }
}
