//! The memory of a caller's program.
//!
//! Owns that a caller's memory is used as the caller may use it: `/proc/TID/mem` reads and writes past the protections of private
//! memory, which no copy of the driver's does. Knows nothing of what the bytes are.
//!
//! Outside truth: proc_pid_mem(5), proc_pid_maps(5); `PROCMAP_QUERY` is Linux 6.11. Documentation/arch/arm64/tagged-address-abi.rst.

use super::folder::Folder;
use super::mapping::Mapping;
use super::sys;
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// Of the text that lists a program's mappings: twice what 65,530 of them come to, the most that a program has by default.
const LONGEST: u64 = 16 << 20;

/// A program's memory: of the program that ran when it was opened, whatever runs there later.
#[derive(Debug)]
pub(super) struct Memory {
    bytes: File,
    maps: File,
    /// What was looked at last; an argument and its parameters often lie side by side.
    last: Cell<Option<Mapping>>,
    /// All of it, where the kernel cannot be asked for one.
    all: OnceCell<Vec<Mapping>>,
}

impl Memory {
    /// That of the program which a thread runs now.
    pub(super) fn of(thread: &Folder) -> io::Result<Memory> {
        let (bytes, maps) = (thread.open("mem", OFlags::RDWR)?, thread.open("maps", OFlags::RDONLY)?);
        Ok(Memory { bytes, maps, last: Cell::default(), all: OnceCell::default() })
    }

    /// Reads all of `bytes`.
    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        let address = untagged(address);
        self.permits(address, bytes.len(), |mapping| mapping.readable)?;
        self.bytes.read_exact_at(bytes, address)
    }

    /// Writes all of `bytes`.
    ///
    /// A thread of the caller's that takes the right to write away in this moment may find it written: by its own program's wish, with
    /// an answer to its own program.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let address = untagged(address);
        self.permits(address, bytes.len(), |mapping| mapping.writable)?;
        self.bytes.write_all_at(bytes, address)
    }

    /// Refuses what the program itself may not do. Where nothing is mapped, what follows fails by itself, or makes a stack grow.
    fn permits(&self, address: u64, len: usize, may: impl Fn(&Mapping) -> bool) -> io::Result<()> {
        let mut at = address;
        let end = address.saturating_add(len as u64);
        while at < end {
            match self.mapping(at)? {
                None => return Ok(()),
                Some(mapping) if may(&mapping) => at = mapping.end,
                Some(_) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            }
        }
        Ok(())
    }

    fn mapping(&self, address: u64) -> io::Result<Option<Mapping>> {
        if let Some(last) = self.last.get().filter(|last| last.covers(address)) {
            return Ok(Some(last));
        }
        let found = match sys::mapping(self.maps.as_fd(), address) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                self.all()?.iter().find(|mapping| mapping.covers(address)).copied()
            }
            asked => asked?,
        };
        self.last.set(found);
        Ok(found)
    }

    fn all(&self) -> io::Result<&[Mapping]> {
        if self.all.get().is_none() {
            // The kernel gives a page at a time; growing pieces would ask it far more often.
            let mut text = Vec::with_capacity(32 << 10);
            (&self.maps).take(LONGEST).read_to_end(&mut text)?;
            if text.len() as u64 == LONGEST {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            let mappings = String::from_utf8_lossy(&text).lines().filter_map(Mapping::parse).collect();
            let _ = self.all.set(mappings);
        }
        Ok(self.all.get().map(Vec::as_slice).unwrap_or_default())
    }
}

/// The address without what a program may keep in its top byte: arm64's kernels leave that out of whatever a program gives them once it has
/// asked for that. Whether it has, nobody else is told; one that has not gets an answer here where the kernel would refuse the address.
fn untagged(address: u64) -> u64 {
    const TAG: u64 = 0xff << 56;
    /// Set in addresses of the kernel's: those stay what they are.
    const UPPER: u64 = 1 << 55;
    match cfg!(target_arch = "aarch64") && address & UPPER == 0 {
        true => address & !TAG,
        false => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::of_thread;
    use crate::tid::Tid;

    #[test]
    fn a_tag_is_no_part_of_an_address_where_programs_may_keep_one() {
        let place = 0x0000_7f5c_8c02_1000;
        for tag in [0x05, 0xb7, 0xff] {
            let tagged = place | tag << 56;
            assert_eq!(untagged(tagged), if cfg!(target_arch = "aarch64") { place } else { tagged });
        }
        for address in [place, 0, 0xffff_8000_1234_5678] {
            assert_eq!(untagged(address), address);
        }
    }

    #[test]
    fn memory_is_used_as_its_program_may_use_it() {
        let folder = of_thread(Tid::of_this_thread()).expect("our own folder");
        let place = Box::new([7u8; 16]);
        let mut seen = [0u8; 16];
        let memory = Memory::of(&folder).expect("our own memory");
        memory.read(place.as_ptr() as u64, &mut seen).expect("ours to read");
        assert_eq!(seen, *place);
        memory.read(8, &mut seen).expect_err("nothing is mapped there");
        let text = "read-only";
        let error = memory.write(text.as_ptr() as u64, b"x").expect_err("ours to read, not to write");
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        // Whether the kernel is asked for one mapping or for all makes no difference.
        for address in [place.as_ptr() as u64, text.as_ptr() as u64, 8] {
            let listed = memory.all().expect("our own mappings").iter().find(|mapping| mapping.covers(address));
            let rights = |mapping: &Mapping| (mapping.readable, mapping.writable);
            assert_eq!(memory.mapping(address).expect("asked").as_ref().map(rights), listed.map(rights));
        }
    }
}
