//! One seccomp listener: its hand-over, its worker threads, and answers to its notifications.

pub(crate) mod message;
pub(crate) mod notification;
pub(crate) mod take_lock;
pub(crate) mod workers;
