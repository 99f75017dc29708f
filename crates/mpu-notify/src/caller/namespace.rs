//! A PID namespace.
//!
//! Owns which one it is, and which one it was made in. Knows no process's number in it.

use crate::sys;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::fs;
use std::io;

/// Which PID namespace: device and inode of its file. No other gets them while this one is held, or a process lives in it.
pub(crate) type Id = (u64, u64);

/// A PID namespace that is held, so that it stays itself.
#[derive(Debug)]
pub(crate) struct Namespace {
    fd: OwnedFd,
    id: Id,
}

impl Namespace {
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Namespace> {
        let stat = rustix::fs::fstat(&fd)?;
        Ok(Namespace { id: (stat.st_dev, stat.st_ino), fd })
    }

    /// The namespace of this process: the host's, for a supervisor.
    pub(crate) fn own() -> io::Result<Namespace> {
        Namespace::new(fs::File::open("/proc/self/ns/pid")?.into())
    }

    pub(crate) fn id(&self) -> Id {
        self.id
    }

    /// The one that it was made in.
    pub(crate) fn parent(&self) -> io::Result<Namespace> {
        Namespace::new(sys::parent(self.fd.as_fd())?)
    }

    /// The same one, held once more.
    pub(crate) fn again(&self) -> io::Result<Namespace> {
        Ok(Namespace { fd: self.fd.try_clone()?, id: self.id })
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
