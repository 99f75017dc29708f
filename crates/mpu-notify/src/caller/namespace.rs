//! An open namespace: its identity and, of a PID namespace, its parent.

use crate::sys;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::fs;
use std::io;

/// Device and inode of a namespace's file. No other namespace gets them while this one is open or a process lives in it.
pub(crate) type Id = (u64, u64);

/// An open namespace, so its identity stays valid.
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

    /// The PID namespace of this process. A supervisor is in the host's.
    pub(crate) fn own() -> io::Result<Namespace> {
        Namespace::new(fs::File::open("/proc/self/ns/pid")?.into())
    }

    pub(crate) fn id(&self) -> Id {
        self.id
    }

    pub(crate) fn parent(&self) -> io::Result<Namespace> {
        Namespace::new(sys::parent(self.fd.as_fd())?)
    }

    pub(crate) fn try_clone(&self) -> io::Result<Namespace> {
        Ok(Namespace { fd: self.fd.try_clone()?, id: self.id })
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
