//! Tables of equal entries: rows of processes that the driver lists, and rows that the caller asks about.

use crate::bytes::{get_u32, put_u32, zero};
use crate::call::Asked;
use crate::pid::{HostPid, PidMap, ViewPid};
use crate::reason::{Outcome, Reason};
use mpu_abi::ioctl::PID_OF_NOBODY;
use mpu_abi::Rows;

/// Entries in use, never more than the table holds.
pub(crate) fn used(table: &[u8], rows: &Rows, count: u32) -> Option<usize> {
    let fits = table.len() / usize::from(rows.stride.max(1));
    let count = usize::try_from(count).ok()?;
    (count <= usize::from(rows.capacity) && count <= fits).then_some(count)
}

/// Puts the PID of each of the first `count` entries into the caller's view, takes the entries of other processes out, and
/// clears the space that frees: what stood behind the new end was somebody else's.
pub(crate) fn rewrite_list(table: &mut [u8], rows: &Rows, count: u32, map: &impl PidMap) -> Outcome {
    let Some(count) = used(table, rows, count) else {
        return Outcome::Not(Reason::Malformed);
    };
    let stride = usize::from(rows.stride);
    let pid_at = usize::from(rows.pid);
    let mut kept = 0;
    for entry in 0..count {
        let Some(view) =
            get_u32(table, entry * stride + pid_at).and_then(HostPid::new).and_then(|pid| map.view_of(pid))
        else {
            continue;
        };
        if kept != entry {
            move_entry(table, entry * stride, kept * stride, stride);
        }
        put_u32(table, kept * stride + pid_at, view.get());
        kept += 1;
    }
    zero(table, kept * stride, (count - kept) * stride);
    Outcome::Rewritten { kept: kept as u32, hidden: (count - kept) as u32 }
}

/// Replaces each PID that the caller asks about by the driver's number for it, and remembers what the caller wrote. A PID
/// that the caller cannot see becomes [`PID_OF_NOBODY`]; 0 stays 0, which the driver refuses by itself.
///
/// Without a place to remember, or beyond what it holds, every PID becomes nobody's.
pub(crate) fn rewrite_query(
    table: &mut [u8],
    rows: &Rows,
    count: u32,
    map: &impl PidMap,
    mut asked: Option<&mut Asked>,
) {
    if let Some(asked) = asked.as_deref_mut() {
        asked.clear();
    }
    let fits = table.len() / usize::from(rows.stride.max(1));
    let count = (count as usize).min(usize::from(rows.capacity)).min(fits);
    for entry in 0..count {
        let at = entry * usize::from(rows.stride) + usize::from(rows.pid);
        let Some(number) = get_u32(table, at) else { return };
        let remembered = asked.as_deref_mut().is_some_and(|asked| asked.remember(number));
        put_u32(table, at, if remembered { host_number(number, map) } else { PID_OF_NOBODY });
    }
}

/// Puts back the PIDs that the caller wrote. Without a memory of them the answer is not the caller's to see: it is cleared.
pub(crate) fn restore_query(table: &mut [u8], rows: &Rows, count: u32, asked: Option<&Asked>) -> Outcome {
    let Some(count) = used(table, rows, count) else {
        return Outcome::Not(Reason::Malformed);
    };
    let stride = usize::from(rows.stride);
    let numbers = asked.map_or(&[][..], Asked::numbers);
    if numbers.len() < count {
        zero(table, 0, count * stride);
        return Outcome::Not(Reason::ArgumentChanged);
    }
    for (entry, number) in numbers.iter().take(count).enumerate() {
        put_u32(table, entry * stride + usize::from(rows.pid), *number);
    }
    Outcome::Rewritten { kept: count as u32, hidden: 0 }
}

/// The driver's number for a number that the caller wrote.
pub(crate) fn host_number(number: u32, map: &impl PidMap) -> u32 {
    match number {
        0 => 0,
        _ => ViewPid::new(number).and_then(|pid| map.host_of(pid)).map_or(PID_OF_NOBODY, HostPid::get),
    }
}

/// Moves an entry towards the front, four bytes at a time: strides are multiples of four, and the places may overlap.
fn move_entry(table: &mut [u8], from: usize, to: usize, stride: usize) {
    for at in (0..stride).step_by(4) {
        if let Some(word) = get_u32(table, from + at) {
            put_u32(table, to + at, word);
        }
    }
}
