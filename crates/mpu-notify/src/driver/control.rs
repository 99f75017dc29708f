//! Issues one RM control on the caller's behalf and copies the translated result back. mpu-core translates our copies, which no
//! caller can change.

use crate::bytes::{read_u32, read_u64, write_u32, write_u64};
use crate::caller::accounts;
use crate::caller::memory::CallerMemory;
use crate::caller::process::Look;
use crate::caller::process_cache::ProcessCache;
use crate::caller::view::{Resolved, View};
use crate::driver::file::Driver;
use crate::driver::request::{Disposition, Request};
use crate::driver::table::Table;
use crate::driver::thread_sums::{Entries, add_thread_sums};
use crate::setting::Setting;
use crate::sys::{Answer, BUFFER_SIZE, GuardedBuffer};
use mpu_abi::ioctl::{RM_CONTROL_SIZE, nvos54};
use mpu_abi::{Control, History, Layout, ROWS, Row, RowId, history};
use mpu_core::{Argument, Call, Copied, Outcome, PidMap, Reason};
use std::io;

/// Statuses of the driver (nvstatuscodes.h).
pub(crate) const NV_ERR_INVALID_ADDRESS: u32 = 0x1e;
pub(crate) const NV_ERR_NOT_SUPPORTED: u32 = 0x56;
const NV_ERR_OBJECT_NOT_FOUND: u32 = 0x57;

/// Our memory for the parameters of controls.
pub(crate) struct Scratch {
    pub(crate) params: GuardedBuffer,
    inner: GuardedBuffer,
}

impl Scratch {
    pub(crate) fn new() -> io::Result<Scratch> {
        Ok(Scratch { params: GuardedBuffer::new()?, inner: GuardedBuffer::new()? })
    }
}

/// A control with a known layout.
pub(crate) struct ControlCall<'a> {
    setting: &'a Setting,
    driver: Driver<'a>,
    memory: CallerMemory<'a>,
    row: &'static Row,
    history: &'static History,
    cache: &'a ProcessCache,
    request: Request<RM_CONTROL_SIZE>,
    /// Address and size of the parameters in the caller. Kept here because the driver may overwrite them in `request`.
    params_address: u64,
    size: u32,
}

/// The call's state in mpu-core.
struct CallContext<'a, 'v> {
    call: Call,
    view: Resolved<'a, 'v>,
    /// The caller has the host's view, so nothing is translated.
    exempt: bool,
    /// PIDs in the caller's parameters, before their translation.
    queried_pids: Vec<u32>,
}

/// An end of the call before its whole answer is copied.
enum End {
    /// The driver was called; the caller gets this driver status.
    Status(u32),
    Disposition(Disposition),
}

impl From<Disposition> for End {
    fn from(disposition: Disposition) -> End {
        End::Disposition(disposition)
    }
}

impl<'a> ControlCall<'a> {
    pub(crate) fn new(
        setting: &'a Setting,
        driver: Driver<'a>,
        memory: CallerMemory<'a>,
        (id, request): (RowId, Request<RM_CONTROL_SIZE>),
        cache: &'a ProcessCache,
    ) -> ControlCall<'a> {
        let (params_address, size) = (request.params(), request.size());
        let (row, history) = (&ROWS[id.index()], history(id));
        ControlCall { setting, driver, memory, row, history, cache, request, params_address, size }
    }

    /// Calls the driver and copies its answer, translated by the caller's view, to the caller.
    pub(crate) fn run(mut self, scratch: &mut Scratch, view: View<'_>) -> Result<Answer, Disposition> {
        let result = match self.issue(scratch, view) {
            Ok(result) => result,
            Err(End::Disposition(disposition)) => return Err(disposition),
            Err(End::Status(status)) => {
                self.request.set_status(status);
                Ok(0)
            }
        };
        self.request.restore_address(self.params_address, self.size);
        Ok(Answer::Returned(self.request.write_back(|at, bytes| self.memory.write(at, bytes), result)))
    }

    /// Calls the driver and copies its answer to the caller, except for the argument. Returns the result of the driver's `ioctl`.
    fn issue(&mut self, scratch: &mut Scratch, view: View<'_>) -> Result<Result<i32, i32>, End> {
        let len = self.size as usize;
        let params = scratch.params.bytes(len);
        if self.memory.read(self.params_address, params).is_err() {
            self.setting.counters.pass(Reason::Unreadable);
            return Ok(self.driver.issue_unreadable(&mut self.request.block, &scratch.params)?);
        }
        let has_allocations = self.clear_unused_table(params);
        let mut context = self.begin_call(view)?;
        let caller_table = Table::of(self.row, params).map_or(0, |caller_table| caller_table.caller_address);
        let table = self.prepare_params(&mut context, scratch);
        let sent = scratch.params.bytes(len).to_vec();
        let result = self.driver.issue(&mut self.request.block, &mut scratch.params, len, Some(&mut scratch.inner))?;
        let succeeded = result.is_ok() && self.request.status() == 0;
        // After a failure the driver has copied its answer only if the parameters differ.
        if !succeeded && *scratch.params.bytes(len) == sent {
            return Ok(result);
        }
        if has_allocations {
            return Err(End::Status(NV_ERR_NOT_SUPPORTED));
        }
        if succeeded && !context.exempt {
            self.drop_foreign_records(scratch, &context.view);
        }
        if let Some(table) = &table {
            self.copy_table_out(table, scratch, &mut context)?;
        }
        if succeeded && context.view.threads.queries_by_tid && !context.exempt {
            self.add_thread_sums(scratch);
        }
        self.copy_params_out(
            scratch.params.bytes(len),
            &mut context,
            table.as_ref().map(|table| (table, caller_table)),
        )?;
        Ok(result)
    }

    /// Clears a pointer to a table that MPU does not support, and returns whether it was set. Otherwise the driver would write to the
    /// caller's address in our memory.
    fn clear_unused_table(&self, params: &mut [u8]) -> bool {
        let Some(table) = self.history.unused else { return false };
        let is_requested = read_u64(params, table.pointer.into()) != 0;
        if is_requested {
            write_u32(params, table.count.into(), 0);
            write_u64(params, table.pointer.into(), 0);
        }
        is_requested
    }

    fn begin_call<'v>(&self, view: View<'v>) -> Result<CallContext<'a, 'v>, Disposition> {
        let exempt = matches!(view, View::Host);
        let is_accounting =
            matches!(self.row.control, Control::AccountingPids | Control::AccountingInfo | Control::AccountingInfoV2);
        let view = Resolved {
            threads: self.setting.threads.for_call(self.row.control),
            // The times of an accounting record identify its process.
            driver_users: (!is_accounting).then_some(self.cache),
            look: Look::default(),
            view,
        };
        let argument = Argument { cmd: self.request.cmd(), params: self.params_address, size: self.size };
        let begun = Call::begin(argument);
        let call = begun.map_err(|reason| Disposition::RefusedBecause(libc::EIO, reason))?;
        Ok(CallContext { call, view, exempt, queried_pids: Vec::new() })
    }

    /// Translates the parameters for the driver. Returns the table that the driver is to fill, if any.
    fn prepare_params(&self, context: &mut CallContext<'_, '_>, scratch: &mut Scratch) -> Option<Table> {
        let params = scratch.params.bytes(self.size as usize);
        context.queried_pids = vec![0; context.call.requested_count(self.params_address, params)];
        if !context.exempt {
            context.call.copied_in(self.params_address, params, &context.view, &mut context.queried_pids);
        }
        // mpu-core may request a table that the caller did not request.
        let table = Table::of(self.row, params)?;
        table.prepare(scratch.inner.bytes(table.size_requested()));
        table.point_at(&scratch.inner, params);
        Some(table)
    }

    /// Copies the table to the caller. If that fails, the caller's parameters stay unchanged.
    fn copy_table_out(
        &self,
        table: &Table,
        scratch: &mut Scratch,
        context: &mut CallContext<'_, '_>,
    ) -> Result<(), End> {
        let params = scratch.params.bytes(self.size as usize);
        let mut written = table.answer_size(params, scratch.inner.bytes(table.size_requested()));
        let bytes = &mut scratch.inner.bytes(BUFFER_SIZE)[..written];
        if !context.exempt {
            let copy = context.call.copying_out(table.caller_address, bytes, &context.view, &context.queried_pids);
            self.count(copy.outcome);
            if let Copied::First(first) = copy.copied {
                written = written.min(first as usize);
            }
        }
        if written != 0 && self.memory.write(table.caller_address, &bytes[..written]).is_err() {
            return Err(End::Status(NV_ERR_INVALID_ADDRESS));
        }
        Ok(())
    }

    /// Copies the parameters to the caller, with the caller's own address of the table.
    fn copy_params_out(
        &self,
        params: &mut [u8],
        context: &mut CallContext<'_, '_>,
        table: Option<(&Table, u64)>,
    ) -> Result<(), End> {
        if context.exempt {
            self.setting.counters.pass(Reason::Exempt);
        } else {
            let copy = context.call.copying_out(self.params_address, params, &context.view, &context.queried_pids);
            self.count(copy.outcome);
            if copy.copied == Copied::NoSuchProcess {
                return Err(End::Status(NV_ERR_OBJECT_NOT_FOUND));
            }
        }
        if let Some((table, params_address)) = table {
            table.restore_address(params, params_address);
        }
        self.memory.write(self.params_address, params).map_err(|_| End::Status(NV_ERR_INVALID_ADDRESS))
    }

    /// Removes records of ended processes, whose PIDs were reused, from a list.
    fn drop_foreign_records(&self, scratch: &mut Scratch, view: &impl PidMap) {
        let (Control::AccountingPids, Layout::List(rows)) = (self.row.control, self.row.layout) else { return };
        let params = scratch.params.bytes(self.size as usize);
        let list = params.to_vec();
        let record = |pid| {
            let (mut block, record) = (self.request.block, scratch.inner.bytes(accounts::INFO_BYTES));
            write_u32(&mut block, nvos54::CMD, accounts::GET_INFO.0);
            record.copy_from_slice(&accounts::info_request(&list, pid));
            // The list has no pointer, so `inner` is free.
            let result = self.driver.issue(&mut block, &mut scratch.inner, accounts::INFO_BYTES, None).ok()?;
            let record = scratch.inner.bytes(accounts::INFO_BYTES).try_into().ok();
            record.filter(|_| result.is_ok() && read_u32(&block, nvos54::STATUS) == 0)
        };
        accounts::keep_own_records(params, &rows, |pid| view.view_of(pid).is_some(), record);
    }

    /// Adds the memory of a process's other threads, for drivers that record a client by the thread that made it.
    fn add_thread_sums(&self, scratch: &mut Scratch) {
        let (Layout::Query(rows), Some(entry)) = (self.row.layout, self.history.entry) else { return };
        let (len, inner) = (self.size as usize, &mut scratch.inner);
        add_thread_sums(scratch.params.bytes(len), &Entries { rows, entry }, |request| {
            let mut block = self.request.block;
            inner.bytes(len).copy_from_slice(request);
            // The query has no pointer, so `inner` is free.
            let result = self.driver.issue(&mut block, inner, len, None);
            request.copy_from_slice(inner.bytes(len));
            matches!(result, Ok(Ok(_))) && read_u32(&block, nvos54::STATUS) == 0
        });
    }

    fn count(&self, found: Option<(Control, Outcome)>) {
        if let Some((control, outcome)) = found {
            self.setting.counters.count(control, outcome);
        }
    }
}
