//! The driver, asked in a caller's place: on its open file, with its rights.
//!
//! Owns as which user it is asked. A client answers to its maker's effective user or to its maker's process
//! (osValidateClientTokens of os.c, 580.95.05). We are never that process; so where the caller's user is refused, it may be because it
//! was another when it made the client, and is asked again as those that it can have been.

use crate::bytes::word;
use crate::caller::rights::{Own, Rights};
use crate::caller::thread::Caller;
use crate::driver::request::Disposition;
use crate::sys::{self, Fenced};
use mpu_abi::ioctl::{RM_CONTROL_SIZE, RM_EVENT_SIZE, nvos54};
use mpu_core::Reason;
use rustix::fd::{AsFd, OwnedFd};
use std::io;

/// The driver's status for a client that is not the caller's (nvstatuscodes.h).
const NV_ERR_INVALID_CLIENT: u32 = 0x23;

pub(crate) struct Driver<'a> {
    pub(crate) own: &'a Own,
    pub(crate) file: OwnedFd,
    pub(crate) caller: &'a Caller,
    pub(crate) rights: Rights,
}

impl Driver<'_> {
    /// Asks with `size` bytes of parameters, which may point to `inner`. What the `ioctl` returned.
    pub(crate) fn ask(
        &self,
        block: &mut [u8; RM_CONTROL_SIZE],
        params: &mut Fenced,
        size: usize,
        mut inner: Option<&mut Fenced>,
    ) -> Result<Result<i32, i32>, Disposition> {
        self.by_users(block, |block| sys::rm_control(self.file.as_fd(), block, params, size, inner.as_deref_mut()))
    }

    /// Asks with parameters that no process can read or write, of the size that stands in `block`.
    pub(crate) fn ask_unreadable(
        &self,
        block: &mut [u8; RM_CONTROL_SIZE],
        params: &Fenced,
    ) -> Result<Result<i32, i32>, Disposition> {
        self.by_users(block, |block| sys::rm_control_unreadable(self.file.as_fd(), block, params))
    }

    /// Fetches an event that was kept for the open file. The driver looks at no client there, so one user is as good as another.
    pub(crate) fn fetch(
        &self,
        block: &mut [u8; RM_EVENT_SIZE],
        event: &mut Fenced,
    ) -> Result<Result<i32, i32>, Disposition> {
        self.by(&self.rights, || sys::rm_event(self.file.as_fd(), block, event))
    }

    fn by(&self, rights: &Rights, call: impl FnOnce() -> io::Result<i32>) -> Result<Result<i32, i32>, Disposition> {
        let returned = self.own.act_as(rights, call);
        let returned = returned.map_err(|_| Disposition::RefusedBecause(libc::EIO, Reason::Unreadable))?;
        Ok(returned.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)))
    }

    fn by_users(
        &self,
        block: &mut [u8; RM_CONTROL_SIZE],
        mut control: impl FnMut(&mut [u8; RM_CONTROL_SIZE]) -> io::Result<i32>,
    ) -> Result<Result<i32, i32>, Disposition> {
        let question = *block;
        let mut by = |rights: &Rights| {
            *block = question;
            let returned = self.by(rights, || control(block))?;
            let is_strange = returned.is_ok() && word(block, nvos54::STATUS) == NV_ERR_INVALID_CLIENT;
            Ok::<_, Disposition>((returned, is_strange))
        };
        let (returned, is_strange) = by(&self.rights)?;
        if !is_strange {
            return Ok(returned);
        }
        for uid in self.caller.other_users() {
            let (returned, is_strange) = by(&Rights { uid, ..self.rights.clone() })?;
            if !is_strange {
                return Ok(returned);
            }
        }
        Ok(by(&self.rights)?.0)
    }
}
