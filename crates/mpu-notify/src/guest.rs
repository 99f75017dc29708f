//! A child of this program that the host's supervisor answers, as it answers a container's first process.
//!
//! Owns both ends of how it gets there. Knows nothing of what the child is for, and starts no supervisor.

use super::client;
use super::run::{ATTENDED, SOCKET, come_under, hand_over};
use crate::listener::message;
use command_fds::{CommandFdExt, FdMapping};
use mpu_host::host::Host;
use mpu_host::phase::Phase;
use rustix::fd::AsFd;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;

/// Whether there is a supervisor that would take it.
pub fn would_be_taken(host: &Host) -> bool {
    matches!(client::state(host), Ok(Some(state)) if state.state == Phase::Armed)
}

/// Gives a command that is to call [`come_under_parent`] its end of the conversation; returns ours.
pub fn prepare(command: &mut Command) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    let mappings = vec![FdMapping { parent_fd: theirs.into(), child_fd: SOCKET }];
    command.fd_mappings(mappings).map_err(io::Error::other)?;
    Ok(ours)
}

/// The parent's side: hands the child's listener over, and lets the child go on.
///
/// # Errors
/// When the child ends before, or there is no supervisor any more; the child then fails, too.
pub fn see_to(host: &Host, child: UnixStream) -> io::Result<()> {
    let handed = message::receive(child.as_fd())?.ok_or(io::ErrorKind::UnexpectedEof)?;
    if !hand_over(host, handed.listener.as_fd())? {
        return Err(io::Error::other("the notify engine has gone meanwhile"));
    }
    (&child).write_all(&[ATTENDED])
}

/// The child's side, before it has any other thread: comes back once the supervisor answers for it.
pub fn come_under_parent() -> io::Result<()> {
    come_under(&mut UnixStream::from(super::sys::inherited(SOCKET)))
}
