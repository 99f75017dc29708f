//! A child process under the host's supervisor, like a container's first process: both sides of its start.

use super::client;
pub use super::run::prepare;
use super::run::{SOCKET, SUPERVISED, hand_over, install_filter};
use crate::listener::message;
use mpu_host::host::Host;
use mpu_host::phase::Phase;
use rustix::fd::AsFd;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;

/// Whether a supervisor runs that takes new listeners.
pub fn is_available(host: &Host) -> bool {
    matches!(client::state(host), Ok(Some(state)) if state.state == Phase::Armed)
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
