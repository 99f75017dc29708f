//! A child process under the host's supervisor, like a container's first process: both sides of its start.

use super::client;
use super::run::{SOCKET, SUPERVISED, hand_over, install_filter};
use crate::listener::message;
use command_fds::{CommandFdExt, FdMapping};
use mpu_host::host::Host;
use mpu_host::phase::Phase;
use rustix::fd::AsFd;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;

/// Whether a supervisor runs that takes new listeners.
pub fn is_available(host: &Host) -> bool {
    matches!(client::state(host), Ok(Some(state)) if state.state == Phase::Armed)
}

/// Gives a command that will call [`wait_for_supervisor`] its end of a socket pair; returns the parent's end.
pub fn prepare(command: &mut Command) -> io::Result<UnixStream> {
    let (own_end, child_end) = UnixStream::pair()?;
    let mappings = vec![FdMapping { parent_fd: child_end.into(), child_fd: SOCKET }];
    command.fd_mappings(mappings).map_err(io::Error::other)?;
    Ok(own_end)
}

/// The parent's side: passes the child's listener to the supervisor and lets the child continue.
///
/// # Errors
/// If the child has ended, or no supervisor runs any more; then the child fails, too.
pub fn hand_over_listener(host: &Host, child: UnixStream) -> io::Result<()> {
    let received = message::receive(child.as_fd())?.ok_or(io::ErrorKind::UnexpectedEof)?;
    if !hand_over(host, received.listener.as_fd())? {
        return Err(io::Error::other("the notify engine has ended meanwhile"));
    }
    (&child).write_all(&[SUPERVISED])
}

/// The child's side, to be called before it has other threads: returns once the supervisor answers its calls.
pub fn wait_for_supervisor() -> io::Result<()> {
    install_filter(&mut UnixStream::from(super::sys::inherited(SOCKET)?))
}
