//! Decodes an intercepted ioctl from the caller's memory. Decides which calls continue untranslated.
//!
//! docs/notify.md lists these calls and their risk: another thread of the caller may replace the descriptor or the argument
//! before the kernel reads them again.

use crate::bytes::{read_u32, read_u64, write_u32, write_u64};
use crate::caller::proc_folder::{is_driver_device, is_tuner_device};
use crate::caller::thread::Caller;
use crate::counters::Counters;
use crate::kernel::Tid;
use crate::sys::{self, Answer, seccomp_notif};
use mpu_abi::ioctl::{
    CONTROL, EVENT, REQUEST_MASK, RM_CONTROL_SIZE, RM_EVENT_SIZE, WRAPPED, XFER_SIZE, nvos41, nvos54, xfer,
};
use mpu_abi::{Control, ControlCmd};
use mpu_core::Reason;
use std::io;

/// The end of a call that is not translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// The call has no PIDs and continues.
    Continue,
    /// The call may have PIDs and continues all the same.
    ContinueBecause(Reason),
    /// It fails with the `errno` that the kernel would return, or the caller is gone.
    Refused(i32),
    /// It fails with this `errno` because of us.
    RefusedBecause(i32, Reason),
}

impl Disposition {
    /// Counts the call and returns its answer.
    pub(crate) fn count(self, counters: &Counters) -> Answer {
        match self {
            Disposition::Continue => counters.pass_on(),
            Disposition::ContinueBecause(reason) | Disposition::RefusedBecause(_, reason) => counters.pass(reason),
            Disposition::Refused(_) => {}
        }
        match self {
            Disposition::Continue | Disposition::ContinueBecause(_) => Answer::Continue,
            Disposition::Refused(errno) | Disposition::RefusedBecause(errno, _) => Answer::Returned(Err(errno)),
        }
    }
}

/// A failed read of a caller whose call has PIDs. No such call continues: a caller can cause most of these errors on purpose.
impl From<io::Error> for Disposition {
    fn from(error: io::Error) -> Disposition {
        match error.raw_os_error() {
            // The caller ended, or was interrupted and will repeat the call.
            Some(libc::ESRCH | libc::ENOENT | libc::ESTALE) => Disposition::Refused(libc::EINTR),
            Some(libc::EBADF) => Disposition::Refused(libc::EBADF),
            _ => Disposition::RefusedBecause(libc::EIO, Reason::Unreadable),
        }
    }
}

/// An intercepted call that may carry PIDs.
pub(crate) enum Operation {
    Control(Request<RM_CONTROL_SIZE>),
    /// Fetches the next event of an open file.
    Event(Request<RM_EVENT_SIZE>),
}

/// Our copy of a request's argument.
pub(crate) struct Request<const N: usize> {
    /// Its address in the caller.
    address: u64,
    pub(crate) block: [u8; N],
}

impl Operation {
    /// Decodes the argument in the caller's memory, if the call is to be translated.
    pub(crate) fn decode(notification: &seccomp_notif) -> Result<Operation, Disposition> {
        Operation::read(notification).map_err(|disposition| match disposition {
            // On most other files the call fails anyway. It does not continue: the descriptor could become the driver's meanwhile.
            Disposition::RefusedBecause(..) => disposition_of_other_device(notification).unwrap_or(disposition),
            disposition => disposition,
        })
    }

    fn read(notification: &seccomp_notif) -> Result<Operation, Disposition> {
        let [_, request, mut address, ..] = notification.data.args;
        let (tid, mut request) = (Tid::of(notification), request as u32 & REQUEST_MASK);
        if request == WRAPPED {
            let wrapper: [u8; XFER_SIZE] = read_memory(tid, address)?;
            address = read_u64(&wrapper, xfer::PTR);
            request = wrapped_request(&wrapper).ok_or(Disposition::Continue)?;
        }
        match request {
            EVENT => Ok(Operation::Event(Request::at(tid, address)?)),
            CONTROL => {
                let request = Request::at(tid, address)?;
                let is_translatable = mpu_abi::may_carry_pids(request.cmd()) && !request.concerns_only_caller();
                is_translatable.then_some(Operation::Control(request)).ok_or(Disposition::Continue)
            }
            _ => Err(Disposition::Continue),
        }
    }
}

/// The request in a wrapper, if it is one of ours.
fn wrapped_request(wrapper: &[u8; XFER_SIZE]) -> Option<u32> {
    let (number, size) = (read_u32(wrapper, xfer::CMD), read_u32(wrapper, xfer::SIZE));
    [CONTROL, EVENT].into_iter().find(|one| one & 0xff == number && one >> 16 == size)
}

impl<const N: usize> Request<N> {
    fn at(tid: Tid, address: u64) -> Result<Request<N>, Disposition> {
        Ok(Request { address, block: read_memory(tid, address)? })
    }

    /// Writes the argument back, as the driver does except after `EFAULT`.
    pub(crate) fn write_back(
        &self,
        write: impl Fn(u64, &[u8]) -> io::Result<()>,
        returned: Result<i32, i32>,
    ) -> Result<i32, i32> {
        if returned == Err(libc::EFAULT) {
            return returned;
        }
        write(self.address, &self.block).map_err(|_| libc::EFAULT).and(returned)
    }
}

impl Request<RM_EVENT_SIZE> {
    /// The caller's address for the event.
    pub(crate) fn event(&self) -> u64 {
        read_u64(&self.block, nvos41::EVENT)
    }

    pub(crate) fn status(&self) -> u32 {
        read_u32(&self.block, nvos41::STATUS)
    }

    pub(crate) fn set_status(&mut self, status: u32) {
        write_u32(&mut self.block, nvos41::STATUS, status);
    }

    /// Replaces our address by the caller's.
    pub(crate) fn restore_address(&mut self, event: u64) {
        write_u64(&mut self.block, nvos41::EVENT, event);
    }
}

impl Request<RM_CONTROL_SIZE> {
    /// Whether the driver returns records of the calling process only (cliresCtrlCmdNvdGetRcerrRpt_IMPL in client_resource.c of
    /// 580.95.05). The supervisor cannot make such a call for the caller. The only PID in the answer is the caller's own.
    fn concerns_only_caller(&self) -> bool {
        mpu_abi::ROWS.iter().any(|row| row.cmd == self.cmd() && row.control == Control::RcErrorReport)
    }

    pub(crate) fn cmd(&self) -> ControlCmd {
        ControlCmd(read_u32(&self.block, nvos54::CMD))
    }

    pub(crate) fn size(&self) -> u32 {
        read_u32(&self.block, nvos54::PARAMS_SIZE)
    }

    /// The caller's address of the parameters.
    pub(crate) fn params(&self) -> u64 {
        read_u64(&self.block, nvos54::PARAMS)
    }

    pub(crate) fn status(&self) -> u32 {
        read_u32(&self.block, nvos54::STATUS)
    }

    pub(crate) fn set_status(&mut self, status: u32) {
        write_u32(&mut self.block, nvos54::STATUS, status);
    }

    /// Replaces our address by the caller's.
    pub(crate) fn restore_address(&mut self, params: u64, size: u32) {
        write_u64(&mut self.block, nvos54::PARAMS, params);
        write_u32(&mut self.block, nvos54::PARAMS_SIZE, size);
    }
}

/// The disposition of a call whose descriptor is not the driver's; none if it is, or if the caller is gone.
fn disposition_of_other_device(notification: &seccomp_notif) -> Option<Disposition> {
    let caller = Caller::open(Tid::of(notification), None).ok()?;
    let device = caller.device(notification.data.args[0] as i32).ok().flatten();
    // A tuner handles the request and cannot read the argument either.
    let is_other = !is_driver_device(device) && !may_be_tuner_request(notification, device);
    is_other.then(|| Disposition::Refused(caller.unknown_ioctl_errno(notification.data.args[0] as i32)))
}

/// Whether a call has a tuner's request number, on a descriptor of a tuner.
pub(crate) fn may_be_tuner_request(notification: &seccomp_notif, device: Option<(u32, u32)>) -> bool {
    is_tuner_device(device) && notification.data.args[1] as u32 & REQUEST_MASK == EVENT
}

fn read_memory<const N: usize>(tid: Tid, address: u64) -> Result<[u8; N], Disposition> {
    let mut bytes = [0; N];
    match sys::peek(tid, address, &mut bytes) {
        Ok(read) if read == N => Ok(bytes),
        // The caller is gone.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Err(Disposition::Refused(libc::EINTR)),
        // A security module refuses us its memory. No program can cause that on purpose.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            Err(Disposition::ContinueBecause(Reason::OutOfReach))
        }
        // The driver's error for unreadable memory. The kernel can read some that we cannot (`memfd_secret`).
        _ => Err(Disposition::RefusedBecause(libc::EFAULT, Reason::Unreadable)),
    }
}
