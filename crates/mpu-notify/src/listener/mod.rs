//! What one seccomp listener hands over: notifications, from the filter that makes them to the answer.

pub(crate) mod message;
pub(crate) mod notification;
pub(crate) mod take_lock;
pub(crate) mod workers;
