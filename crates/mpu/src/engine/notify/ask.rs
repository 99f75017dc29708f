//! One notification, from what the kernel says of the caller to the answer.
//!
//! Owns the order of things: who asks, the driver's answer, what the caller gets. Translates nothing itself: mpu-core does, in copies
//! that no caller can change. What came this far never goes on to the driver: the caller could make another call of it.

use super::accounts;
use super::asked::{Asked, Pass};
use super::by_threads::add_up;
use super::caller::{character_device, Caller};
use super::counters::Counters;
use super::driver::Driver;
use super::filter::NATIVE;
use super::folder::{field, is_drivers};
use super::held::{Everybody, Held, Look};
use super::memory::Memory;
use super::namespace::Namespace;
use super::numbers::{Lookup, Numbers};
use super::rights::{Own, Rights};
use super::sys::{self, seccomp_data, seccomp_notif, Answer, Fenced, FENCED};
use super::table::Table;
use super::threads::Threads;
use super::tid::Tid;
use super::view::{AsMeant, View};
use super::words::{put, put_wide, wide, word};
use mpu_abi::ioctl::nvos54;
use mpu_abi::{Control, Layout, Row};
use mpu_core::{Argument, Call, Copied, HostPid, Native, Outcome, PidMap, Reason};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

/// `allocCount` and `pAllocInfo` in the parameters of FB_GET_CLIENT_ALLOCATION_INFO (ctrl2080fb.h): a table beside the one that the row
/// tells of, which no release's driver fills.
const ALLOCATION_COUNT: usize = 0;
const ALLOCATIONS: usize = 8;

/// Statuses of the driver (nvstatuscodes.h).
const NV_ERR_INVALID_ADDRESS: u32 = 0x1e;
const NV_ERR_NOT_SUPPORTED: u32 = 0x56;
const NV_ERR_OBJECT_NOT_FOUND: u32 = 0x57;

/// What every thread of a supervisor goes by.
pub struct Setting {
    lookup: Lookup,
    host: Namespace,
    /// This process.
    pub(super) pid: HostPid,
    threads: Threads,
    /// Processes that are held for all containers.
    pub(super) held: Everybody,
    host_users: ((u64, u64), OwnedFd),
    own: Own,
    takes_x32: bool,
    rules: RwLock<Arc<str>>,
    /// Processor time that one container may have of us, in percent of one processor; 0 is no limit.
    pub(super) budget: AtomicU32,
    /// Nothing is translated any more.
    pub(super) retired: AtomicBool,
    pub(super) counters: Counters,
}

impl Setting {
    /// That of this host and of this process, which must be root in the host's PID namespace.
    pub fn new(lookup: Lookup, rules: &str, budget: u32) -> io::Result<Setting> {
        Ok(Setting {
            lookup,
            host: Namespace::own()?,
            pid: HostPid::new(std::process::id()).ok_or(io::ErrorKind::InvalidData)?,
            threads: Threads::default(),
            held: Everybody::default(),
            host_users: super::caller::own_user_namespace()?,
            own: Own::of_now()?,
            takes_x32: takes_x32(),
            rules: RwLock::new(rules.into()),
            budget: AtomicU32::new(budget),
            retired: AtomicBool::new(false),
            counters: Counters::default(),
        })
    }

    /// Whether the kernel wakes those who wait for a caller when the last one has gone: Linux 6.11, as namespaces that can be asked.
    pub(super) fn wakes_takers(&self) -> bool {
        self.lookup == Lookup::Kernel
    }

    /// Whether the kernel has no such system call, though a filter comes before it looks.
    pub(super) fn kernel_lacks(&self, call: &seccomp_data) -> bool {
        call.arch == NATIVE && call.nr & sys::X32 != 0 && !self.takes_x32
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
    /// Of the container that it answers.
    held: Arc<Held>,
    params: Fenced,
    inner: Fenced,
    /// Who asked last, and in which namespace: most ask again.
    caller: Option<Caller>,
    namespace: Option<Arc<Namespace>>,
}

impl Asker {
    pub(super) fn new(held: Arc<Held>) -> io::Result<Asker> {
        Ok(Asker { held, params: Fenced::new()?, inner: Fenced::new()?, caller: None, namespace: None })
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
        answer.unwrap_or_else(|pass| pass.count(counters))
    }

    fn ask(
        &mut self,
        setting: &Setting,
        listener: BorrowedFd<'_>,
        taken: &seccomp_notif,
        asked: Asked,
    ) -> Result<Answer, Pass> {
        let still_waits = || sys::still_waits(listener, taken.id);
        let tid = Tid::of(taken);
        let is_known = self.caller.as_mut().is_some_and(|caller| caller.is_still(tid));
        let mut caller = match self.caller.take().filter(|_| is_known) {
            Some(caller) => caller,
            None => Caller::of(tid, self.namespace.as_ref())?,
        };
        // What is looked up by the number is the caller's if it waits even after that.
        if caller.namespace.id() == setting.host.id() && still_waits() {
            return Err(Pass::On);
        }
        let (rights, process) = caller.rights(setting.host_users.0)?;
        let memory = Theirs { memory: caller.memory()?, still_waits: &still_waits };
        let number = taken.data.args[0] as i32;
        // Before it is ours: the mere closing of somebody else's kind of file can take for ever.
        if !is_drivers(caller.device(number).map_err(no_such_descriptor)?) {
            return Err(Pass::Refused(caller.refusal(number)));
        }
        let file = caller.file(process, number, still_waits)?;
        // The caller waited when all that was opened and looked up by its number was: it is the caller's.
        self.namespace = Some(caller.namespace.clone());
        let answer = self.ask_as(setting, &caller, file, rights, memory, asked);
        self.caller = Some(caller);
        answer
    }

    /// The rest of it, once everything is the caller's.
    fn ask_as(
        &mut self,
        setting: &Setting,
        caller: &Caller,
        file: OwnedFd,
        rights: Rights,
        memory: Theirs<'_>,
        asked: Asked,
    ) -> Result<Answer, Pass> {
        if !is_drivers(character_device(file.as_fd())) {
            // Another one was put in its place meanwhile.
            return Err(Pass::Refused(libc::ENOTTY));
        }
        let driver = Driver { own: &setting.own, file, caller, rights };
        match mpu_abi::find(asked.cmd(), asked.size()).and_then(mpu_abi::row) {
            Some(row) => {
                let held = self.held.clone();
                let numbers = Numbers::new(&caller.namespace, setting.lookup, &held);
                let view = View::of(&caller.folder, &setting.rules(), numbers);
                Question { setting, driver, memory, asked, row, held: &held }.answer(self, view)
            }
            None => self.ask_unknown(setting, &driver, &memory, asked),
        }
    }

    /// A control with PIDs and a size that is no row's. A driver that does not know it either says so; what one that does would answer
    /// cannot be told from other processes' numbers.
    fn ask_unknown(
        &mut self,
        setting: &Setting,
        driver: &Driver<'_>,
        memory: &Theirs<'_>,
        mut asked: Asked,
    ) -> Result<Answer, Pass> {
        let (params, size) = (asked.params(), asked.size());
        let len = (size as usize).min(FENCED);
        let readable = memory.read(params, self.params.bytes(len)).is_ok();
        // Not a byte of the caller's: there may be pointers among them.
        self.params.bytes(len).fill(0);
        let returned = match readable {
            true => driver.ask(&mut asked.block, &mut self.params, len, None)?,
            false => driver.ask_unreadable(&mut asked.block, &self.params)?,
        };
        if returned.is_ok() && asked.status() == 0 {
            asked.set_status(NV_ERR_NOT_SUPPORTED);
            setting.counters.pass(Reason::UnknownSize);
        }
        asked.put_back(params, size);
        Ok(Answer::Returned(asked.hand_back(|at, bytes| memory.write(at, bytes), returned)))
    }
}

/// A control whose parameters are understood, and what it needs to be asked and answered.
struct Question<'a> {
    setting: &'a Setting,
    driver: Driver<'a>,
    memory: Theirs<'a>,
    asked: Asked,
    row: &'static Row,
    held: &'a Held,
}

impl Question<'_> {
    fn answer(mut self, asker: &mut Asker, view: View<'_>) -> Result<Answer, Pass> {
        let (theirs, size) = (self.asked.params(), self.asked.size());
        let len = size as usize;
        let params = asker.params.bytes(len);
        if self.memory.read(theirs, params).is_err() {
            self.setting.counters.pass(Reason::Unreadable);
            let returned = self.driver.ask_unreadable(&mut self.asked.block, &asker.params)?;
            return Ok(self.hand_back(theirs, size, returned));
        }
        let has_allocations = self.row.control == Control::FbClientAllocations && wide(params, ALLOCATIONS) != 0;
        if has_allocations {
            // The driver would write there: an address of the caller's, in our memory.
            put_wide(params, ALLOCATION_COUNT, 0);
            put_wide(params, ALLOCATIONS, 0);
        }
        let exempt = matches!(view, View::Host);
        let is_accounting =
            matches!(self.row.control, Control::AccountingPids | Control::AccountingInfo | Control::AccountingInfoV2);
        let view = AsMeant {
            threads: self.setting.threads.in_call(self.row.control),
            // An accounting record's times tell whose it is.
            makers: (!is_accounting).then_some(self.held),
            look: Look::of_a_call(),
            view,
        };
        let argument = Argument { cmd: self.asked.cmd(), params: theirs, size };
        let begun = Call::begin(argument, Native::default());
        let mut call = begun.map_err(|reason| Pass::RefusedBecause(libc::EIO, reason))?;
        let wanted = Table::of(self.row, params);
        let mut numbers = vec![0; call.questions(theirs, params)];
        if !exempt {
            call.copied_in(theirs, params, &view, &mut numbers);
        }
        // The core may want a table that the caller did not ask for.
        let table = Table::of(self.row, params);
        if let Some(table) = &table {
            table.blank(asker.inner.bytes(table.most()));
            table.point_to(&asker.inner, params);
        }
        let before = params.to_vec();
        let returned = self.driver.ask(&mut self.asked.block, &mut asker.params, len, Some(&mut asker.inner))?;
        let succeeded = returned.is_ok() && self.asked.status() == 0;
        // On failure the driver may or may not have copied its answer: it has if anything is different.
        if !succeeded && *asker.params.bytes(len) == before {
            return Ok(self.hand_back(theirs, size, returned));
        }
        if has_allocations {
            return Ok(self.failed(theirs, size, NV_ERR_NOT_SUPPORTED));
        }
        if succeeded && !exempt {
            self.leave_own_records(asker, &view);
        }
        if let Some(table) = &table {
            let mut written = table.written(asker.params.bytes(len), asker.inner.bytes(table.most()));
            let bytes = &mut asker.inner.bytes(FENCED)[..written];
            if !exempt {
                let answer = call.copying_out(table.theirs, bytes, &view, &numbers);
                self.count(answer.outcome);
                if let Copied::First(first) = answer.copied {
                    written = written.min(first as usize);
                }
            }
            if written != 0 && self.memory.write(table.theirs, &bytes[..written]).is_err() {
                // The parameters stay as they were.
                return Ok(self.failed(theirs, size, NV_ERR_INVALID_ADDRESS));
            }
        }
        if succeeded && view.threads.wants && !exempt {
            self.add_up(asker, len);
        }
        let params = asker.params.bytes(len);
        if exempt {
            self.setting.counters.pass(Reason::Exempt);
        } else {
            let answer = call.copying_out(theirs, params, &view, &numbers);
            self.count(answer.outcome);
            if answer.copied == Copied::NoSuchProcess {
                return Ok(self.failed(theirs, size, NV_ERR_OBJECT_NOT_FOUND));
            }
        }
        if let Some(table) = &table {
            table.put_back(params, wanted.map_or(0, |wanted| wanted.theirs));
        }
        if self.memory.write(theirs, params).is_err() {
            return Ok(self.failed(theirs, size, NV_ERR_INVALID_ADDRESS));
        }
        Ok(self.hand_back(theirs, size, returned))
    }

    /// Takes records of processes that had a number before out of a list of those that have one.
    fn leave_own_records(&self, asker: &mut Asker, view: &impl PidMap) {
        let (Control::AccountingPids, Layout::List(rows)) = (self.row.control, self.row.layout) else { return };
        let params = asker.params.bytes(self.asked.size() as usize);
        let list = params.to_vec();
        let record = |pid| {
            let (mut block, record) = (self.asked.block, asker.inner.bytes(accounts::INFO_BYTES));
            put(&mut block, nvos54::CMD, accounts::GET_INFO.0);
            record.copy_from_slice(&accounts::question(&list, pid));
            // It has no pointers, so that memory is free for another question.
            let returned = self.driver.ask(&mut block, &mut asker.inner, accounts::INFO_BYTES, None).ok()?;
            let record = asker.inner.bytes(accounts::INFO_BYTES).try_into().ok();
            record.filter(|_| returned.is_ok() && word(&block, nvos54::STATUS) == 0)
        };
        accounts::leave_own(params, &rows, |pid| view.view_of(pid).is_some(), record);
    }

    /// Adds what a process's other threads have, for drivers that know a client by the thread that made it.
    fn add_up(&self, asker: &mut Asker, len: usize) {
        let inner = &mut asker.inner;
        add_up(asker.params.bytes(len), |question| {
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

    /// The driver's refusal, after it was asked.
    fn failed(&mut self, params: u64, size: u32, status: u32) -> Answer {
        self.asked.set_status(status);
        self.hand_back(params, size, Ok(0))
    }

    fn hand_back(&mut self, params: u64, size: u32, returned: Result<i32, i32>) -> Answer {
        self.asked.put_back(params, size);
        Answer::Returned(self.asked.hand_back(|at, bytes| self.memory.write(at, bytes), returned))
    }
}

/// Whether the kernel takes system calls of the x32 kind, as far as that can be known: the unit's `SystemCallArchitectures=` kills whoever tries.
/// Where it cannot, a call of that kind is taken for one.
fn takes_x32() -> bool {
    let is_filtered = |status: &str| field(status, "Seccomp") != Some("0");
    match std::fs::read_to_string("/proc/self/status") {
        Ok(status) if !is_filtered(&status) => sys::takes_x32(),
        // Debian's kernels tell (`syscall.x32`).
        _ => std::fs::read_to_string("/sys/module/syscall/parameters/x32").map_or(true, |told| told.trim() != "N"),
    }
}

/// Where there is no such descriptor, `/proc` has no such name.
fn no_such_descriptor(error: io::Error) -> Pass {
    if error.kind() == io::ErrorKind::NotFound {
        Pass::Refused(libc::EBADF)
    } else {
        error.into()
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
