//! One event of the driver's, fetched in a caller's place.
//!
//! Owns the order of copies, as [`crate::driver::control`] does for a control. The open file keeps the events, and who fetches one takes it
//! away: so the driver is asked once, and not for a caller who waits no more. Translates nothing itself: mpu-core does.
//!
//! Outside truth: `get_os_event_data` (osapi.c) and `nv_get_event` (nv.c) of 595.45.04.

use crate::caller::memory::CallerMemory;
use crate::caller::process::Look;
use crate::caller::process_cache::ProcessCache;
use crate::caller::view::{Resolved, View};
use crate::driver::control::NV_ERR_INVALID_ADDRESS;
use crate::driver::file::Driver;
use crate::driver::request::{Disposition, Request};
use crate::setting::Setting;
use crate::sys::{Answer, Fenced};
use mpu_abi::ioctl::RM_EVENT_SIZE;
use mpu_abi::{Control, event};
use mpu_core::{Reason, event_going_out};

/// An event that a caller fetches, and what it takes to fetch it.
pub(crate) struct Event<'a> {
    pub(crate) setting: &'a Setting,
    pub(crate) driver: Driver<'a>,
    pub(crate) memory: CallerMemory<'a>,
    pub(crate) held: &'a ProcessCache,
    pub(crate) asked: Request<RM_EVENT_SIZE>,
}

impl Event<'_> {
    /// Asks the driver and hands the event to the caller, who has this view. Without an event no view is needed.
    pub(crate) fn fetch<'v>(
        mut self,
        space: &mut Fenced,
        view: impl FnOnce() -> View<'v>,
    ) -> Result<Answer, Disposition> {
        if !(self.memory.still_waits)() {
            return Err(Disposition::Refused(libc::EINTR));
        }
        let theirs = self.asked.event();
        let returned = self.driver.fetch(&mut self.asked.block, space)?;
        self.asked.put_back(theirs);
        if returned.is_ok() && self.asked.status() == 0 {
            let bytes = space.last(event::SIZE);
            self.translate(bytes, view());
            // As the driver does: the event is lost, and the caller gets the error of a wrong address.
            if let Err(error) = self.memory.write(theirs, bytes) {
                if error.raw_os_error() == Some(libc::ESTALE) {
                    // The caller has left.
                    return Err(Disposition::Refused(libc::EINTR));
                }
                self.setting.counters.pass(Reason::Unreadable);
                self.asked.set_status(NV_ERR_INVALID_ADDRESS);
            }
        }
        Ok(Answer::Returned(self.asked.hand_back(|at, bytes| self.memory.write(at, bytes), returned)))
    }

    fn translate(&self, bytes: &mut [u8], view: View<'_>) {
        if matches!(view, View::Host) {
            return self.setting.counters.pass(Reason::Exempt);
        }
        let threads = self.setting.threads.in_call(Control::MemoryLimitEvent);
        let map = Resolved { threads, makers: Some(self.held), look: Look::new(), view };
        if let Some((control, outcome)) = event_going_out(bytes, &map) {
            self.setting.counters.count(control, outcome);
        }
    }
}
