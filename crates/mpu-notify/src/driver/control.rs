//! Issues one RM control on the caller's behalf and copies the translated result back. mpu-core translates, in copies that no
//! caller can change.

use crate::bytes::{put, put_wide, wide, word};
use crate::caller::accounts;
use crate::caller::memory::CallerMemory;
use crate::caller::process::Look;
use crate::caller::process_cache::ProcessCache;
use crate::caller::view::{Resolved, View};
use crate::driver::file::Driver;
use crate::driver::request::{Disposition, Request};
use crate::driver::table::Table;
use crate::driver::thread_sums::{Entries, add_up};
use crate::setting::Setting;
use crate::sys::{Answer, FENCED, Fenced};
use mpu_abi::ioctl::{RM_CONTROL_SIZE, nvos54};
use mpu_abi::{Control, History, Layout, ROWS, Row, RowId, history};
use mpu_core::{Argument, Call, Copied, Native, Outcome, PidMap, Reason};
use std::io;

/// Statuses of the driver (nvstatuscodes.h).
pub(crate) const NV_ERR_INVALID_ADDRESS: u32 = 0x1e;
const NV_ERR_NOT_SUPPORTED: u32 = 0x56;
const NV_ERR_OBJECT_NOT_FOUND: u32 = 0x57;

/// Memory of ours in which the driver is asked.
pub(crate) struct Scratch {
    pub(crate) params: Fenced,
    inner: Fenced,
}

impl Scratch {
    pub(crate) fn new() -> io::Result<Scratch> {
        Ok(Scratch { params: Fenced::new()?, inner: Fenced::new()? })
    }
}

/// A control whose parameters are understood, and what it needs to be asked and answered.
pub(crate) struct Question<'a> {
    setting: &'a Setting,
    driver: Driver<'a>,
    memory: CallerMemory<'a>,
    row: &'static Row,
    history: &'static History,
    held: &'a ProcessCache,
    asked: Request<RM_CONTROL_SIZE>,
    /// Where its parameters stand in the caller, and how many bytes they are. The driver may write to what says so in `asked`.
    theirs: u64,
    size: u32,
}

/// The call as the core sees it.
struct Seen<'a, 'v> {
    call: Call,
    view: Resolved<'a, View<'v>>,
    /// The caller sees what the host sees, so there is nothing to translate.
    exempt: bool,
    /// What the caller asked about, before it was replaced.
    numbers: Vec<u32>,
}

/// What ends a question before all of it is answered.
enum End {
    /// With this status of the driver's, after the driver was asked.
    Status(u32),
    Disposition(Disposition),
}

impl From<Disposition> for End {
    fn from(pass: Disposition) -> End {
        End::Disposition(pass)
    }
}

impl<'a> Question<'a> {
    pub(crate) fn new(
        setting: &'a Setting,
        driver: Driver<'a>,
        memory: CallerMemory<'a>,
        (id, asked): (RowId, Request<RM_CONTROL_SIZE>),
        held: &'a ProcessCache,
    ) -> Question<'a> {
        let (theirs, size) = (asked.params(), asked.size());
        let (row, history) = (&ROWS[id.index()], history(id));
        Question { setting, driver, memory, row, history, held, asked, theirs, size }
    }

    /// Asks the driver and hands its answer to the caller, who has this view.
    pub(crate) fn answer(mut self, space: &mut Scratch, view: View<'_>) -> Result<Answer, Disposition> {
        let returned = match self.ask(space, view) {
            Ok(returned) => returned,
            Err(End::Disposition(pass)) => return Err(pass),
            Err(End::Status(status)) => {
                self.asked.set_status(status);
                Ok(0)
            }
        };
        self.asked.put_back(self.theirs, self.size);
        Ok(Answer::Returned(self.asked.hand_back(|at, bytes| self.memory.write(at, bytes), returned)))
    }

    /// What the driver's `ioctl` returned; its answer is with the caller then, but for the argument itself.
    fn ask(&mut self, space: &mut Scratch, view: View<'_>) -> Result<Result<i32, i32>, End> {
        let len = self.size as usize;
        let params = space.params.bytes(len);
        if self.memory.read(self.theirs, params).is_err() {
            self.setting.counters.pass(Reason::Unreadable);
            return Ok(self.driver.ask_unreadable(&mut self.asked.block, &space.params)?);
        }
        let has_allocations = self.leave_unused_out(params);
        let mut seen = self.seen_by_the_core(view)?;
        let wanted = Table::of(self.row, params).map_or(0, |wanted| wanted.theirs);
        let table = self.put(&mut seen, space);
        let before = space.params.bytes(len).to_vec();
        let returned = self.driver.ask(&mut self.asked.block, &mut space.params, len, Some(&mut space.inner))?;
        let succeeded = returned.is_ok() && self.asked.status() == 0;
        // On failure the driver may or may not have copied its answer: it has if anything is different.
        if !succeeded && *space.params.bytes(len) == before {
            return Ok(returned);
        }
        if has_allocations {
            return Err(End::Status(NV_ERR_NOT_SUPPORTED));
        }
        if succeeded && !seen.exempt {
            self.leave_own_records(space, &seen.view);
        }
        if let Some(table) = &table {
            self.give_table(table, space, &mut seen)?;
        }
        if succeeded && seen.view.threads.wants && !seen.exempt {
            self.add_up(space);
        }
        self.give(space.params.bytes(len), &mut seen, table.as_ref().map(|table| (table, wanted)))?;
        Ok(returned)
    }

    /// Whether the caller wants the table that no driver fills. The driver would write there: an address of the caller's, in our memory.
    fn leave_unused_out(&self, params: &mut [u8]) -> bool {
        let Some(unused) = self.history.unused else { return false };
        let is_wanted = wide(params, unused.pointer.into()) != 0;
        if is_wanted {
            put(params, unused.count.into(), 0);
            put_wide(params, unused.pointer.into(), 0);
        }
        is_wanted
    }

    fn seen_by_the_core<'v>(&self, view: View<'v>) -> Result<Seen<'a, 'v>, Disposition> {
        let exempt = matches!(view, View::Host);
        let is_accounting =
            matches!(self.row.control, Control::AccountingPids | Control::AccountingInfo | Control::AccountingInfoV2);
        let view = Resolved {
            threads: self.setting.threads.in_call(self.row.control),
            // An accounting record's times tell whose it is.
            makers: (!is_accounting).then_some(self.held),
            look: Look::new(),
            view,
        };
        let argument = Argument { cmd: self.asked.cmd(), params: self.theirs, size: self.size };
        let begun = Call::begin(argument, Native::default());
        let call = begun.map_err(|reason| Disposition::RefusedBecause(libc::EIO, reason))?;
        Ok(Seen { call, view, exempt, numbers: Vec::new() })
    }

    /// Makes the parameters those that the driver is to be asked with. The table that the driver fills, if it is to fill one.
    fn put(&self, seen: &mut Seen<'_, '_>, space: &mut Scratch) -> Option<Table> {
        let params = space.params.bytes(self.size as usize);
        seen.numbers = vec![0; seen.call.questions(self.theirs, params)];
        if !seen.exempt {
            seen.call.copied_in(self.theirs, params, &seen.view, &mut seen.numbers);
        }
        // The core may want a table that the caller did not ask for.
        let table = Table::of(self.row, params)?;
        table.blank(space.inner.bytes(table.most()));
        table.point_to(&space.inner, params);
        Some(table)
    }

    /// Hands the table to the caller. If it cannot be written, the parameters stay as they were.
    fn give_table(&self, table: &Table, space: &mut Scratch, seen: &mut Seen<'_, '_>) -> Result<(), End> {
        let params = space.params.bytes(self.size as usize);
        let mut written = table.written(params, space.inner.bytes(table.most()));
        let bytes = &mut space.inner.bytes(FENCED)[..written];
        if !seen.exempt {
            let answer = seen.call.copying_out(table.theirs, bytes, &seen.view, &seen.numbers);
            self.count(answer.outcome);
            if let Copied::First(first) = answer.copied {
                written = written.min(first as usize);
            }
        }
        if written != 0 && self.memory.write(table.theirs, &bytes[..written]).is_err() {
            return Err(End::Status(NV_ERR_INVALID_ADDRESS));
        }
        Ok(())
    }

    /// Hands the parameters to the caller, with its own address of the table.
    fn give(&self, params: &mut [u8], seen: &mut Seen<'_, '_>, table: Option<(&Table, u64)>) -> Result<(), End> {
        if seen.exempt {
            self.setting.counters.pass(Reason::Exempt);
        } else {
            let answer = seen.call.copying_out(self.theirs, params, &seen.view, &seen.numbers);
            self.count(answer.outcome);
            if answer.copied == Copied::NoSuchProcess {
                return Err(End::Status(NV_ERR_OBJECT_NOT_FOUND));
            }
        }
        if let Some((table, theirs)) = table {
            table.put_back(params, theirs);
        }
        self.memory.write(self.theirs, params).map_err(|_| End::Status(NV_ERR_INVALID_ADDRESS))
    }

    /// Takes records of processes that had a number before out of a list of those that have one.
    fn leave_own_records(&self, space: &mut Scratch, view: &impl PidMap) {
        let (Control::AccountingPids, Layout::List(rows)) = (self.row.control, self.row.layout) else { return };
        let params = space.params.bytes(self.size as usize);
        let list = params.to_vec();
        let record = |pid| {
            let (mut block, record) = (self.asked.block, space.inner.bytes(accounts::INFO_BYTES));
            put(&mut block, nvos54::CMD, accounts::GET_INFO.0);
            record.copy_from_slice(&accounts::question(&list, pid));
            // It has no pointers, so that memory is free for another question.
            let returned = self.driver.ask(&mut block, &mut space.inner, accounts::INFO_BYTES, None).ok()?;
            let record = space.inner.bytes(accounts::INFO_BYTES).try_into().ok();
            record.filter(|_| returned.is_ok() && word(&block, nvos54::STATUS) == 0)
        };
        accounts::leave_own(params, &rows, |pid| view.view_of(pid).is_some(), record);
    }

    /// Adds what a process's other threads have, for drivers that know a client by the thread that made it.
    fn add_up(&self, space: &mut Scratch) {
        let (Layout::Query(rows), Some(entry)) = (self.row.layout, self.history.entry) else { return };
        let (len, inner) = (self.size as usize, &mut space.inner);
        add_up(space.params.bytes(len), &Entries { rows, entry }, |question| {
            let mut block = self.asked.block;
            inner.bytes(len).copy_from_slice(question);
            // It has no pointers, so that memory is free for another question.
            let returned = self.driver.ask(&mut block, inner, len, None);
            question.copy_from_slice(inner.bytes(len));
            matches!(returned, Ok(Ok(_))) && word(&block, nvos54::STATUS) == 0
        });
    }

    fn count(&self, found: Option<(Control, Outcome)>) {
        if let Some((control, outcome)) = found {
            self.setting.counters.count(control, outcome);
        }
    }
}
