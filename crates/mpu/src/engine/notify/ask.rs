//! One notification, from what the kernel says of the caller to the answer.
//!
//! Owns the order of things: what is asked, who asks, the driver's answer, what the caller gets. Translates nothing itself:
//! mpu-core does, in copies that no caller can change. Whatever is in doubt goes on to the driver untouched.

use super::by_threads::add_up;
use super::caller::{character_device, Caller};
use super::filter::{CONTROL, LOOKED_AT, WRAPPED};
use super::held::Held;
use super::memory::Memory;
use super::namespace::Namespace;
use super::numbers::{Lookup, Numbers};
use super::rights::Own;
use super::sys::{self, seccomp_notif, Answer, Fenced, FENCED};
use super::threads::Threads;
use super::view::{AsMeant, View};
use super::words::{wide, word};
use super::{counters::Counters, Tid};
use mpu_abi::ioctl::{nvos54, xfer, NV_ESC_RM_CONTROL, RM_CONTROL_SIZE, XFER_SIZE};
use mpu_abi::{Control, ControlCmd, Inner, Layout, Row};
use mpu_core::{Argument, Call, Copied, HostPid, Native, Outcome, Reason};
use rustix::fd::{AsFd, BorrowedFd};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

/// `NV_MAJOR_DEVICE_NUMBER`: every node of the driver that takes controls.
const NVIDIA_MAJOR: u32 = 195;

/// Where the parameters of samples say how many bytes the caller has for them (`bufSize` of NV2080_CTRL_GPUMON_SAMPLES, ctrl2080perf.h).
const SAMPLES_BUFFER: usize = 4;

/// A pointer in the parameters of FB_GET_CLIENT_ALLOCATION_INFO beside the one that its row tells of (`pAllocInfo`, ctrl2080fb.h).
const ALLOCATIONS: usize = 8;

/// The driver's status for a client that is not the caller's (nvstatuscodes.h).
const NV_ERR_INVALID_CLIENT: u32 = 0x23;
/// The driver's status for an address that it cannot write to.
const NV_ERR_INVALID_ADDRESS: u32 = 0x1e;
/// The driver's status for a process that it has no record of.
const NV_ERR_OBJECT_NOT_FOUND: u32 = 0x57;

/// What every thread of a supervisor goes by.
pub struct Setting {
    lookup: Lookup,
    host: Namespace,
    /// This process.
    pub(super) pid: HostPid,
    threads: Threads,
    held: Held,
    host_users: (u64, u64),
    own: Own,
    rules: RwLock<Arc<str>>,
    /// Nothing is translated any more.
    pub(super) retired: AtomicBool,
    pub(super) counters: Counters,
}

impl Setting {
    /// That of this host and of this process, which must be root in the host's PID namespace.
    pub fn new(lookup: Lookup, rules: &str) -> io::Result<Setting> {
        Ok(Setting {
            lookup,
            host: Namespace::own()?,
            pid: HostPid::new(std::process::id()).ok_or(io::ErrorKind::InvalidData)?,
            threads: Threads::default(),
            held: Held::default(),
            host_users: super::caller::own_user_namespace()?,
            own: Own::of_now()?,
            rules: RwLock::new(rules.into()),
            retired: AtomicBool::new(false),
            counters: Counters::default(),
        })
    }

    /// Whether the kernel wakes those who wait for a caller when the last one has gone: Linux 6.11, as namespaces that can be asked.
    pub(super) fn wakes_takers(&self) -> bool {
        self.lookup == Lookup::Kernel
    }

    pub(super) fn lookup(&self) -> Lookup {
        self.lookup
    }

    pub(super) fn rules(&self) -> Arc<str> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_rules(&self, rules: &str) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules.into();
    }
}

/// One thread's means of asking.
pub(super) struct Asker {
    params: Fenced,
    inner: Fenced,
}

/// What a caller asks that may carry PIDs, as its memory said when we looked.
pub(super) struct Asked {
    /// Where the argument of the control stands in the caller.
    address: u64,
    block: [u8; RM_CONTROL_SIZE],
}

/// Why a call goes on to the driver as it is.
pub(super) enum Pass {
    /// It is none of ours, or its caller is gone.
    Plain,
    /// It would have been, but.
    Because(Reason),
}

impl Pass {
    /// Counts a call that is passed on.
    pub(super) fn count(self, counters: &Counters) {
        match self {
            Pass::Plain => drop(counters.passed_on.fetch_add(1, Relaxed)),
            Pass::Because(reason) => counters.pass(reason),
        }
    }
}

impl From<io::Error> for Pass {
    fn from(error: io::Error) -> Pass {
        match error.raw_os_error() {
            // The caller ended, or was interrupted and asks again.
            Some(libc::ESRCH | libc::ENOENT | libc::ESTALE) => Pass::Plain,
            // The number is no descriptor: the driver will never see the call.
            Some(libc::EBADF) => Pass::Plain,
            _ => Pass::Because(Reason::OutOfReach),
        }
    }
}

impl Asker {
    pub(super) fn new() -> io::Result<Asker> {
        Ok(Asker { params: Fenced::new()?, inner: Fenced::new()? })
    }

    /// The answer to what [`Asked::by`] found.
    pub(super) fn answer(
        &mut self,
        setting: &Setting,
        listener: BorrowedFd<'_>,
        taken: &seccomp_notif,
        asked: Asked,
    ) -> Answer {
        let counters = &setting.counters;
        counters.inside.fetch_add(1, Relaxed);
        let answer = self.ask(setting, listener, taken, asked);
        counters.inside.fetch_sub(1, Relaxed);
        answer.unwrap_or_else(|pass| {
            pass.count(counters);
            Answer::GoOn
        })
    }

    fn ask(
        &mut self,
        setting: &Setting,
        listener: BorrowedFd<'_>,
        taken: &seccomp_notif,
        mut asked: Asked,
    ) -> Result<Answer, Pass> {
        let still_waits = || sys::still_waits(listener, taken.id);
        let caller = Caller::of(Tid::of(taken))?;
        let namespace = Namespace::new(caller.folder.pid_namespace()?)?;
        let (rights, process) = caller.rights(setting.host_users)?;
        let memory = caller.memory()?;
        let number = taken.data.args[0] as i32;
        // Before it is ours: the mere closing of somebody else's kind of file can take for ever.
        if caller.device(number)?.is_none_or(|(major, _)| major != NVIDIA_MAJOR) {
            return Err(Pass::Plain);
        }
        let file = caller.file(process, number, still_waits)?;
        let memory = Theirs { memory, still_waits: &still_waits };
        // All of it was looked up by the number, which was the caller's if it waits even now.
        if !still_waits() || namespace.id() == setting.host.id() {
            return Err(Pass::Plain);
        }
        if character_device(file.as_fd()).is_none_or(|(major, _)| major != NVIDIA_MAJOR) {
            return Err(Pass::Plain);
        }
        let argument = Argument { cmd: asked.cmd(), params: asked.params(), size: asked.size() };
        let mut call = Call::begin(argument, Native::default()).map_err(Pass::Because)?;
        let row = mpu_abi::find(asked.cmd(), asked.size()).and_then(mpu_abi::row).ok_or(Pass::Plain)?;
        let numbers = Numbers::new(&namespace, setting.lookup, &setting.held);
        let view = View::of(&caller.folder, &setting.rules(), numbers);
        let exempt = matches!(view, View::Host);
        // The driver names whoever asks: that must not be us.
        let names_the_caller = row.control == Control::RcErrorReport;
        if exempt && names_the_caller {
            return Err(Pass::Because(Reason::Exempt));
        }
        let view = AsMeant {
            asker: setting.pid,
            caller: names_the_caller.then_some(process).and_then(host_pid),
            threads: setting.threads.in_call(row.control),
            view,
        };

        let size = asked.size() as usize;
        let params = self.params.bytes(size);
        memory.read(asked.params(), params).map_err(|_| Pass::Because(Reason::Unreadable))?;
        if row.control == Control::FbClientAllocations && wide(params, ALLOCATIONS) != 0 {
            // The driver would write there: an address of the caller's, in our memory.
            return Err(Pass::Because(Reason::OutOfReach));
        }
        let mut numbers = vec![0; call.questions(asked.params(), params)];
        let written = Table::of(row, params);
        if !exempt {
            call.copied_in(asked.params(), params, &view, &mut numbers);
        }
        // The core may want a table that the caller did not ask for.
        let table = Table::of(row, params);
        if let Some(table) = &table {
            self.inner.bytes(FENCED).fill(0);
            params[table.pointer..table.pointer + 8].copy_from_slice(&self.inner.address().to_ne_bytes());
        }
        let before = params.to_vec();

        let theirs = asked.params();
        let (params, inner, block) = (&mut self.params, &mut self.inner, &mut asked.block);
        let control = || sys::rm_control(file.as_fd(), block, params, size, Some(inner));
        let returned = setting.own.act_as(&rights, control).map_err(|_| Pass::Because(Reason::OutOfReach))?;
        let returned = returned.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO));

        if returned.is_ok() && asked.status() == NV_ERR_INVALID_CLIENT {
            // A client is its maker's user's or its maker's process's, and we can only be the caller's user: one who changed users
            // since is known to the driver by its process.
            return Err(Pass::Because(Reason::OutOfReach));
        }
        let params = self.params.bytes(size);
        let succeeded = returned.is_ok() && asked.status() == 0;
        // On failure the driver may or may not have copied its answer: it has if anything is different.
        if succeeded || params != before {
            let count = |found: Option<(Control, Outcome)>| {
                if let Some((control, outcome)) = found {
                    setting.counters.count(control, outcome);
                }
            };
            if let Some(table) = &table {
                let bytes = self.inner.bytes(FENCED);
                let mut len = table.written(params, bytes);
                if !exempt {
                    let answer = call.copying_out(table.theirs, &mut bytes[..len], &view, &numbers);
                    count(answer.outcome);
                    if let Copied::First(first) = answer.copied {
                        len = len.min(first as usize);
                    }
                }
                if len != 0 && memory.write(table.theirs, &bytes[..len]).is_err() {
                    // The parameters stay as they were.
                    return Ok(asked.refused(&memory, theirs, size));
                }
            }
            if succeeded && view.threads.wants && !exempt {
                let mut block = asked.block;
                add_up(params, |question| {
                    self.inner.bytes(size).copy_from_slice(question);
                    // It has no pointers, so that memory is free for another question.
                    let control = || sys::rm_control(file.as_fd(), &mut block, &mut self.inner, size, None);
                    let returned = setting.own.act_as(&rights, control).is_ok_and(|returned| returned.is_ok());
                    question.copy_from_slice(self.inner.bytes(size));
                    returned && word(&block, nvos54::STATUS) == 0
                });
            }
            if exempt {
                setting.counters.pass(Reason::Exempt);
            } else {
                let answer = call.copying_out(theirs, params, &view, &numbers);
                count(answer.outcome);
                if answer.copied == Copied::NoSuchProcess {
                    return Ok(asked.no_such_process(&memory, theirs, size));
                }
            }
            if let Some(table) = &table {
                let theirs = written.as_ref().map_or(0, |written| written.theirs);
                params[table.pointer..table.pointer + 8].copy_from_slice(&theirs.to_ne_bytes());
            }
            if memory.write(theirs, params).is_err() {
                return Ok(asked.refused(&memory, theirs, size));
            }
        }
        asked.put_back(theirs, size);
        Ok(Answer::Returned(asked.hand_back(&memory, returned)))
    }
}

/// The memory of a caller that waits. One that was interrupted may have other things there by now: it is not written to any more.
struct Theirs<'a> {
    memory: Memory,
    still_waits: &'a dyn Fn() -> bool,
}

impl Theirs<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.memory.read(address, bytes)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        if !(self.still_waits)() {
            return Err(rustix::io::Errno::STALE.into());
        }
        self.memory.write(address, bytes)
    }
}

fn host_pid(process: rustix::process::Pid) -> Option<HostPid> {
    HostPid::new(process.as_raw_nonzero().get() as u32)
}

impl Asked {
    /// What the argument in the caller's memory says, if it is a control that may carry PIDs.
    pub(super) fn by(taken: &seccomp_notif) -> Result<Asked, Pass> {
        let [_, request, mut address, ..] = taken.data.args;
        let tid = Tid::of(taken);
        match request as u32 & LOOKED_AT {
            CONTROL => {}
            WRAPPED => {
                let wrapper: [u8; XFER_SIZE] = peek(tid, address)?;
                if word(&wrapper, xfer::CMD) != u32::from(NV_ESC_RM_CONTROL)
                    || word(&wrapper, xfer::SIZE) != RM_CONTROL_SIZE as u32
                {
                    return Err(Pass::Plain);
                }
                address = wide(&wrapper, xfer::PTR);
            }
            _ => return Err(Pass::Plain),
        }
        let asked = Asked { address, block: peek(tid, address)? };
        if mpu_abi::may_carry_pids(asked.cmd()) {
            Ok(asked)
        } else {
            Err(Pass::Plain)
        }
    }

    fn cmd(&self) -> ControlCmd {
        ControlCmd(word(&self.block, nvos54::CMD))
    }

    /// Bytes of parameters.
    fn size(&self) -> u32 {
        word(&self.block, nvos54::PARAMS_SIZE)
    }

    /// Where the parameters stand in the caller.
    fn params(&self) -> u64 {
        wide(&self.block, nvos54::PARAMS)
    }

    fn status(&self) -> u32 {
        word(&self.block, nvos54::STATUS)
    }

    /// Gives the argument back, as the driver does on every way out but one.
    fn hand_back(&self, memory: &Theirs<'_>, returned: Result<i32, i32>) -> Result<i32, i32> {
        if returned == Err(libc::EFAULT) {
            return returned;
        }
        memory.write(self.address, &self.block).map_err(|_| libc::EFAULT).and(returned)
    }

    /// What the driver says when it cannot write an answer where the caller wants it.
    fn refused(&mut self, memory: &Theirs<'_>, params: u64, size: usize) -> Answer {
        self.failed(memory, params, size, NV_ERR_INVALID_ADDRESS)
    }

    /// What the driver says of a process that it does not know.
    fn no_such_process(&mut self, memory: &Theirs<'_>, params: u64, size: usize) -> Answer {
        self.failed(memory, params, size, NV_ERR_OBJECT_NOT_FOUND)
    }

    fn failed(&mut self, memory: &Theirs<'_>, params: u64, size: usize, status: u32) -> Answer {
        self.put_back(params, size);
        self.block[nvos54::STATUS..nvos54::STATUS + 4].copy_from_slice(&status.to_ne_bytes());
        Answer::Returned(self.hand_back(memory, Ok(0)))
    }

    /// The caller's own address again, in the place of ours.
    fn put_back(&mut self, params: u64, size: usize) {
        self.block[nvos54::PARAMS..nvos54::PARAMS + 8].copy_from_slice(&params.to_ne_bytes());
        self.block[nvos54::PARAMS_SIZE..nvos54::PARAMS_SIZE + 4].copy_from_slice(&(size as u32).to_ne_bytes());
    }
}

/// A table behind a pointer in the parameters.
struct Table {
    /// Byte offset of the pointer.
    pointer: usize,
    /// Where it points in the caller.
    theirs: u64,
    inner: Inner,
}

impl Table {
    /// The table that a row has and a caller wants.
    fn of(row: &Row, params: &[u8]) -> Option<Table> {
        let Layout::Embedded { pointer, inner } = row.layout else { return None };
        let pointer = usize::from(pointer);
        let theirs = wide(params, pointer);
        (theirs != 0).then_some(Table { pointer, theirs, inner })
    }

    /// How many bytes the driver's answer has: whole entries, as many as it counts, and any beyond that it wrote to; never more
    /// than the caller has room for, where it says.
    fn written(&self, params: &[u8], bytes: &[u8]) -> usize {
        let last = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        let (counted, stride, room) = match &self.inner {
            Inner::Rows(rows) => {
                let counted = word(params, rows.count.into()).min(rows.capacity.into());
                (counted as usize, usize::from(rows.stride), bytes.len())
            }
            Inner::Samples(samples) => {
                (samples.capacity.into(), usize::from(samples.stride), word(params, SAMPLES_BUFFER) as usize)
            }
        };
        (counted * stride).max(last.next_multiple_of(stride.max(1))).min(room).min(bytes.len())
    }
}

fn peek<const N: usize>(tid: Tid, address: u64) -> Result<[u8; N], Pass> {
    let mut bytes = [0; N];
    match sys::peek(tid, address, &mut bytes) {
        Ok(read) if read == N => Ok(bytes),
        // The caller is gone.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Err(Pass::Plain),
        _ => Err(Pass::Because(Reason::Unreadable)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_fits_into_the_memory_that_the_driver_is_given() {
        for row in mpu_abi::ROWS {
            assert!(row.params_size as usize <= FENCED, "{row:?}");
            let inner = match row.layout {
                Layout::Embedded { inner: Inner::Rows(rows), .. } => {
                    usize::from(rows.stride) * usize::from(rows.capacity)
                }
                Layout::Embedded { inner: Inner::Samples(samples), .. } => {
                    usize::from(samples.stride) * usize::from(samples.capacity)
                }
                _ => 0,
            };
            assert!(inner <= FENCED, "{row:?}");
        }
    }

    #[test]
    fn a_table_is_as_long_as_the_driver_says_or_wrote() {
        let rows = mpu_abi::Rows::new(0, 0, 32, 512, 0);
        let table = Table { pointer: 8, theirs: 1, inner: Inner::Rows(rows) };
        let mut bytes = vec![0u8; FENCED];
        let params = |count: u32| [count.to_ne_bytes(), [0; 4]].concat();
        assert_eq!(table.written(&params(0), &bytes), 0);
        assert_eq!(table.written(&params(3), &bytes), 96);
        assert_eq!(table.written(&params(u32::MAX), &bytes), 512 * 32);
        bytes[200] = 1;
        assert_eq!(table.written(&params(3), &bytes), 224, "whole entries");

        let Some(Row { layout: Layout::Embedded { inner, .. }, params_size, .. }) =
            mpu_abi::ROWS.iter().find(|row| matches!(row.layout, Layout::Embedded { inner: Inner::Samples(_), .. }))
        else {
            panic!("samples have a row")
        };
        let table = Table { pointer: 16, theirs: 1, inner: *inner };
        for room in [0, 1000] {
            let mut params = vec![0; *params_size as usize];
            params[SAMPLES_BUFFER..SAMPLES_BUFFER + 4].copy_from_slice(&u32::to_ne_bytes(room));
            assert_eq!(table.written(&params, &[1; FENCED]), room as usize, "no more than the caller has room for");
        }
    }
}
