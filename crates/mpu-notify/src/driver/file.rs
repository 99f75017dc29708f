//! Calls the driver on the caller's open file and with its rights.
//!
//! The driver accepts a client from the effective user or the process that made it (osValidateClientTokens of os.c, 580.95.05). The
//! supervisor is never that process. So if the driver refuses the caller's user, the call is repeated as each user that the caller may
//! have had when it made the client.

use crate::bytes::read_u32;
use crate::caller::rights::{OwnRights, Rights};
use crate::caller::thread::Caller;
use crate::driver::request::Disposition;
use crate::sys::{self, GuardedBuffer};
use mpu_abi::ioctl::{RM_CONTROL_SIZE, RM_EVENT_SIZE, nvos54};
use mpu_core::Reason;
use rustix::fd::{AsFd, OwnedFd};
use std::io;

/// The driver's status for a client that is not the caller's (nvstatuscodes.h).
const NV_ERR_INVALID_CLIENT: u32 = 0x23;

pub(crate) struct Driver<'a> {
    pub(crate) own: &'a OwnRights,
    pub(crate) file: OwnedFd,
    pub(crate) caller: &'a Caller,
    pub(crate) rights: Rights,
}

impl Driver<'_> {
    /// Issues a control with `size` bytes of parameters, which may point to `inner`. Returns the `ioctl`'s result.
    pub(crate) fn issue(
        &self,
        block: &mut [u8; RM_CONTROL_SIZE],
        params: &mut GuardedBuffer,
        size: usize,
        mut inner: Option<&mut GuardedBuffer>,
    ) -> Result<Result<i32, i32>, Disposition> {
        self.try_possible_users(block, |block| {
            sys::rm_control(self.file.as_fd(), block, params, size, inner.as_deref_mut())
        })
    }

    /// Issues a control with parameters at an unreadable address, of the size in `block`.
    pub(crate) fn issue_unreadable(
        &self,
        block: &mut [u8; RM_CONTROL_SIZE],
        params: &GuardedBuffer,
    ) -> Result<Result<i32, i32>, Disposition> {
        self.try_possible_users(block, |block| sys::rm_control_unreadable(self.file.as_fd(), block, params))
    }

    /// Fetches an event of the open file. The driver checks no client there, so only the caller's user is tried.
    pub(crate) fn fetch(
        &self,
        block: &mut [u8; RM_EVENT_SIZE],
        event: &mut GuardedBuffer,
    ) -> Result<Result<i32, i32>, Disposition> {
        self.with_rights(&self.rights, || sys::rm_event(self.file.as_fd(), block, event))
    }

    fn with_rights(
        &self,
        rights: &Rights,
        call: impl FnOnce() -> io::Result<i32>,
    ) -> Result<Result<i32, i32>, Disposition> {
        let result = self.own.act_as(rights, call);
        let result = result.map_err(|_| Disposition::RefusedBecause(libc::EIO, Reason::Unreadable))?;
        Ok(result.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)))
    }

    fn try_possible_users(
        &self,
        block: &mut [u8; RM_CONTROL_SIZE],
        mut control: impl FnMut(&mut [u8; RM_CONTROL_SIZE]) -> io::Result<i32>,
    ) -> Result<Result<i32, i32>, Disposition> {
        let original = *block;
        let mut with_rights = |rights: &Rights| {
            *block = original;
            let result = self.with_rights(rights, || control(block))?;
            let is_invalid_client = result.is_ok() && read_u32(block, nvos54::STATUS) == NV_ERR_INVALID_CLIENT;
            Ok::<_, Disposition>((result, is_invalid_client))
        };
        let (result, is_invalid_client) = with_rights(&self.rights)?;
        if !is_invalid_client {
            return Ok(result);
        }
        for uid in self.caller.possible_users() {
            let (result, is_invalid_client) = with_rights(&Rights { uid, ..self.rights.clone() })?;
            if !is_invalid_client {
                return Ok(result);
            }
        }
        Ok(with_rights(&self.rights)?.0)
    }
}
