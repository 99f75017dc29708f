//! Receives the message of an OCI runtime: a `ContainerProcessState` and its descriptors (OCI runtime specification, config-linux.md,
//! "The Container Process State"). A malformed message loses no listener: without it, the container's calls would fail.

use crate::log::log;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use serde::Deserialize;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;

/// Limit of a message's size; runtimes send far less.
const MAX_SIZE: usize = 256 << 10;
/// Name of the listener in `fds`.
const SECCOMP_FD: &str = "seccompFd";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProcessState {
    fds: Vec<String>,
    state: ContainerState,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    id: String,
}

/// A listener and the container's id.
#[derive(Debug)]
pub(crate) struct NewListener {
    pub(crate) listener: OwnedFd,
    pub(crate) container: String,
}

/// Calls `add` with the listener that a message brings. A whole message stays in the connection until `add` has succeeded. So the next
/// supervisor finds it there, or the listener in the file descriptor store. If it finds both, the listener gets its threads twice,
/// which does no harm. After a failure, the runtime sees a reset connection once both copies of the connection are closed.
pub(crate) fn add_received_listener(stream: BorrowedFd<'_>, add: impl FnOnce(NewListener) -> io::Result<()>) {
    let peeked = peek(stream);
    let is_unread = matches!(peeked, Ok(Some(_)));
    match peeked.and_then(|seen| if is_unread { Ok(seen) } else { receive(stream) }) {
        Ok(Some(new)) => {
            if add(new).is_ok() && is_unread {
                let _ = receive(stream);
            }
        }
        Ok(None) => {}
        Err(error) => log!("cannot receive a listener from a runtime: {error}"),
    }
}

/// Receives the message; none if the other side only tested the connection, or sent no listener.
pub(crate) fn receive(stream: BorrowedFd<'_>) -> io::Result<Option<NewListener>> {
    let (mut text, mut fds) = (Vec::new(), Vec::new());
    loop {
        let received = match receive_part(stream, RecvFlags::empty(), &mut text, &mut fds) {
            // After an error, use the part that was received.
            Err(_) if !fds.is_empty() => break,
            received => received?,
        };
        // A runtime may keep its side open as long as it lives.
        if received == 0 || is_whole(&text, &fds) {
            break;
        }
        if text.len() > MAX_SIZE {
            let loss = if fds.is_empty() { "it had no listener" } else { "its container is called unknown" };
            log!("a runtime's message is cut off after {} KiB: {loss}", text.len() >> 10);
            break;
        }
    }
    Ok(find_listener(&text, fds))
}

/// Reads the message without removing it from the socket; none also if it is incomplete.
fn peek(stream: BorrowedFd<'_>) -> io::Result<Option<NewListener>> {
    let (mut text, mut fds) = (Vec::new(), Vec::new());
    receive_part(stream, RecvFlags::PEEK, &mut text, &mut fds)?;
    Ok(is_whole(&text, &fds).then(|| find_listener(&text, fds)).flatten())
}

fn is_whole(text: &[u8], fds: &[OwnedFd]) -> bool {
    !fds.is_empty() && serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
}

/// Receives the available part, or waits for the first one.
fn receive_part(
    stream: BorrowedFd<'_>,
    flags: RecvFlags,
    text: &mut Vec<u8>,
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; MAX_SIZE];
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        log!("a runtime sent more than 8 descriptors; the rest is ignored");
    }
    text.extend_from_slice(&bytes[..received.bytes]);
    Ok(received.bytes)
}

fn find_listener(text: &[u8], mut fds: Vec<OwnedFd>) -> Option<NewListener> {
    let state: ProcessState = serde_json::from_slice(text).unwrap_or_default();
    let index = state.fds.iter().position(|name| name == SECCOMP_FD).filter(|at| *at < fds.len());
    if let Some(at) = index {
        fds.swap(0, at);
    }
    let listener = fds.into_iter().find(|fd| is_listener(fd.as_fd()));
    listener.map(|listener| NewListener { listener, container: state.state.id })
}

/// Whether a descriptor is a seccomp listener.
pub(crate) fn is_listener(fd: BorrowedFd<'_>) -> bool {
    use std::os::fd::AsRawFd;
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == "anon_inode:seccomp notify")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{filter, run};
    use std::os::unix::net::UnixStream;

    /// A runtime learns only from a reset that no supervisor has its listener.
    #[test]
    fn message_without_room_for_listener_stays_unread() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: only root can install a filter with a listener");
        }
        // A filter stays for as long as its thread.
        let listener = std::thread::spawn(filter::listen).join().expect("ended").expect("a listener");
        for (has_room, received) in [(false, Some(io::ErrorKind::ConnectionReset)), (true, None)] {
            let (runtime, supervisor) = UnixStream::pair().expect("a connection");
            run::send(&runtime, listener.as_fd()).expect("sent");
            let mut container = String::new();
            add_received_listener(supervisor.as_fd(), |new| {
                container = new.container;
                if has_room { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
            });
            assert_eq!(container, format!("mpu-run-{}", std::process::id()));
            drop(supervisor);
            let end = io::Read::read(&mut { &runtime }, &mut [0]);
            assert_eq!(end.err().map(|error| error.kind()), received, "has room: {has_room}");
        }
    }
}
