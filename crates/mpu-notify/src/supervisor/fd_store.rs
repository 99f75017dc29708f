//! Stores the supervisor's descriptors in the file descriptor store of systemd or of `mpu notify hold`, so that they survive its end.
//!
//! Both use the protocol of sd_notify(3) and sd_listen_fds(3). Without either, nothing is stored and nothing fails.

use crate::log::log;
use crate::sys;
use rustix::fd::{BorrowedFd, OwnedFd};
use sd_notify::NotifyState;

/// Names and descriptors that the previous supervisor stored.
pub(crate) fn inherited() -> Vec<(String, OwnedFd)> {
    let Ok(numbered) = sd_notify::listen_fds_with_names() else { return Vec::new() };
    numbered.filter_map(|(number, name)| Some((name, sys::inherited(number).ok()?))).collect()
}

/// Stores a copy until its other side hangs up.
pub(crate) fn keep(name: &str, fd: BorrowedFd<'_>) {
    store(name, fd, &[NotifyState::FdStore, NotifyState::FdName(name)]);
}

/// Stores a copy until [`forget`], even if its other side hangs up: it may hold an unread message. (`FDPOLL=0` of sd_notify(3), from
/// systemd 246 on.)
pub(crate) fn keep_unread(name: &str, fd: BorrowedFd<'_>) {
    store(name, fd, &[NotifyState::FdStore, NotifyState::FdName(name), NotifyState::Custom("FDPOLL=0")]);
}

fn store(name: &str, fd: BorrowedFd<'_>, states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify_with_fds(states, &[fd]) {
        log!("cannot store the descriptor {name} for the next supervisor: {error}");
    }
}

/// Removes the copies of that name.
pub(crate) fn forget(name: &str) {
    let _ = sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
}

/// Reports that the supervisor answers callers.
pub(crate) fn ready() {
    let _ = sd_notify::notify(&[NotifyState::Ready]);
}
