//! Keeps descriptors beyond the supervisor's life, in the file descriptor store of systemd or of `mpu notify hold`.
//!
//! Both speak the protocol of sd_notify(3) and sd_listen_fds(3). Without either, nothing outlives us, and nothing fails.

use crate::log::say;
use crate::sys;
use rustix::fd::{BorrowedFd, OwnedFd};
use sd_notify::NotifyState;

/// What the supervisor before us left: names and descriptors.
pub(crate) fn inherited() -> Vec<(String, OwnedFd)> {
    let Ok(numbered) = sd_notify::listen_fds_with_names() else { return Vec::new() };
    numbered.map(|(number, name)| (name, sys::inherited(number))).collect()
}

/// Gives a copy away to be kept until it is of no use to anybody.
pub(crate) fn keep(name: &str, fd: BorrowedFd<'_>) {
    give(name, fd, &[NotifyState::FdStore, NotifyState::FdName(name)]);
}

/// The same for one that is of use even when the other side has hung up: what that side sent before may not have been read.
/// Kept until it is forgotten. (`FDPOLL=0` of sd_notify(3), from systemd 246 on.)
pub(crate) fn keep_unread(name: &str, fd: BorrowedFd<'_>) {
    give(name, fd, &[NotifyState::FdStore, NotifyState::FdName(name), NotifyState::Custom("FDPOLL=0")]);
}

fn give(name: &str, fd: BorrowedFd<'_>, words: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify_with_fds(words, &[fd]) {
        say!("{name} will not outlive this supervisor: {error}");
    }
}

/// Has the copies of that name closed.
pub(crate) fn forget(name: &str) {
    let _ = sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
}

/// From now on callers are answered.
pub(crate) fn ready() {
    let _ = sd_notify::notify(&[NotifyState::Ready]);
}
