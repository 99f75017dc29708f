//! A thread's number.
//!
//! Owns in whose numbers it is: those of the host's PID namespace, in which a supervisor is.

/// A thread, as the host's PID namespace numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tid(u32);

impl Tid {
    /// The one that a notification is about: a supervisor gets numbers of its own namespace.
    pub(super) fn of(taken: &libc::seccomp_notif) -> Tid {
        Tid(taken.pid)
    }

    pub(super) fn of_this_thread() -> Tid {
        Tid(rustix::thread::gettid().as_raw_nonzero().get() as u32)
    }

    pub(super) fn get(self) -> u32 {
        self.0
    }
}
