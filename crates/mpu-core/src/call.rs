//! One RM control on its way through the driver: what the caller claimed, what the driver was then seen to copy, and what
//! has to happen to each copy.
//!
//! The engine tells of three moments: the call begins, the driver has copied from its caller, the driver is about to copy
//! to its caller. The order and number of the copies are the driver's. Nothing that the caller can still change decides
//! what a large table is: from [`mpu_abi::find_by_size`]'s sizes up, the size of the driver's own copy does.

use crate::bytes::{get_u32, get_u64, put_u32};
use crate::lists::{host_number, restore_query, rewrite_list, rewrite_query};
use crate::pid::{HostPid, PidMap, ViewPid};
use crate::reason::{Outcome, Reason};
use crate::samples::rewrite_samples;
use mpu_abi::{Control, ControlCmd, Inner, Layout, Row, RowId, Rows};

/// Entries behind a pointer that are told apart; those beyond are taken out.
const MOST_INNER: usize = 512;

/// Which directions of a control the driver translates by itself in this call. Both false is right for an engine that
/// takes the driver's own translation out, or that asks from the init namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Native {
    /// The driver takes the caller's PIDs.
    pub input: bool,
    /// The driver returns the caller's PIDs.
    pub output: bool,
}

/// The state of one RM control.
#[repr(C)]
pub struct Call {
    /// The caller's buffer behind the pointer of an embedded layout, as the driver knows it.
    inner_address: u64,
    /// Which of the inner entries stayed, one bit each.
    inner_kept: [u64; MOST_INNER / 64],
    /// The claimed row's index plus 1, or 0.
    claimed: u16,
    native_input: bool,
    native_output: bool,
    /// The driver's own copies go by untouched.
    passed: bool,
    /// The parameters were seen on their way to the caller.
    answered: bool,
    /// The inner buffer was seen on its way to the caller.
    inner_answered: bool,
}

/// What stands behind a copy of this many bytes.
enum Match {
    /// The parameters of the control that the caller claimed.
    Claimed(&'static Row),
    /// The parameters of a control that the caller did not claim: the argument changed in between.
    Changed(&'static Row),
}

impl Call {
    /// A call of `cmd` with `params_size` bytes of parameters, as the caller's argument claims.
    ///
    /// # Errors
    /// [`Reason::UnknownSize`] when the control carries PIDs but no row has this size: the engine then lets the driver do
    /// what it does without MPU, and still calls [`Call::copied_in`] and [`Call::copying_out`] on [`Call::unclaimed`].
    pub fn begin(cmd: ControlCmd, params_size: u32, native: Native) -> Result<Call, Reason> {
        match mpu_abi::find(cmd, params_size) {
            Some(row) => Ok(Call {
                claimed: row.index() as u16 + 1,
                native_input: native.input,
                native_output: native.output,
                ..Call::unclaimed()
            }),
            None if mpu_abi::carries_pids(cmd) => Err(Reason::UnknownSize),
            None => Ok(Call::unclaimed()),
        }
    }

    /// A call that claims no PID-bearing control.
    pub const fn unclaimed() -> Call {
        Call {
            inner_address: 0,
            inner_kept: [0; MOST_INNER / 64],
            claimed: 0,
            native_input: false,
            native_output: false,
            passed: false,
            answered: false,
            inner_answered: false,
        }
    }

    /// A call that goes by untouched, whatever the driver copies: for an engine that has no memory to keep the questions.
    pub const fn passed() -> Call {
        Call { passed: true, ..Call::unclaimed() }
    }

    /// Whether MPU translates this call, so that the driver must not.
    pub fn translates(&self) -> bool {
        self.claimed != 0
    }

    /// How many PIDs the caller asks about in `bytes`, which the driver has copied from it: the engine provides a place to
    /// remember so many before it calls [`Call::copied_in`]. 0 for bytes that ask nothing.
    pub fn questions(&self, bytes: &[u8]) -> usize {
        match self.whose(bytes.len()) {
            Some(Match::Claimed(row)) if !self.native_input => match row.layout {
                Layout::Query(rows) => question_count(bytes, &rows),
                Layout::QueryOne { .. } => 1,
                _ => 0,
            },
            _ => 0,
        }
    }

    /// Whether copies of this call are below [`mpu_abi::SMALLEST_TELLING_SIZE`], or of any size behind a pointer.
    pub fn is_small(&self) -> bool {
        self.row().is_some_and(|row| row.params_size < mpu_abi::SMALLEST_TELLING_SIZE)
    }

    /// Whether the claimed control's parameters passed [`Call::copying_out`].
    pub fn answered(&self) -> bool {
        self.answered
    }

    /// The driver has copied `bytes` from its caller and nobody but the driver can change them any more: PIDs among them
    /// become the driver's, and what the caller wrote is kept in `asked`, which has room for [`Call::questions`] numbers.
    pub fn copied_in(&mut self, bytes: &mut [u8], map: &impl PidMap, asked: &mut [u32]) {
        match self.whose(bytes.len()) {
            None => {}
            Some(Match::Claimed(row)) if !self.native_input => self.take_question(row, bytes, map, asked),
            Some(Match::Claimed(_)) => {}
            Some(Match::Changed(row)) => Call::unclaimed().take_question(row, bytes, &Nobody, &mut []),
        }
    }

    /// The driver is about to copy `bytes` to `address` of its caller: PIDs among them become the caller's, those it asked
    /// about from `asked`. `None` if there are none.
    pub fn copying_out(
        &mut self,
        address: u64,
        bytes: &mut [u8],
        map: &impl PidMap,
        asked: &[u32],
    ) -> Option<(Control, Outcome)> {
        if let Some((control, inner)) = self.inner_at(address) {
            let outcome = self.give_inner(&inner, bytes, map);
            self.inner_answered = true;
            return Some((control, outcome));
        }
        match self.whose(bytes.len())? {
            Match::Claimed(row) => {
                self.answered = true;
                // A question's PIDs are put back by whoever replaced them.
                let asks = matches!(row.layout, Layout::Query(_) | Layout::QueryOne { .. });
                if if asks { self.native_input } else { self.native_output } {
                    return None;
                }
                Some((row.control, self.give_answer(row, bytes, map, asked)?))
            }
            Match::Changed(row) => {
                Call::unclaimed().give_answer(row, bytes, &Nobody, &[]);
                Some((row.control, Outcome::Not(Reason::ArgumentChanged)))
            }
        }
    }

    fn row(&self) -> Option<&'static Row> {
        RowId::at(usize::from(self.claimed).checked_sub(1)?).and_then(mpu_abi::row)
    }

    fn whose(&self, len: usize) -> Option<Match> {
        let size = u32::try_from(len).ok().filter(|_| !self.passed)?;
        if let Some(row) = self.row().filter(|row| row.params_size == size) {
            return Some(Match::Claimed(row));
        }
        mpu_abi::find_by_size(size).and_then(mpu_abi::row).map(Match::Changed)
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
            Layout::QueryOne { pid } => {
                let (Some(place), Some(number)) = (asked.first_mut(), get_u32(bytes, usize::from(pid))) else { return };
                *place = number;
                put_u32(bytes, usize::from(pid), host_number(number, map));
            }
            Layout::Embedded { pointer, .. } => {
                self.inner_address = get_u64(bytes, usize::from(pointer)).unwrap_or(0);
            }
            Layout::List(_) | Layout::Samples(_) | Layout::One { .. } => {}
        }
    }

    fn give_answer(&self, row: &Row, bytes: &mut [u8], map: &impl PidMap, asked: &[u32]) -> Option<Outcome> {
        match row.layout {
            Layout::List(rows) => {
                let count = get_u32(bytes, usize::from(rows.count))?;
                let table = bytes.get_mut(usize::from(rows.first)..)?;
                let table = table.get_mut(..usize::from(rows.stride) * usize::from(rows.capacity))?;
                let outcome = rewrite_list(table, &rows, count, map);
                if let Outcome::Rewritten { kept, .. } = outcome {
                    put_u32(bytes, usize::from(rows.count), kept);
                }
                Some(outcome)
            }
            Layout::Query(rows) => {
                let count = get_u32(bytes, usize::from(rows.count))?;
                let table = bytes.get_mut(usize::from(rows.first)..)?;
                Some(restore_query(table, &rows, count, asked))
            }
            Layout::QueryOne { pid } => match asked.first() {
                Some(number) => {
                    put_u32(bytes, usize::from(pid), *number)?;
                    Some(Outcome::Rewritten { kept: 1, hidden: 0 })
                }
                None => {
                    bytes.fill(0);
                    Some(Outcome::Not(Reason::ArgumentChanged))
                }
            },
            Layout::Samples(samples) => {
                Some(rewrite_samples(bytes.get_mut(usize::from(samples.first)..)?, &samples, map))
            }
            Layout::One { pid, count } => Some(rewrite_one(bytes, usize::from(pid), count.map(usize::from), map)),
            Layout::Embedded { inner: Inner::Rows(rows), .. } if self.inner_answered => {
                let count = get_u32(bytes, usize::from(rows.count))?;
                let kept = self.inner_kept_among(count);
                put_u32(bytes, usize::from(rows.count), kept)?;
                // Counted when the buffer itself passed.
                None
            }
            Layout::Embedded { .. } => None,
        }
    }

    fn give_inner(&mut self, inner: &Inner, bytes: &mut [u8], map: &impl PidMap) -> Outcome {
        match inner {
            Inner::Samples(samples) => rewrite_samples(bytes, samples, map),
            Inner::Rows(rows) => self.give_inner_rows(rows, bytes, map),
        }
    }

    /// How many entries count is told only by the parameters, which the driver copies later: every entry of the buffer is
    /// taken as one, and which stayed is remembered.
    fn give_inner_rows(&mut self, rows: &Rows, bytes: &mut [u8], map: &impl PidMap) -> Outcome {
        let stride = usize::from(rows.stride.max(1));
        let entries = (bytes.len() / stride).min(MOST_INNER);
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

/// Entries that the caller filled, never more than the table holds: the driver refuses a larger count.
fn question_count(bytes: &[u8], rows: &Rows) -> usize {
    let count = get_u32(bytes, usize::from(rows.count)).unwrap_or(0);
    (count as usize).min(usize::from(rows.capacity))
}

/// The answer names one process: it becomes the caller's number for it, or nobody's.
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
struct Nobody;

impl PidMap for Nobody {
    fn view_of(&self, _: HostPid) -> Option<ViewPid> {
        None
    }
    fn host_of(&self, _: ViewPid) -> Option<HostPid> {
        None
    }
}
