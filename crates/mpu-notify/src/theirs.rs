//! The memory of a caller that waits.
//!
//! Owns that one which was interrupted is not written to any more: it may have other things there by now.

use super::memory::Memory;
use std::io;

pub(super) struct Theirs<'a> {
    pub(super) memory: Memory,
    pub(super) still_waits: &'a dyn Fn() -> bool,
}

impl Theirs<'_> {
    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.memory.read(address, bytes)
    }

    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        if !(self.still_waits)() {
            return Err(rustix::io::Errno::STALE.into());
        }
        self.memory.write(address, bytes)
    }
}
