//! Answers one notification: identifies the caller, asks the driver, hands the result back. mpu-core translates, in copies
//! that no caller can change. What came this far never goes on to the driver: the caller could make another call of it.

use crate::caller::memory::CallerMemory;
use crate::caller::namespace::Namespace;
use crate::caller::numbers::Numbers;
use crate::caller::proc_folder::{is_drivers, is_tuners};
use crate::caller::process_cache::ProcessCache;
use crate::caller::rights::Rights;
use crate::caller::thread::{Caller, character_device, is_open};
use crate::caller::view::View;
use crate::driver::control::{Question, Scratch};
use crate::driver::event::Event;
use crate::driver::file::Driver;
use crate::driver::request::{Asked, Disposition, Request, may_be_tuners};
use crate::kernel::Tid;
use crate::setting::Setting;
use crate::sys::{self, Answer, FENCED, seccomp_notif};
use mpu_abi::ioctl::RM_CONTROL_SIZE;
use mpu_core::Reason;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The driver's status for a control that it does not know (nvstatuscodes.h).
const NV_ERR_NOT_SUPPORTED: u32 = 0x56;

/// One thread's means of asking.
pub(crate) struct Asker {
    /// Of the container that it answers.
    held: Arc<ProcessCache>,
    space: Scratch,
    /// Who asked last, and in which namespace: most ask again.
    caller: Option<Caller>,
    namespace: Option<Arc<Namespace>>,
}

impl Asker {
    pub(crate) fn new(held: Arc<ProcessCache>) -> io::Result<Asker> {
        Ok(Asker { held, space: Scratch::new()?, caller: None, namespace: None })
    }

    /// The answer to what [`Asked::by`] found.
    pub(crate) fn answer(
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
    ) -> Result<Answer, Disposition> {
        let still_waits = || sys::still_waits(listener, taken.id);
        let tid = Tid::of(taken);
        let is_known = self.caller.as_mut().is_some_and(|caller| caller.is_still(tid));
        let mut caller = match self.caller.take().filter(|_| is_known) {
            Some(caller) => caller,
            None => Caller::of(tid, self.namespace.as_ref())?,
        };
        // What is looked up by the number is the caller's if it waits even after that.
        if caller.namespace.id() == setting.host.id() && still_waits() {
            return Err(Disposition::Continue);
        }
        let (rights, process) = caller.rights(setting.host_users.0)?;
        let memory = CallerMemory { memory: caller.memory()?, still_waits: &still_waits };
        let number = taken.data.args[0] as i32;
        // Before it is ours: merely closing a file of another kind can take for ever.
        let device = caller.device(number).map_err(no_such_descriptor)?;
        if !is_drivers(device) && !may_be_tuners(taken, device) {
            return Err(Disposition::Refused(caller.refusal(number)));
        }
        let file = caller.file(process, number, still_waits)?;
        if is_tuners(character_device(file.as_fd())) {
            // It goes on, as a tuner knows the request by another name: a caller that puts a descriptor of the driver in its place gets what
            // docs/notify.md says. A node that is not open (`O_PATH`) shows no right to a tuner: anybody may make and name one.
            return Err(if is_open(file.as_fd()) { Disposition::Continue } else { Disposition::Refused(libc::EBADF) });
        }
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
        memory: CallerMemory<'_>,
        asked: Asked,
    ) -> Result<Answer, Disposition> {
        if !is_drivers(character_device(file.as_fd())) {
            // Another one was put in its place meanwhile.
            return Err(Disposition::Refused(libc::ENOTTY));
        }
        let driver = Driver { own: &setting.own, file, caller, rights };
        let held = self.held.clone();
        let view =
            || View::of(&caller.folder, &setting.rules(), Numbers::new(&caller.namespace, setting.lookup(), &held));
        let asked = match asked {
            Asked::Control(asked) => asked,
            Asked::Event(asked) => {
                return Event { setting, driver, memory, held: &held, asked }.fetch(&mut self.space.params, view);
            }
        };
        match mpu_abi::find(asked.cmd(), asked.size()) {
            Some(row) => Question::new(setting, driver, memory, (row, asked), &held).answer(&mut self.space, view()),
            None => self.ask_unknown(setting, &driver, &memory, asked),
        }
    }

    /// A control with PIDs and a size that is no row's. A driver that does not know it either says so; what one that does would answer
    /// cannot be distinguished from other processes' numbers.
    fn ask_unknown(
        &mut self,
        setting: &Setting,
        driver: &Driver<'_>,
        memory: &CallerMemory<'_>,
        mut asked: Request<RM_CONTROL_SIZE>,
    ) -> Result<Answer, Disposition> {
        let (params, size) = (asked.params(), asked.size());
        let len = (size as usize).min(FENCED);
        let readable = memory.read(params, self.space.params.bytes(len)).is_ok();
        // Not a byte of the caller's: there may be pointers among them.
        self.space.params.bytes(len).fill(0);
        let returned = match readable {
            true => driver.ask(&mut asked.block, &mut self.space.params, len, None)?,
            false => driver.ask_unreadable(&mut asked.block, &self.space.params)?,
        };
        if returned.is_ok() && asked.status() == 0 {
            asked.set_status(NV_ERR_NOT_SUPPORTED);
            setting.counters.pass(Reason::UnknownSize);
        }
        asked.put_back(params, size);
        Ok(Answer::Returned(asked.hand_back(|at, bytes| memory.write(at, bytes), returned)))
    }
}

/// Where there is no such descriptor, `/proc` has no such name.
fn no_such_descriptor(error: io::Error) -> Disposition {
    if error.kind() == io::ErrorKind::NotFound { Disposition::Refused(libc::EBADF) } else { error.into() }
}
