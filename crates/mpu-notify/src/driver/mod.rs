//! Asks NVIDIA's driver in a caller's place, and knows the layouts of what it answers.

pub(crate) mod control;
pub(crate) mod event;
pub(crate) mod file;
pub(crate) mod request;
pub(crate) mod table;
pub(crate) mod thread_sums;
