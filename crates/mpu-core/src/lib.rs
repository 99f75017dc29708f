//! The translation: one call's parameters, a row with the places of PIDs, and a map between the driver's numbers and the caller's.
//!
//! Engines fetch bytes, resolve PIDs and store bytes; this crate only sees slices. It never allocates, panics, or writes outside them.
//! Source: docs/contract.md for the behaviour, `mpu-abi` for the layouts.
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

pub use call::{Answer, Argument, Call, Copied};
pub use event::translate_event;
pub use pid::{HostPid, PidMap, ViewPid};
pub use reason::{Outcome, Reason};
