//! Calls NVIDIA's driver on a caller's behalf.

pub(crate) mod control;
pub(crate) mod event;
pub(crate) mod file;
pub(crate) mod request;
pub(crate) mod table;
pub(crate) mod thread_sums;
