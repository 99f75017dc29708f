//! What an OCI runtime sends to a listener socket.
//!
//! Owns the one message: a `ContainerProcessState` and the descriptors that it names (OCI runtime specification, config-linux.md,
//! "The Container Process State"). A message that makes no sense loses no descriptor: without it, the container's calls would fail.

use crate::log::say;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use serde::Deserialize;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;

/// Far more than a runtime writes.
const LONGEST: usize = 256 << 10;
/// Name in `fds` of the descriptor that is a listener.
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
pub(crate) struct Handed {
    pub(crate) listener: OwnedFd,
    pub(crate) container: String,
}

/// Receives the message; none if the other side only looked whether we are there, or sent no listener.
pub(crate) fn receive(stream: BorrowedFd<'_>) -> io::Result<Option<Handed>> {
    let (mut text, mut fds) = (Vec::new(), Vec::new());
    loop {
        let received = match part(stream, RecvFlags::empty(), &mut text, &mut fds) {
            // What came before the other side fell silent is all that there will be.
            Err(_) if !fds.is_empty() => break,
            received => received?,
        };
        // A runtime may keep its side open for as long as it lives.
        if received == 0 || is_whole(&text, &fds) || text.len() > LONGEST {
            break;
        }
    }
    Ok(handed(&text, fds))
}

/// The same, but leaves the message where it is, for another reader; none also if it has come only in part.
pub(crate) fn look(stream: BorrowedFd<'_>) -> io::Result<Option<Handed>> {
    let (mut text, mut fds) = (Vec::new(), Vec::new());
    part(stream, RecvFlags::PEEK, &mut text, &mut fds)?;
    Ok(is_whole(&text, &fds).then(|| handed(&text, fds)).flatten())
}

fn is_whole(text: &[u8], fds: &[OwnedFd]) -> bool {
    !fds.is_empty() && serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
}

/// What has come so far, or the first of what will come.
fn part(stream: BorrowedFd<'_>, flags: RecvFlags, text: &mut Vec<u8>, fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; LONGEST];
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
        say!("a runtime sent more descriptors than we take");
    }
    text.extend_from_slice(&bytes[..received.bytes]);
    Ok(received.bytes)
}

fn handed(text: &[u8], mut fds: Vec<OwnedFd>) -> Option<Handed> {
    let state: ProcessState = serde_json::from_slice(text).unwrap_or_default();
    let named = state.fds.iter().position(|name| name == SECCOMP_FD).filter(|at| *at < fds.len());
    if let Some(at) = named {
        fds.swap(0, at);
    }
    let listener = fds.into_iter().find(|fd| is_listener(fd.as_fd()));
    listener.map(|listener| Handed { listener, container: state.state.id })
}

/// Whether a descriptor is a listener for system calls.
pub(crate) fn is_listener(fd: BorrowedFd<'_>) -> bool {
    use std::os::fd::AsRawFd;
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == "anon_inode:seccomp notify")
}
