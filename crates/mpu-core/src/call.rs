//! One RM control on its way through the driver: what the driver's own copy of the argument names, what the driver was then seen
//! to copy, and what has to happen to each copy.
//!
//! The engine tells of three moments: the call begins, the driver has copied from its caller, the driver is about to copy
//! to its caller. The order and number of the copies are the driver's. A copy is the parameters if it has their address and their
//! size, as the [`Argument`] names them, and a buffer behind a pointer if it has the address that stood in the driver's own copy of
//! the parameters. No other copy is looked at: a control without a row, and a buffer that no row owns, stay as they are.

use crate::bytes::{get_u32, get_u64, put_u32, put_u64};
use crate::lists::{host_number, restore_query, rewrite_list, rewrite_query};
use crate::pid::{HostPid, PidMap};
use crate::reason::{Outcome, Reason};
use crate::samples::rewrite_samples;
use mpu_abi::{Control, ControlCmd, Inner, Layout, Row, RowId, Rows};

/// Entries behind a pointer that are looked at; those beyond are taken out.
const MOST_INNER: usize = 512;

/// The address that the driver is given for a table that the caller did not ask for: on the page that no process can have
/// (`mmap_min_addr`), so that a copy which does not pass [`Call::copying_out`] faults.
const NOWHERE: u64 = 0x1000 - 8;

/// Which directions of a control the driver translates by itself in this call. Both false is right for an engine that
/// takes the driver's own translation out, or that asks from the init namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Native {
    /// The driver takes the caller's PIDs.
    pub input: bool,
    /// The driver returns the caller's PIDs.
    pub output: bool,
}

/// What the argument of an RM control (NVOS54_PARAMETERS) says of its parameters. Only the driver's own copy of it is to be
/// believed: the caller's can change at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The control's number.
    pub cmd: ControlCmd,
    /// Where the parameters stand in the caller.
    pub params: u64,
    /// Bytes of parameters.
    pub size: u32,
}

/// How much of a copy to the caller may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// All of it.
    All,
    /// So many bytes from its beginning: the caller has no room for more. 0: it asked for none.
    First(u32),
    /// None: the caller gets the answer that there is no such process.
    NoSuchProcess,
}

/// What became of a copy to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// For the counters; `None` where there is nothing to count.
    pub outcome: Option<(Control, Outcome)>,
    /// How much of it the caller gets.
    pub copied: Copied,
}

impl Answer {
    const UNTOUCHED: Answer = Answer { outcome: None, copied: Copied::All };
}

/// The state of one RM control.
#[repr(C)]
pub struct Call {
    /// The caller's parameters.
    params: u64,
    /// The caller's buffer behind the pointer of an embedded layout, as the driver knows it; of a question about one process, the
    /// number that the driver was asked about.
    inner_address: u64,
    /// Which of the inner entries stayed, one bit each.
    inner_kept: [u64; MOST_INNER / 64],
    /// Entries that the caller has room for, where the row has the caller say so and MPU asks for all.
    room: u32,
    /// The row's index plus 1, or 0.
    row: u16,
    native_input: bool,
    native_output: bool,
    /// The parameters were seen on their way from the caller.
    taken: bool,
    /// The parameters were seen on their way to the caller.
    answered: bool,
    /// The inner buffer was seen on its way to the caller.
    inner_answered: bool,
    /// The caller asked for the number of entries alone, and MPU for all of them.
    counts_only: bool,
}

impl Call {
    /// A call with this argument.
    ///
    /// # Errors
    /// [`Reason::UnknownSize`] when the control carries PIDs but no row has this size: the engine then lets the driver do
    /// what it does without MPU.
    pub fn begin(argument: Argument, native: Native) -> Result<Call, Reason> {
        match mpu_abi::find(argument.cmd, argument.size) {
            Some(row) => Ok(Call {
                params: argument.params,
                row: row.index() as u16 + 1,
                native_input: native.input,
                native_output: native.output,
                ..Call::untranslated()
            }),
            None if mpu_abi::carries_pids(argument.cmd) => Err(Reason::UnknownSize),
            None => Ok(Call::untranslated()),
        }
    }

    /// A call that goes by untouched.
    pub const fn untranslated() -> Call {
        Call {
            params: 0,
            inner_address: 0,
            inner_kept: [0; MOST_INNER / 64],
            room: 0,
            row: 0,
            native_input: false,
            native_output: false,
            taken: false,
            answered: false,
            inner_answered: false,
            counts_only: false,
        }
    }

    /// Whether MPU translates this call, so that the driver must not.
    pub fn translates(&self) -> bool {
        self.row != 0
    }

    /// The control, if MPU translates it.
    pub fn control(&self) -> Option<Control> {
        self.row().map(|row| row.control)
    }

    /// Whether the control answers with utilisation samples.
    pub fn samples(&self) -> bool {
        self.row().is_some_and(|row| {
            matches!(row.layout, Layout::Samples(_) | Layout::Embedded { inner: Inner::Samples(_), .. })
        })
    }

    /// How many PIDs the caller asks about in `bytes`, which the driver has copied from `address` of it: the engine provides a
    /// place to remember so many before it calls [`Call::copied_in`]. 0 for bytes that ask nothing.
    pub fn questions(&self, address: u64, bytes: &[u8]) -> usize {
        match self.parameters(address, bytes) {
            Some(row) if !self.native_input && !self.taken => match row.layout {
                Layout::Query(rows) => question_count(bytes, &rows),
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

    /// The driver has copied `bytes` from `address` of its caller, and only the driver can change them any more: PIDs among
    /// them become the driver's, and what the caller wrote is kept in `asked`, which has room for [`Call::questions`] numbers.
    pub fn copied_in(&mut self, address: u64, bytes: &mut [u8], map: &impl PidMap, asked: &mut [u32]) {
        let Some(row) = self.parameters(address, bytes).filter(|_| !self.taken) else { return };
        self.taken = true;
        if !self.native_input {
            self.take_question(row, bytes, map, asked);
        }
    }

    /// The driver is about to copy `bytes` to `address` of its caller: PIDs among them become the caller's, those it asked
    /// about from `asked`.
    pub fn copying_out(&mut self, address: u64, bytes: &mut [u8], map: &impl PidMap, asked: &[u32]) -> Answer {
        if let Some(row) = self.parameters(address, bytes) {
            self.answered = true;
            // The direction that replaced a request's PIDs puts them back.
            let asks = matches!(row.layout, Layout::Query(_) | Layout::QueryOne { .. });
            if if asks { self.native_input } else { self.native_output } {
                return Answer::UNTOUCHED;
            }
            return self.give_answer(row, bytes, map, asked);
        }
        match self.inner_at(address) {
            Some((control, inner)) => {
                self.inner_answered = true;
                self.give_inner(control, &inner, bytes, map)
            }
            None => Answer::UNTOUCHED,
        }
    }

    fn row(&self) -> Option<&'static Row> {
        RowId::at(usize::from(self.row).checked_sub(1)?).and_then(mpu_abi::row)
    }

    /// The row, if this copy is of the parameters. Entries behind a pointer are never of the parameters' size, so a caller that
    /// names the same address for both cannot confuse them.
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

    fn take_question(&mut self, row: &Row, bytes: &mut [u8], map: &impl PidMap, asked: &mut [u32]) {
        match row.layout {
            Layout::Query(rows) => {
                let count = question_count(bytes, &rows);
                if let Some(table) = bytes.get_mut(usize::from(rows.first)..) {
                    rewrite_query(table, &rows, count, map, asked);
                }
            }
            Layout::QueryOne { pid, .. } => {
                let pid = usize::from(pid);
                let Some(number) = get_u32(bytes, pid) else { return };
                let Some(place) = asked.first_mut() else { return ask_about_no_process(pid, bytes) };
                *place = number;
                let number = host_number(number, map);
                self.inner_address = number.into();
                put_u32(bytes, pid, number);
            }
            Layout::Embedded { pointer, inner } => self.take_pointer(usize::from(pointer), &inner, bytes),
            Layout::List(rows) if rows.asks_room => self.ask_for_all(&rows, bytes),
            Layout::List(_) | Layout::Samples(_) | Layout::One { .. } => {}
        }
    }

    /// Remembers where the driver will copy the inner buffer to. The number of all entries is not the caller's to know, and the
    /// first few of all need not be its own: where it says how many it has room for, the driver is asked for all.
    fn take_pointer(&mut self, pointer: usize, inner: &Inner, bytes: &mut [u8]) {
        self.inner_address = get_u64(bytes, pointer).unwrap_or(0);
        let Inner::Rows(rows) = inner else { return };
        let (true, Some(room)) = (rows.asks_room, get_u32(bytes, usize::from(rows.count))) else { return };
        // The driver refuses entries without a buffer, and a buffer without entries.
        if (self.inner_address == 0) != (room == 0) {
            return;
        }
        self.ask_for_all(rows, bytes);
        if self.counts_only {
            self.inner_address = NOWHERE;
            put_u64(bytes, pointer, NOWHERE);
        }
    }

    /// More than there can be is left to the driver, which refuses it.
    fn ask_for_all(&mut self, rows: &Rows, bytes: &mut [u8]) {
        let count_at = usize::from(rows.count);
        let Some(room) = get_u32(bytes, count_at).filter(|room| *room <= u32::from(rows.capacity)) else { return };
        self.room = room;
        self.counts_only = room == 0;
        put_u32(bytes, count_at, u32::from(rows.capacity));
    }

    fn give_answer(&self, row: &Row, bytes: &mut [u8], map: &impl PidMap, asked: &[u32]) -> Answer {
        let outcome = match row.layout {
            Layout::List(rows) => self.give_list(&rows, bytes, map),
            Layout::Query(rows) => {
                let first = usize::from(rows.first);
                get_u32(bytes, usize::from(rows.count))
                    .zip(bytes.get_mut(first..))
                    .map_or(Outcome::Not(Reason::Malformed), |(count, table)| restore_query(table, &rows, count, asked))
            }
            Layout::QueryOne { pid, began } => {
                let pid = usize::from(pid);
                // An answer about another than was asked about is no answer of the driver's.
                if get_u32(bytes, pid).map(u64::from) != Some(self.inner_address) {
                    return no_record(row.control, bytes);
                }
                return give_record(row.control, pid, usize::from(began), bytes, map, asked);
            }
            Layout::Samples(samples) => match bytes.get_mut(usize::from(samples.first)..) {
                Some(slots) => rewrite_samples(slots, &samples, map),
                None => Outcome::Not(Reason::Malformed),
            },
            Layout::One { pid, count } => rewrite_one(bytes, usize::from(pid), count.map(usize::from), map),
            Layout::Embedded { pointer, inner } => {
                // Counted when the buffer itself passed.
                self.give_pointer(usize::from(pointer), &inner, bytes);
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

    /// The parameters beside an inner buffer: the count becomes the caller's own, and the pointer what the caller wrote.
    fn give_pointer(&self, pointer: usize, inner: &Inner, bytes: &mut [u8]) {
        if self.counts_only {
            put_u64(bytes, pointer, 0);
        }
        let Inner::Rows(rows) = inner else { return };
        let count_at = usize::from(rows.count);
        let Some(count) = get_u32(bytes, count_at) else { return };
        if self.inner_answered {
            let kept = self.inner_kept_among(count);
            put_u32(bytes, count_at, if self.room == 0 { kept } else { kept.min(self.room) });
        } else if rows.asks_room && self.inner_address != 0 {
            // The driver had no entry to copy, or did not say which: none that the caller may count.
            put_u32(bytes, count_at, 0);
        }
    }

    fn give_inner(&mut self, control: Control, inner: &Inner, bytes: &mut [u8], map: &impl PidMap) -> Answer {
        let outcome = match inner {
            Inner::Samples(samples) => rewrite_samples(bytes, samples, map),
            Inner::Rows(rows) => self.give_inner_rows(rows, bytes, map),
        };
        let copied = match inner {
            Inner::Rows(rows) if self.counts_only || self.room != 0 => {
                Copied::First(self.room.saturating_mul(u32::from(rows.stride)).min(bytes.len() as u32))
            }
            _ => Copied::All,
        };
        Answer { outcome: Some((control, outcome)), copied }
    }

    /// Only the parameters, which the driver copies later, say how many entries count: every entry of the buffer is
    /// taken as one, and which stayed is remembered.
    fn give_inner_rows(&mut self, rows: &Rows, bytes: &mut [u8], map: &impl PidMap) -> Outcome {
        let stride = usize::from(rows.stride.max(1));
        let entries = (bytes.len() / stride).min(MOST_INNER);
        self.inner_kept = [0; MOST_INNER / 64];
        for entry in 0..entries {
            let pid = get_u32(bytes, entry * stride + usize::from(rows.pid)).and_then(HostPid::new);
            if let (Some(_), Some(word)) = (pid.and_then(|pid| map.view_of(pid)), self.inner_kept.get_mut(entry / 64)) {
                *word |= 1 << (entry % 64);
            }
        }
        if let Some(beyond) = bytes.get_mut(entries * stride..) {
            beyond.fill(0);
        }
        rewrite_list(bytes, &Rows { capacity: MOST_INNER as u16, ..*rows }, entries as u32, map)
    }

    fn inner_kept_among(&self, count: u32) -> u32 {
        let mut left = count.min(MOST_INNER as u32);
        let mut kept = 0;
        for word in self.inner_kept {
            let bits = left.min(64);
            let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
            kept += (word & mask).count_ones();
            left -= bits;
        }
        kept
    }
}

/// One process's record, under the number that the caller asked about. A record that began before that process did is of an
/// earlier process with the same number: the driver looks among the dead first (gpu_acct.c, 515.43.04 to 610.43.03).
fn give_record(
    control: Control,
    pid: usize,
    began: usize,
    bytes: &mut [u8],
    map: &impl PidMap,
    asked: &[u32],
) -> Answer {
    let host = get_u32(bytes, pid).and_then(HostPid::new);
    let is_older = match (get_u64(bytes, began), host.and_then(|host| map.started(host))) {
        (Some(began), Some(started)) => began < started,
        _ => false,
    };
    let Some(number) = asked.first().filter(|_| !is_older) else { return no_record(control, bytes) };
    put_u32(bytes, pid, *number);
    Answer { outcome: Some((control, Outcome::Rewritten { kept: 1, hidden: 0 })), copied: Copied::All }
}

/// Nothing of a record that is not the caller's to see.
fn no_record(control: Control, bytes: &mut [u8]) -> Answer {
    bytes.fill(0);
    let outcome = Outcome::Rewritten { kept: 0, hidden: 1 };
    Answer { outcome: Some((control, outcome)), copied: Copied::NoSuchProcess }
}

fn ask_about_no_process(pid: usize, bytes: &mut [u8]) {
    if let Some(number) = get_u32(bytes, pid) {
        put_u32(bytes, pid, host_number(number, &EmptyView));
    }
}

/// Entries that the caller filled, never more than the table holds: the driver refuses a larger count.
fn question_count(bytes: &[u8], rows: &Rows) -> usize {
    let count = get_u32(bytes, usize::from(rows.count)).unwrap_or(0);
    (count as usize).min(usize::from(rows.capacity))
}

/// The answer names one process: it becomes the caller's number for it, or no process's.
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

/// A view from which no process can be seen.
struct EmptyView;

impl PidMap for EmptyView {
    fn view_of(&self, _: HostPid) -> Option<crate::ViewPid> {
        None
    }
    fn host_of(&self, _: crate::ViewPid) -> Option<HostPid> {
        None
    }
}
