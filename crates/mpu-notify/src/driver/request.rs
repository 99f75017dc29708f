//! Decodes an intercepted ioctl from the caller's memory. Decides which calls continue untranslated.
//!
//! docs/notify.md lists them, and what each can show: a thread of the caller's may put
//! another descriptor or another argument in its place before the kernel reads them again.

use crate::bytes::{put, put_wide, wide, word};
use crate::caller::proc_folder::{is_drivers, is_tuners};
use crate::caller::thread::Caller;
use crate::counters::Counters;
use crate::filter::{CONTROL, EVENT, LOOKED_AT, WRAPPED};
use crate::kernel::Tid;
use crate::sys::{self, Answer, seccomp_notif};
use mpu_abi::ioctl::{RM_CONTROL_SIZE, RM_EVENT_SIZE, XFER_SIZE, nvos41, nvos54, xfer};
use mpu_abi::{Control, ControlCmd};
use mpu_core::Reason;
use std::io;

/// How a call ends that is not translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// The caller makes it itself: it is none of ours.
    Continue,
    /// The same, though it may be.
    ContinueBecause(Reason),
    /// It fails with this `errno`, as it does without us, or the caller is gone.
    Refused(i32),
    /// It fails with this `errno`, for a reason.
    RefusedBecause(i32, Reason),
}

impl Disposition {
    /// Counts the call, and says how it ends.
    pub(crate) fn count(self, counters: &Counters) -> Answer {
        match self {
            Disposition::Continue => counters.pass_on(),
            Disposition::ContinueBecause(reason) | Disposition::RefusedBecause(_, reason) => counters.pass(reason),
            Disposition::Refused(_) => {}
        }
        match self {
            Disposition::Continue | Disposition::ContinueBecause(_) => Answer::GoOn,
            Disposition::Refused(errno) | Disposition::RefusedBecause(errno, _) => Answer::Returned(Err(errno)),
        }
    }
}

/// What could not be had of a caller that asks something with PIDs. Nothing here lets the call go on: a caller can bring most of it about.
impl From<io::Error> for Disposition {
    fn from(error: io::Error) -> Disposition {
        match error.raw_os_error() {
            // The caller ended, or was interrupted and asks again.
            Some(libc::ESRCH | libc::ENOENT | libc::ESTALE) => Disposition::Refused(libc::EINTR),
            Some(libc::EBADF) => Disposition::Refused(libc::EBADF),
            _ => Disposition::RefusedBecause(libc::EIO, Reason::Unreadable),
        }
    }
}

/// What a caller asks that may carry PIDs.
pub(crate) enum Asked {
    Control(Request<RM_CONTROL_SIZE>),
    /// The next event that was kept for an open file.
    Event(Request<RM_EVENT_SIZE>),
}

/// A request by its argument, as the caller's memory said when we looked.
pub(crate) struct Request<const N: usize> {
    /// Where it stands in the caller.
    address: u64,
    pub(crate) block: [u8; N],
}

impl Asked {
    /// What the argument in the caller's memory says, if it is to be translated.
    pub(crate) fn by(taken: &seccomp_notif) -> Result<Asked, Disposition> {
        Asked::read(taken).map_err(|pass| match pass {
            // Most files do not look at what they do not know. It is not given back: it could become the driver's.
            Disposition::RefusedBecause(..) => of_another(taken).unwrap_or(pass),
            pass => pass,
        })
    }

    fn read(taken: &seccomp_notif) -> Result<Asked, Disposition> {
        let [_, request, mut address, ..] = taken.data.args;
        let (tid, mut request) = (Tid::of(taken), request as u32 & LOOKED_AT);
        if request == WRAPPED {
            let wrapper: [u8; XFER_SIZE] = peek(tid, address)?;
            address = wide(&wrapper, xfer::PTR);
            request = wrapped(&wrapper).ok_or(Disposition::Continue)?;
        }
        match request {
            EVENT => Ok(Asked::Event(Request::at(tid, address)?)),
            CONTROL => {
                let control = Request::at(tid, address)?;
                let is_ours = mpu_abi::may_carry_pids(control.cmd()) && !control.is_about_the_asker();
                is_ours.then_some(Asked::Control(control)).ok_or(Disposition::Continue)
            }
            _ => Err(Disposition::Continue),
        }
    }
}

/// The request in a wrapper, if it is one that [`LOOKED_AT`] can hold.
fn wrapped(wrapper: &[u8; XFER_SIZE]) -> Option<u32> {
    let (number, size) = (word(wrapper, xfer::CMD), word(wrapper, xfer::SIZE));
    [CONTROL, EVENT].into_iter().find(|one| one & 0xff == number && one >> 16 == size)
}

impl<const N: usize> Request<N> {
    fn at(tid: Tid, address: u64) -> Result<Request<N>, Disposition> {
        Ok(Request { address, block: peek(tid, address)? })
    }

    /// Gives the argument back, as the driver does on every way out but one.
    pub(crate) fn hand_back(
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
    /// Where the caller wants the event.
    pub(crate) fn event(&self) -> u64 {
        wide(&self.block, nvos41::EVENT)
    }

    pub(crate) fn status(&self) -> u32 {
        word(&self.block, nvos41::STATUS)
    }

    /// Has the driver say something else.
    pub(crate) fn set_status(&mut self, status: u32) {
        put(&mut self.block, nvos41::STATUS, status);
    }

    /// The caller's own address again, in the place of ours.
    pub(crate) fn put_back(&mut self, event: u64) {
        put_wide(&mut self.block, nvos41::EVENT, event);
    }
}

impl Request<RM_CONTROL_SIZE> {
    /// The driver looks for the records of the process that asks, so no other can ask in its place (cliresCtrlCmdNvdGetRcerrRpt_IMPL in
    /// client_resource.c of 580.95.05). The one PID in the answer is the caller's own.
    fn is_about_the_asker(&self) -> bool {
        mpu_abi::ROWS.iter().any(|row| row.cmd == self.cmd() && row.control == Control::RcErrorReport)
    }

    pub(crate) fn cmd(&self) -> ControlCmd {
        ControlCmd(word(&self.block, nvos54::CMD))
    }

    pub(crate) fn size(&self) -> u32 {
        word(&self.block, nvos54::PARAMS_SIZE)
    }

    /// Where the parameters stand in the caller.
    pub(crate) fn params(&self) -> u64 {
        wide(&self.block, nvos54::PARAMS)
    }

    pub(crate) fn status(&self) -> u32 {
        word(&self.block, nvos54::STATUS)
    }

    /// Has the driver say something else.
    pub(crate) fn set_status(&mut self, status: u32) {
        put(&mut self.block, nvos54::STATUS, status);
    }

    /// The caller's own address again, in the place of ours.
    pub(crate) fn put_back(&mut self, params: u64, size: u32) {
        put_wide(&mut self.block, nvos54::PARAMS, params);
        put(&mut self.block, nvos54::PARAMS_SIZE, size);
    }
}

/// How the call ends if it is made on something that is not the driver's.
fn of_another(taken: &seccomp_notif) -> Option<Disposition> {
    let caller = Caller::of(Tid::of(taken), None).ok()?;
    let device = caller.device(taken.data.args[0] as i32).ok().flatten();
    // A tuner looks at it, and cannot read it either.
    let ends = !is_drivers(device) && !may_be_tuners(taken, device);
    ends.then(|| Disposition::Refused(caller.refusal(taken.data.args[0] as i32)))
}

/// Whether a call is one that a tuner knows by another name, on what looks like a tuner.
pub(crate) fn may_be_tuners(taken: &seccomp_notif, device: Option<(u32, u32)>) -> bool {
    is_tuners(device) && taken.data.args[1] as u32 & LOOKED_AT == EVENT
}

fn peek<const N: usize>(tid: Tid, address: u64) -> Result<[u8; N], Disposition> {
    let mut bytes = [0; N];
    match sys::peek(tid, address, &mut bytes) {
        Ok(read) if read == N => Ok(bytes),
        // The caller is gone.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Err(Disposition::Refused(libc::EINTR)),
        // A security module keeps us from every one of its calls; no program can have that done to it at will.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            Err(Disposition::ContinueBecause(Reason::OutOfReach))
        }
        // As the driver does with memory that it cannot read; the kernel could read some that we cannot (`memfd_secret`).
        _ => Err(Disposition::RefusedBecause(libc::EFAULT, Reason::Unreadable)),
    }
}
