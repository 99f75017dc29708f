//! Answers one notification: identifies the caller, calls the driver, copies the result back. mpu-core translates our copies, which
//! no caller can change. A decoded call does not continue, because the caller could change it meanwhile. Exceptions: a caller in the
//! host's PID namespace, and a TV tuner.

use crate::caller::memory::CallerMemory;
use crate::caller::namespace::Namespace;
use crate::caller::pid_lookup::PidLookup;
use crate::caller::proc_folder::{is_driver_device, is_tuner_device};
use crate::caller::process_cache::ProcessCache;
use crate::caller::rights::Rights;
use crate::caller::thread::{Caller, character_device, is_open};
use crate::caller::view::View;
use crate::driver::control::{ControlCall, NV_ERR_NOT_SUPPORTED, Scratch};
use crate::driver::event::Event;
use crate::driver::file::Driver;
use crate::driver::request::{Disposition, Operation, Request, may_be_tuner_request};
use crate::kernel::Tid;
use crate::setting::Setting;
use crate::sys::{self, Answer, BUFFER_SIZE, seccomp_notif};
use mpu_abi::ioctl::RM_CONTROL_SIZE;
use mpu_core::Reason;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// One worker thread's state for answering notifications.
pub(crate) struct NotificationHandler {
    /// Its container's cache.
    cache: Arc<ProcessCache>,
    scratch: Scratch,
    /// The last caller and its namespace: most callers call again.
    caller: Option<Caller>,
    namespace: Option<Arc<Namespace>>,
}

impl NotificationHandler {
    pub(crate) fn new(cache: Arc<ProcessCache>) -> io::Result<NotificationHandler> {
        Ok(NotificationHandler { cache, scratch: Scratch::new()?, caller: None, namespace: None })
    }

    /// Answers a decoded operation.
    pub(crate) fn answer(
        &mut self,
        setting: &Setting,
        listener: BorrowedFd<'_>,
        notification: &seccomp_notif,
        operation: Operation,
    ) -> Answer {
        let counters = &setting.counters;
        counters.inside.fetch_add(1, Relaxed);
        let answer = self.handle(setting, listener, notification, operation);
        counters.inside.fetch_sub(1, Relaxed);
        answer.unwrap_or_else(|disposition| disposition.count(counters))
    }

    fn handle(
        &mut self,
        setting: &Setting,
        listener: BorrowedFd<'_>,
        notification: &seccomp_notif,
        operation: Operation,
    ) -> Result<Answer, Disposition> {
        let is_waiting = || sys::is_waiting(listener, notification.id);
        let tid = Tid::of(notification);
        let is_same = self.caller.as_mut().is_some_and(|caller| caller.is_same_thread(tid));
        let mut caller = match self.caller.take().filter(|_| is_same) {
            Some(caller) => caller,
            None => Caller::open(tid, self.namespace.as_ref())?,
        };
        // If the caller still waits after a lookup by TID, the lookup found the caller.
        if caller.namespace.id() == setting.host.id() && is_waiting() {
            return Err(Disposition::Continue);
        }
        let (rights, process) = caller.rights(setting.user_namespace.id())?;
        let memory = CallerMemory { memory: caller.memory()?, is_waiting: &is_waiting };
        let number = notification.data.args[0] as i32;
        // Before the descriptor is copied: closing a file of another kind can block for ever.
        let device = caller.device(number).map_err(no_such_descriptor)?;
        if !is_driver_device(device) && !may_be_tuner_request(notification, device) {
            return Err(Disposition::Refused(caller.unknown_ioctl_errno(number)));
        }
        let file = caller.file(process, number, is_waiting)?;
        if is_tuner_device(character_device(file.as_fd())) {
            // A tuner has another request with this number, so the call continues. docs/notify.md describes a caller that replaces the
            // descriptor by the driver's. `O_PATH` proves no right to a tuner: any user may make and name a node.
            return Err(if is_open(file.as_fd()) { Disposition::Continue } else { Disposition::Refused(libc::EBADF) });
        }
        // The caller waited after all lookups by its TID, so all of them found the caller.
        self.namespace = Some(caller.namespace.clone());
        let answer = self.handle_opened(setting, &caller, file, rights, memory, operation);
        self.caller = Some(caller);
        answer
    }

    /// The second part of `handle`, once the caller's file, rights and memory are open.
    fn handle_opened(
        &mut self,
        setting: &Setting,
        caller: &Caller,
        file: OwnedFd,
        rights: Rights,
        memory: CallerMemory<'_>,
        operation: Operation,
    ) -> Result<Answer, Disposition> {
        if !is_driver_device(character_device(file.as_fd())) {
            // The caller has replaced the descriptor.
            return Err(Disposition::Refused(libc::ENOTTY));
        }
        let driver = Driver { own: &setting.own, file, caller, rights };
        let cache = self.cache.clone();
        let view =
            || View::of(&caller.folder, &setting.rules(), PidLookup::new(&caller.namespace, setting.lookup(), &cache));
        let request = match operation {
            Operation::Control(request) => request,
            Operation::Event(request) => {
                return Event { setting, driver, memory, cache: &cache, request }.fetch(&mut self.scratch.params, view);
            }
        };
        match mpu_abi::find(request.cmd(), request.size()) {
            Some(row) => {
                ControlCall::new(setting, driver, memory, (row, request), &cache).run(&mut self.scratch, view())
            }
            None => self.handle_unknown_size(setting, &driver, &memory, request),
        }
    }

    /// Handles a control with PIDs and a size that no row has. If the driver refuses it, the caller gets the driver's error. If the driver
    /// answers it, host PIDs may be at unknown offsets, so the caller gets an error, too.
    fn handle_unknown_size(
        &mut self,
        setting: &Setting,
        driver: &Driver<'_>,
        memory: &CallerMemory<'_>,
        mut request: Request<RM_CONTROL_SIZE>,
    ) -> Result<Answer, Disposition> {
        let (params, size) = (request.params(), request.size());
        let len = (size as usize).min(BUFFER_SIZE);
        let readable = memory.read(params, self.scratch.params.bytes(len)).is_ok();
        // Zeros instead of the caller's bytes, which may have pointers.
        self.scratch.params.bytes(len).fill(0);
        let result = match readable {
            true => driver.issue(&mut request.block, &mut self.scratch.params, len, None)?,
            false => driver.issue_unreadable(&mut request.block, &self.scratch.params)?,
        };
        if result.is_ok() && request.status() == 0 {
            request.set_status(NV_ERR_NOT_SUPPORTED);
            setting.counters.pass(Reason::UnknownSize);
        }
        request.restore_address(params, size);
        Ok(Answer::Returned(request.write_back(|at, bytes| memory.write(at, bytes), result)))
    }
}

/// `/proc` has no entry for a missing descriptor.
fn no_such_descriptor(error: io::Error) -> Disposition {
    if error.kind() == io::ErrorKind::NotFound { Disposition::Refused(libc::EBADF) } else { error.into() }
}
