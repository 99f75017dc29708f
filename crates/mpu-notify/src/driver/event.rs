//! Fetches one event of the driver on the caller's behalf and copies it back, translated by mpu-core.
//!
//! A fetch removes the event from the open file. So the driver is called once, and only while the caller waits.
//!
//! Source: `get_os_event_data` (osapi.c) and `nv_get_event` (nv.c) of 595.45.04.

use crate::caller::memory::CallerMemory;
use crate::caller::process::Look;
use crate::caller::process_cache::ProcessCache;
use crate::caller::view::{Resolved, View};
use crate::driver::control::NV_ERR_INVALID_ADDRESS;
use crate::driver::file::Driver;
use crate::driver::request::{Disposition, Request};
use crate::setting::Setting;
use crate::sys::{Answer, GuardedBuffer};
use mpu_abi::ioctl::RM_EVENT_SIZE;
use mpu_abi::{Control, event};
use mpu_core::{Reason, translate_event};

/// A caller's fetch of an event.
pub(crate) struct Event<'a> {
    pub(crate) setting: &'a Setting,
    pub(crate) driver: Driver<'a>,
    pub(crate) memory: CallerMemory<'a>,
    pub(crate) cache: &'a ProcessCache,
    pub(crate) request: Request<RM_EVENT_SIZE>,
}

impl Event<'_> {
    /// Fetches the event and copies it to the caller, translated by its view. Makes no view if there is no event.
    pub(crate) fn fetch<'v>(
        mut self,
        event_buffer: &mut GuardedBuffer,
        view: impl FnOnce() -> View<'v>,
    ) -> Result<Answer, Disposition> {
        if !(self.memory.is_waiting)() {
            return Err(Disposition::Refused(libc::EINTR));
        }
        let event_address = self.request.event();
        let result = self.driver.fetch(&mut self.request.block, event_buffer)?;
        self.request.restore_address(event_address);
        if result.is_ok() && self.request.status() == 0 {
            let bytes = event_buffer.last(event::SIZE);
            self.translate(bytes, view());
            // As with the driver, the event is lost and the caller gets the error of an invalid address.
            if let Err(error) = self.memory.write(event_address, bytes) {
                if error.raw_os_error() == Some(libc::ESTALE) {
                    // The caller was interrupted.
                    return Err(Disposition::Refused(libc::EINTR));
                }
                self.setting.counters.pass(Reason::Unreadable);
                self.request.set_status(NV_ERR_INVALID_ADDRESS);
            }
        }
        Ok(Answer::Returned(self.request.write_back(|at, bytes| self.memory.write(at, bytes), result)))
    }

    fn translate(&self, bytes: &mut [u8], view: View<'_>) {
        if matches!(view, View::Host) {
            return self.setting.counters.pass(Reason::Exempt);
        }
        let threads = self.setting.threads.for_call(Control::MemoryLimitEvent);
        let map = Resolved { threads, driver_users: Some(self.cache), look: Look::default(), view };
        if let Some((control, outcome)) = translate_event(bytes, &map) {
            self.setting.counters.count(control, outcome);
        }
    }
}
