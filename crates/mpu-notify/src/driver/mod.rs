//! Asks NVIDIA's driver in a caller's place, and knows the layouts of what it answers.

pub(crate) mod accounts;
pub(crate) mod bytes;
pub(crate) mod control;
pub(crate) mod event;
pub(crate) mod file;
pub(crate) mod table;
pub(crate) mod thread_sums;
pub(crate) mod threads;
