//! One RM control on its way through the driver: which copies between driver and caller belong to it, and what each needs.
//!
//! The engine reports three moments: the call begins, the driver has copied from its caller, the driver is about to copy to its caller.
//! The driver decides the order and number of copies. A copy is the parameters if it has the address and size in the [`Argument`], and a
//! buffer behind a pointer if it has the address in the driver's own copy of the parameters. All other copies stay untouched, and so do
//! controls without a row.

use crate::bytes::{get_u32, get_u64, put_u32, put_u64};
use crate::lists::{host_number, restore_query, rewrite_list, rewrite_query};
use crate::pid::{HostPid, PidMap};
use crate::reason::{Outcome, Reason};
use crate::samples::rewrite_samples;
use mpu_abi::pid::PID_WITHOUT_PROCESS;
use mpu_abi::{Control, ControlCmd, Inner, Layout, Row, RowId, Rows};

/// The most entries behind a pointer that are examined; later ones are removed.
const MOST_INNER: usize = 512;

/// The driver gets this address for a table that the caller did not request. It is on a page that no process can map (`mmap_min_addr`),
/// so a copy that does not pass [`Call::copying_out`] faults.
const UNMAPPED: u64 = 0x1000 - 8;

/// The argument of an RM control (NVOS54_PARAMETERS), as far as it concerns the parameters. Use only the driver's own copy: the caller
/// can change its own at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The control's number.
    pub cmd: ControlCmd,
    /// The address of the parameters in the caller.
    pub params: u64,
    /// Bytes of parameters.
    pub size: u32,
}

/// How much the driver may copy to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// All of it.
    All,
    /// So many bytes from its beginning: the caller has no capacity for more. 0: it requested none.
    First(u32),
    /// None: the caller gets the error for a missing process.
    NoSuchProcess,
}

/// The result of a copy to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// For the counters; `None` if there is nothing to count.
    pub outcome: Option<(Control, Outcome)>,
    /// How much the caller gets.
    pub copied: Copied,
}

impl Answer {
    const UNTOUCHED: Answer = Answer { outcome: None, copied: Copied::All };
}

/// The state of one RM control.
#[repr(C)]
pub struct Call {
    /// The address of the caller's parameters.
    params: u64,
    /// The address of the caller's buffer behind the pointer of an embedded layout, as the driver knows it. For a query of one process, the
    /// PID in the driver's request.
    inner_address: u64,
    /// The inner entries of visible processes, one bit each.
    inner_present: [u64; MOST_INNER / 64],
    /// The caller's capacity in entries, if the row has one and MPU requests all entries.
    room: u32,
    /// The row's index plus 1, or 0.
    row: u16,
    /// The parameters were copied from the caller.
    params_read: bool,
    /// The parameters were copied to the caller.
    answered: bool,
    /// The inner buffer was copied to the caller.
    inner_answered: bool,
    /// The caller requested the number of entries alone, and MPU all of them.
    counts_only: bool,
}

impl Call {
    /// A call with this argument. The driver must not translate it by itself: the engine switches that off, or calls from the init
    /// namespace.
    ///
    /// # Errors
    /// [`Reason::UnknownSize`] if the control has PIDs but no row has this size: the engine then leaves the call to the driver's own
    /// behaviour.
    pub fn begin(argument: Argument) -> Result<Call, Reason> {
        match mpu_abi::find(argument.cmd, argument.size) {
            Some(row) => Ok(Call { params: argument.params, row: row.index() as u16 + 1, ..Call::untranslated() }),
            None if mpu_abi::carries_pids(argument.cmd) => Err(Reason::UnknownSize),
            None => Ok(Call::untranslated()),
        }
    }

    /// A call without translation.
    pub const fn untranslated() -> Call {
        Call {
            params: 0,
            inner_address: 0,
            inner_present: [0; MOST_INNER / 64],
            room: 0,
            row: 0,
            params_read: false,
            answered: false,
            inner_answered: false,
            counts_only: false,
        }
    }

    /// Whether MPU translates this call, so that the driver must not.
    pub fn translates(&self) -> bool {
        self.row != 0
    }

    /// The control, if MPU translates the call.
    pub fn control(&self) -> Option<Control> {
        self.row().map(|row| row.control)
    }

    /// Whether the control answers with utilisation samples.
    pub fn samples(&self) -> bool {
        self.row().is_some_and(|row| {
            matches!(row.layout, Layout::Samples(_) | Layout::Embedded { inner: Inner::Samples(_), .. })
        })
    }

    /// The number of PIDs in a query in `bytes`, which the driver has copied from `address` of the caller. The engine provides room for
    /// that many before it calls [`Call::copied_in`]. 0 for other bytes.
    pub fn requested_count(&self, address: u64, bytes: &[u8]) -> usize {
        match self.parameters(address, bytes) {
            Some(row) if !self.params_read => match row.layout {
                Layout::Query(rows) => count_entries(bytes, &rows),
                Layout::QueryOne { .. } => 1,
                _ => 0,
            },
            _ => 0,
        }
    }

    /// Whether the parameters passed [`Call::copying_out`].
    pub fn answered(&self) -> bool {
        self.answered
    }

    /// The driver has copied `bytes` from `address` of its caller, and only the driver can change them now. PIDs in them become the
    /// driver's; the caller's are kept in `requested`, which has room for [`Call::requested_count`] numbers.
    pub fn copied_in(&mut self, address: u64, bytes: &mut [u8], map: &impl PidMap, requested: &mut [u32]) {
        let Some(row) = self.parameters(address, bytes).filter(|_| !self.params_read) else { return };
        self.params_read = true;
        self.read_request(row, bytes, map, requested);
    }

    /// The driver is about to copy `bytes` to `address` of its caller. PIDs in them become the caller's; those of a query come from
    /// `requested`.
    pub fn copying_out(&mut self, address: u64, bytes: &mut [u8], map: &impl PidMap, requested: &[u32]) -> Answer {
        // Only a buffer of samples can have the parameters' size. At their address the driver copies the buffer first.
        let is_samples = self.samples() && !self.inner_answered && self.inner_at(address).is_some();
        if let Some(row) = self.parameters(address, bytes).filter(|_| !is_samples) {
            self.answered = true;
            return self.write_answer(row, bytes, map, requested);
        }
        match self.inner_at(address) {
            Some((control, inner)) => {
                self.inner_answered = true;
                self.write_inner(control, &inner, bytes, map)
            }
            None => Answer::UNTOUCHED,
        }
    }

    fn row(&self) -> Option<&'static Row> {
        RowId::at(usize::from(self.row).checked_sub(1)?).and_then(mpu_abi::row)
    }

    /// The row, if this copy has the parameters' address and size.
    fn parameters(&self, address: u64, bytes: &[u8]) -> Option<&'static Row> {
        self.row().filter(|row| {
            address == self.params && u32::try_from(bytes.len()).is_ok_and(|size| row.params_size == size)
        })
    }

    fn inner_at(&self, address: u64) -> Option<(Control, Inner)> {
        let row = self.row()?;
        match row.layout {
            Layout::Embedded { inner, .. } if self.inner_address != 0 && self.inner_address == address => {
                Some((row.control, inner))
            }
            _ => None,
        }
    }

    fn read_request(&mut self, row: &Row, bytes: &mut [u8], map: &impl PidMap, requested: &mut [u32]) {
        match row.layout {
            Layout::Query(rows) => {
                let count = count_entries(bytes, &rows);
                if let Some(table) = bytes.get_mut(usize::from(rows.first)..) {
                    rewrite_query(table, &rows, count, map, requested);
                }
            }
            Layout::QueryOne { pid, .. } => {
                let pid = usize::from(pid);
                let Some(number) = get_u32(bytes, pid) else { return };
                let Some(place) = requested.first_mut() else {
                    put_u32(bytes, pid, PID_WITHOUT_PROCESS);
                    return;
                };
                *place = number;
                let number = host_number(number, map);
                self.inner_address = number.into();
                put_u32(bytes, pid, number);
            }
            Layout::Embedded { pointer, inner } => self.read_pointer(usize::from(pointer), &inner, bytes),
            Layout::List(rows) if rows.count_is_capacity => self.request_all(&rows, bytes),
            Layout::List(_) | Layout::Samples(_) | Layout::One { .. } => {}
        }
    }

    /// Remembers the address of the inner buffer. The caller must not learn the number of all entries, and its own need not be among the
    /// first ones: if the caller sends a capacity, the driver is asked for all entries.
    fn read_pointer(&mut self, pointer: usize, inner: &Inner, bytes: &mut [u8]) {
        self.inner_address = get_u64(bytes, pointer).unwrap_or(0);
        let Inner::Rows(rows) = inner else { return };
        let (true, Some(room)) = (rows.count_is_capacity, get_u32(bytes, usize::from(rows.count))) else { return };
        // The driver refuses entries without a buffer, and a buffer without entries.
        if (self.inner_address == 0) != (room == 0) {
            return;
        }
        self.request_all(rows, bytes);
        if self.counts_only {
            self.inner_address = UNMAPPED;
            put_u64(bytes, pointer, UNMAPPED);
        }
    }

    /// Requests all entries. The driver refuses a larger count than possible, so that one stays.
    fn request_all(&mut self, rows: &Rows, bytes: &mut [u8]) {
        let count_at = usize::from(rows.count);
        let Some(room) = get_u32(bytes, count_at).filter(|room| *room <= u32::from(rows.capacity)) else { return };
        self.room = room;
        self.counts_only = room == 0;
        put_u32(bytes, count_at, u32::from(rows.capacity));
    }

    fn write_answer(&self, row: &Row, bytes: &mut [u8], map: &impl PidMap, requested: &[u32]) -> Answer {
        let outcome = match row.layout {
            Layout::List(rows) => self.give_list(&rows, bytes, map),
            Layout::Query(rows) => {
                let first = usize::from(rows.first);
                get_u32(bytes, usize::from(rows.count))
                    .zip(bytes.get_mut(first..))
                    .map_or(Outcome::Not(Reason::Malformed), |(count, table)| {
                        restore_query(table, &rows, count, requested)
                    })
            }
            Layout::QueryOne { pid, began } => {
                let pid = usize::from(pid);
                // An answer about another PID than in the request is not the driver's.
                if get_u32(bytes, pid).map(u64::from) != Some(self.inner_address) {
                    return no_record(row.control, bytes);
                }
                return write_record(row.control, pid, usize::from(began), bytes, map, requested);
            }
            Layout::Samples(samples) => match bytes.get_mut(usize::from(samples.first)..) {
                Some(slots) => rewrite_samples(slots, &samples, map),
                None => Outcome::Not(Reason::Malformed),
            },
            Layout::One { pid, count } => rewrite_one(bytes, usize::from(pid), count.map(usize::from), map),
            Layout::Embedded { pointer, inner } => {
                // Counted when the buffer itself was copied.
                self.write_pointer(usize::from(pointer), &inner, bytes);
                return Answer::UNTOUCHED;
            }
        };
        Answer { outcome: Some((row.control, outcome)), copied: Copied::All }
    }

    fn give_list(&self, rows: &Rows, bytes: &mut [u8], map: &impl PidMap) -> Outcome {
        let count_at = usize::from(rows.count);
        let first = usize::from(rows.first);
        let end = first + usize::from(rows.stride) * usize::from(rows.capacity);
        let (Some(count), Some(table)) = (get_u32(bytes, count_at), bytes.get_mut(first..end)) else {
            return Outcome::Not(Reason::Malformed);
        };
        let outcome = rewrite_list(table, rows, count, map);
        let mut kept = if let Outcome::Rewritten { kept, .. } = outcome { kept } else { 0 };
        if self.counts_only || self.room != 0 {
            let room = usize::from(rows.stride) * self.room as usize;
            table.get_mut(room..).unwrap_or_default().fill(0);
        }
        if self.room != 0 {
            kept = kept.min(self.room);
        }
        put_u32(bytes, count_at, kept);
        outcome
    }

    /// Restores the pointer in the parameters of an inner buffer, and sets the count to the caller's own entries.
    fn write_pointer(&self, pointer: usize, inner: &Inner, bytes: &mut [u8]) {
        if self.counts_only {
            put_u64(bytes, pointer, 0);
        }
        let Inner::Rows(rows) = inner else { return };
        let count_at = usize::from(rows.count);
        let Some(count) = get_u32(bytes, count_at) else { return };
        if self.inner_answered {
            let kept = self.count_inner_present(count);
            put_u32(bytes, count_at, if self.room == 0 { kept } else { kept.min(self.room) });
        } else if rows.count_is_capacity && self.inner_address != 0 {
            // The driver had no entry to copy, or its count is unknown: the caller gets none.
            put_u32(bytes, count_at, 0);
        }
    }

    fn write_inner(&mut self, control: Control, inner: &Inner, bytes: &mut [u8], map: &impl PidMap) -> Answer {
        let outcome = match inner {
            Inner::Samples(samples) => rewrite_samples(bytes, samples, map),
            Inner::Rows(rows) => self.write_inner_rows(rows, bytes, map),
        };
        let copied = match inner {
            Inner::Rows(rows) if self.counts_only || self.room != 0 => {
                Copied::First(self.room.saturating_mul(u32::from(rows.stride)).min(bytes.len() as u32))
            }
            _ => Copied::All,
        };
        Answer { outcome: Some((control, outcome)), copied }
    }

    /// The number of entries is in the parameters, which the driver copies later. So every entry of the buffer is translated, and the
    /// visible ones are remembered.
    fn write_inner_rows(&mut self, rows: &Rows, bytes: &mut [u8], map: &impl PidMap) -> Outcome {
        let stride = usize::from(rows.stride.max(1));
        let entries = (bytes.len() / stride).min(MOST_INNER);
        self.inner_present = [0; MOST_INNER / 64];
        for entry in 0..entries {
            let pid = get_u32(bytes, entry * stride + usize::from(rows.pid)).and_then(HostPid::new);
            if let (Some(_), Some(word)) =
                (pid.and_then(|pid| map.view_of(pid)), self.inner_present.get_mut(entry / 64))
            {
                *word |= 1 << (entry % 64);
            }
        }
        if let Some(beyond) = bytes.get_mut(entries * stride..) {
            beyond.fill(0);
        }
        rewrite_list(bytes, &Rows { capacity: MOST_INNER as u16, ..*rows }, entries as u32, map)
    }

    fn count_inner_present(&self, count: u32) -> u32 {
        let mut remaining = count.min(MOST_INNER as u32);
        let mut kept = 0;
        for word in self.inner_present {
            let bits = remaining.min(64);
            let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
            kept += (word & mask).count_ones();
            remaining -= bits;
        }
        kept
    }
}

/// One process's record, under the number in the request. A record that began before that process did belongs to an earlier process
/// with the same number: the driver searches ended processes first (gpu_acct.c, 515.43.04 to 610.43.03).
fn write_record(
    control: Control,
    pid: usize,
    began: usize,
    bytes: &mut [u8],
    map: &impl PidMap,
    requested: &[u32],
) -> Answer {
    let host = get_u32(bytes, pid).and_then(HostPid::new);
    let began = get_u64(bytes, began);
    // Once the process has ended, the record can be an earlier one's, and another process can have its number the next moment.
    let is_foreign = host.is_some_and(|host| {
        map.view_of(host).is_none() || map.started(host).is_none_or(|started| began.is_none_or(|began| began < started))
    });
    let Some(number) = requested.first().filter(|_| !is_foreign) else { return no_record(control, bytes) };
    put_u32(bytes, pid, *number);
    Answer { outcome: Some((control, Outcome::Rewritten { kept: 1, hidden: 0 })), copied: Copied::All }
}

/// Clears a record that the caller may not see.
fn no_record(control: Control, bytes: &mut [u8]) -> Answer {
    bytes.fill(0);
    let outcome = Outcome::Rewritten { kept: 0, hidden: 1 };
    Answer { outcome: Some((control, outcome)), copied: Copied::NoSuchProcess }
}

/// The entries that the caller filled, never more than the table has: the driver refuses a larger count.
fn count_entries(bytes: &[u8], rows: &Rows) -> usize {
    let count = get_u32(bytes, usize::from(rows.count)).unwrap_or(0);
    (count as usize).min(usize::from(rows.capacity))
}

/// Rewrites one PID to the caller's number for it, or to none.
fn rewrite_one(bytes: &mut [u8], pid: usize, count: Option<usize>, map: &impl PidMap) -> Outcome {
    let Some(number) = get_u32(bytes, pid) else { return Outcome::Not(Reason::Malformed) };
    if number == 0 {
        return Outcome::Rewritten { kept: 0, hidden: 0 };
    }
    match HostPid::new(number).and_then(|host| map.view_of(host)) {
        Some(view) => {
            put_u32(bytes, pid, view.get());
            Outcome::Rewritten { kept: 1, hidden: 0 }
        }
        None => {
            put_u32(bytes, pid, 0);
            if let Some(count) = count {
                put_u32(bytes, count, 0);
            }
            Outcome::Rewritten { kept: 0, hidden: 1 }
        }
    }
}
