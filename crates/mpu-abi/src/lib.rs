//! NVIDIA's ABI as data: the ioctl numbers, the argument layouts, and one row for every RM control and layout with a PID. Names are
//! NVIDIA's.
//!
//! The kernel needs the rows only; a row's [`History`] (its releases) is for user space.
//!
//! Source: the open kernel modules, release tags 515.43.04 to 610.43.03 (`src/common/sdk/nvidia/inc/ctrl/`), and for older releases the
//! control tables in the closed kernel objects of 390.157 to 555.58.02.
#![no_std]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod by_release;
mod control;
mod era;
pub mod event;
mod history;
pub mod ioctl;
pub mod pid;
mod release;
mod rows;

pub use by_release::row_of;
pub use control::{ControlCmd, Inner, Layout, Rows, Samples};
pub use era::era;
pub use history::{Entry, History, Pointer, Releases};
pub use release::{ParseReleaseError, Release};
pub use rows::{Control, ROWS, Row, RowId, carries_pids, find, history, may_carry_pids, row};
