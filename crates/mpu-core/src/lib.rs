//! The translation itself: one call's parameters, a row that says where the PIDs are, and a map between the driver's
//! numbers and the caller's.
//!
//! Knows nothing of ioctls, namespaces, drivers or memory other than the slice it is given: engines fetch bytes, resolve
//! PIDs and store bytes. Never allocates, never panics, never writes outside the slice.
//! Outside truth: docs/contract.md for the behaviour, `mpu-abi` for the layouts.
#![no_std]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod bytes;
mod call;
mod event;
mod lists;
mod pid;
pub mod policy;
mod reason;
mod samples;

pub use call::{Answer, Argument, Call, Copied, Native};
pub use event::event_going_out;
pub use pid::{HostPid, PidMap, ViewPid};
pub use reason::{Outcome, Reason};
