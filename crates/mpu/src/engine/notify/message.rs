//! What an OCI runtime sends to a listener socket.
//!
//! Owns the one message: a `ContainerProcessState` and the descriptors that it names (OCI runtime specification, config-linux.md,
//! "The Container Process State"). A message that makes no sense loses no descriptor: without it, the container's calls would fail.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
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
pub(super) struct Handed {
    pub(super) listener: OwnedFd,
    pub(super) container: String,
}

/// Receives the message; none if the other side only looked whether we are there, or sent no listener.
pub(super) fn receive(stream: BorrowedFd<'_>) -> io::Result<Option<Handed>> {
    let (mut text, mut fds) = (Vec::new(), Vec::new());
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut part = [0; 4096];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(stream, &mut [IoSliceMut::new(&mut part)], &mut ancillary, flags) {
            Err(rustix::io::Errno::INTR) => continue,
            // What came before the other side fell silent is all that there will be.
            Err(_) if !fds.is_empty() => break,
            received => received?,
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            eprintln!("mpu: a runtime sent more descriptors than we take");
        }
        text.extend_from_slice(&part[..received.bytes]);
        // A runtime may keep its side open for as long as it lives.
        let whole = !fds.is_empty() && serde_json::from_slice::<serde::de::IgnoredAny>(&text).is_ok();
        if received.bytes == 0 || whole || text.len() > LONGEST {
            break;
        }
    }
    let state: ProcessState = serde_json::from_slice(&text).unwrap_or_default();
    let named = state.fds.iter().position(|name| name == SECCOMP_FD).filter(|at| *at < fds.len());
    if let Some(at) = named {
        fds.swap(0, at);
    }
    let listener = fds.into_iter().find(|fd| is_listener(fd.as_fd()));
    Ok(listener.map(|listener| Handed { listener, container: state.state.id }))
}

/// Whether a descriptor is a listener for system calls.
pub(super) fn is_listener(fd: BorrowedFd<'_>) -> bool {
    use std::os::fd::AsRawFd;
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == "anon_inode:seccomp notify")
}
