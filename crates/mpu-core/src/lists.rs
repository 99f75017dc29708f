//! Rewrites tables of equal entries: process lists of the driver, and queries of the caller.

use crate::bytes::{get_u32, put_u32, zero};
use crate::pid::{HostPid, PidMap, ViewPid};
use crate::reason::{Outcome, Reason};
use mpu_abi::Rows;
use mpu_abi::pid::PID_WITHOUT_PROCESS;

/// Entries in use, never more than the table holds.
pub(crate) fn used(table: &[u8], rows: &Rows, count: u32) -> Option<usize> {
    let fits = table.len() / usize::from(rows.stride.max(1));
    let count = usize::try_from(count).ok()?;
    (count <= usize::from(rows.capacity) && count <= fits).then_some(count)
}

/// Translates the PID of each of the first `count` entries, removes entries of other processes, and clears the freed space. A count that
/// the table cannot hold is no count of its entries: then no process is left.
pub(crate) fn rewrite_list(table: &mut [u8], rows: &Rows, count: u32, map: &impl PidMap) -> Outcome {
    let Some(count) = used(table, rows, count) else {
        table.fill(0);
        return Outcome::Not(Reason::Malformed);
    };
    let stride = usize::from(rows.stride.max(4));
    let pid_at = usize::from(rows.pid);
    let Some(entries) = table.get_mut(..count * stride) else {
        return Outcome::Not(Reason::Malformed);
    };
    let mut kept = 0;
    for entry in entries.chunks_exact_mut(stride) {
        let view = get_u32(entry, pid_at).and_then(HostPid::new).and_then(|pid| map.view_of(pid));
        put_u32(entry, pid_at, view.map_or(0, ViewPid::get));
        kept += u32::from(view.is_some());
    }
    let hidden = count as u32 - kept;
    if hidden != 0 {
        close_gaps(entries, stride, pid_at);
    }
    if rows.repeats {
        kept = keep_first_of_each(entries, stride, pid_at, kept as usize);
    }
    Outcome::Rewritten { kept, hidden }
}

/// Removes each entry whose PID is already further to the front, among the first `kept`; returns how many are left. Quadratic in the
/// caller's own processes, of which the driver lists a few.
fn keep_first_of_each(entries: &mut [u8], stride: usize, pid_at: usize, kept: usize) -> u32 {
    let mut to = 0;
    for from in 0..kept {
        let pid = get_u32(entries, from * stride + pid_at);
        if !(0..to).any(|earlier| get_u32(entries, earlier * stride + pid_at) == pid) {
            move_entry(entries, from * stride, to * stride, stride);
            to += 1;
        }
    }
    zero(entries, to * stride, (kept - to) * stride);
    to as u32
}

/// Moves entries with a PID to the front, in their order, and clears the rest.
fn close_gaps(entries: &mut [u8], stride: usize, pid_at: usize) {
    let mut to = 0;
    for from in (0..entries.len()).step_by(stride) {
        if get_u32(entries, from + pid_at).is_some_and(|pid| pid != 0) {
            move_entry(entries, from, to, stride);
            to += stride;
        }
    }
    zero(entries, to, entries.len() - to);
}

/// Replaces each PID of a query by the driver's number for it, and keeps the caller's in `requested`. A PID that the caller cannot see, or
/// without room in `requested`, becomes [`PID_WITHOUT_PROCESS`]; 0 stays 0, which the driver refuses.
pub(crate) fn rewrite_query(table: &mut [u8], rows: &Rows, count: usize, map: &impl PidMap, requested: &mut [u32]) {
    let stride = usize::from(rows.stride);
    let mut places = requested.iter_mut();
    let mut at = usize::from(rows.pid);
    for _ in 0..count {
        let Some(number) = get_u32(table, at) else { return };
        let driver = match places.next() {
            Some(place) => {
                *place = number;
                host_number(number, map)
            }
            None => PID_WITHOUT_PROCESS,
        };
        put_u32(table, at, driver);
        at += stride;
    }
}

/// Restores the PIDs that the caller wrote. An answer with other entries than the query is cleared: it could have the driver's numbers.
pub(crate) fn restore_query(table: &mut [u8], rows: &Rows, count: u32, requested: &[u32]) -> Outcome {
    let requested = used(table, rows, count).and_then(|count| requested.get(..count));
    let Some(requested) = requested else {
        table.fill(0);
        return Outcome::Not(Reason::Malformed);
    };
    let stride = usize::from(rows.stride);
    let mut at = usize::from(rows.pid);
    for number in requested {
        put_u32(table, at, *number);
        at += stride;
    }
    Outcome::Rewritten { kept: requested.len() as u32, hidden: 0 }
}

/// The driver's number for a number that the caller wrote.
pub(crate) fn host_number(number: u32, map: &impl PidMap) -> u32 {
    match number {
        0 => 0,
        _ => ViewPid::new(number).and_then(|pid| map.host_of(pid)).map_or(PID_WITHOUT_PROCESS, HostPid::get),
    }
}

/// Moves an entry towards the front, four bytes at a time: strides are multiples of four, and the places may overlap.
fn move_entry(table: &mut [u8], from: usize, to: usize, stride: usize) {
    if from == to {
        return;
    }
    for at in (0..stride).step_by(4) {
        if let Some(word) = get_u32(table, from + at) {
            put_u32(table, to + at, word);
        }
    }
}
