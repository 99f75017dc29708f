//! The memory of a caller's program.
//!
//! Owns that a caller's memory is used as the caller may use it: `/proc/TID/mem` reads and writes past the protections of private
//! memory, which no copy of the driver's does. Knows nothing of what the bytes are.
//!
//! Outside truth: proc_pid_mem(5), proc_pid_maps(5); `PROCMAP_QUERY` is Linux 6.11. Documentation/arch/arm64/tagged-address-abi.rst.

use crate::caller::proc_folder::Folder;
use crate::kernel::Mapping;
use crate::sys;
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;

/// Of the text that lists a program's mappings: twice what 65,530 of them come to, the most that a program has by default.
const LONGEST: u64 = 16 << 20;

/// A program's memory: of the program that ran when it was opened, whatever runs there later.
#[derive(Debug)]
pub(crate) struct Memory {
    bytes: File,
    maps: File,
    /// What was looked at last; an argument and its parameters often lie side by side.
    last: Cell<Option<Mapping>>,
    /// All of it, where the kernel cannot be asked for one.
    all: OnceCell<Vec<Mapping>>,
}

impl Memory {
    /// That of the program which a thread runs now.
    pub(crate) fn of(thread: &Folder) -> io::Result<Memory> {
        let (bytes, maps) = (thread.open("mem", OFlags::RDWR)?, thread.open("maps", OFlags::RDONLY)?);
        Ok(Memory { bytes, maps, last: Cell::default(), all: OnceCell::default() })
    }

    /// Reads all of `bytes`.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        let address = untagged(address);
        self.permits(address, bytes.len(), |mapping| mapping.readable)?;
        touch(|| self.bytes.read_exact_at(bytes, address))
    }

    /// Writes all of `bytes`.
    ///
    /// A thread of the caller's that takes the right to write away in this moment may find it written: by its own program's wish, with
    /// an answer to its own program.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let address = untagged(address);
        self.permits(address, bytes.len(), |mapping| mapping.writable)?;
        touch(|| self.bytes.write_all_at(bytes, address))
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
            let _ = self.all.set(listed(&self.maps, LONGEST)?);
        }
        Ok(self.all.get().map(Vec::as_slice).unwrap_or_default())
    }
}

thread_local! {
    /// See [`brought`].
    static BROUGHT: Cell<u64> = const { Cell::new(0) };
}

/// Pages that this thread brought into programs' memory here since it asked last.
pub(crate) fn brought() -> u64 {
    BROUGHT.take()
}

fn touch<T>(access: impl FnOnce() -> T) -> T {
    let before = sys::own_faults();
    let done = access();
    BROUGHT.set(BROUGHT.get().saturating_add(sys::own_faults().saturating_sub(before)));
    done
}

/// The mappings of a list. The text, of which a program decides how long it is, is never there as a whole: many programs' can be asked for at
/// one time.
fn listed(text: impl Read, longest: u64) -> io::Result<Vec<Mapping>> {
    // The kernel gives a page at a time; smaller pieces would ask it more often.
    let mut text = BufReader::with_capacity(32 << 10, text.take(longest));
    let (mut mappings, mut line, mut read) = (Vec::new(), Vec::new(), 0);
    loop {
        line.clear();
        read += text.read_until(b'\n', &mut line)? as u64;
        if read == longest {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if line.is_empty() {
            return Ok(mappings);
        }
        mappings.extend(Mapping::parse(&String::from_utf8_lossy(&line)));
    }
}

/// The address without what a program may keep in its top byte: arm64's kernels leave that out of whatever a program gives them once it has
/// asked for that. No other process can learn whether it has; one that has not gets an answer here where the kernel would refuse the address.
fn untagged(address: u64) -> u64 {
    const TAG: u64 = 0xff << 56;
    /// Set in addresses of the kernel's: those stay what they are.
    const UPPER: u64 = 1 << 55;
    match cfg!(target_arch = "aarch64") && address & UPPER == 0 {
        true => address & !TAG,
        false => address,
    }
}

/// The memory of a caller that waits. One that was interrupted is not written to any more: it may have other things there by now.
pub(crate) struct CallerMemory<'a> {
    pub(crate) memory: Memory,
    pub(crate) still_waits: &'a dyn Fn() -> bool,
}

impl CallerMemory<'_> {
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.memory.read(address, bytes)
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        if !(self.still_waits)() {
            return Err(rustix::io::Errno::STALE.into());
        }
        self.memory.write(address, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::proc_folder::of_thread;
    use crate::kernel::Tid;

    #[test]
    fn tag_is_no_part_of_address_where_programs_may_keep_one() {
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
    fn first_page_touch_is_counted_once() {
        let file = File::from(rustix::fs::memfd_create("mpu-test", rustix::fs::MemfdFlags::CLOEXEC).expect("memory"));
        rustix::fs::ftruncate(&file, 64 << 12).expect("64 pages");
        let numbers = sys::shared_numbers(&file, 64 << 9).expect("mapped");
        let memory = Memory::of(&of_thread(Tid::of_this_thread()).expect("our own folder")).expect("our own memory");
        brought();
        let [new, again] = [(); 2].map(|()| {
            for page in 0..48 {
                memory.write(&numbers[page << 9] as *const _ as u64, &[1; 8]).expect("ours to write");
            }
            brought()
        });
        // An emulator of this processor has faults of its own.
        assert!((1..=64).contains(&new) && again <= new / 4, "{new} pages, then {again}");
    }

    #[test]
    fn list_is_read_by_lines_to_its_end_or_refused() {
        let line =
            |at: u64| format!("{:x}-{:x} rw-p 00000000 00:00 0 {}\n", at << 12, (at + 1) << 12, "x".repeat(4000));
        let text: String = (1..=100).map(line).collect();
        let found = listed(text.as_bytes(), LONGEST).expect("a list");
        assert_eq!((found.len(), found[99].start, found[99].end), (100, 100 << 12, 101 << 12));
        let error = listed(text.as_bytes(), text.len() as u64).expect_err("there could be more");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(listed(&b"nonsense\n\n"[..], LONGEST).expect("a list"), []);
        let own = listed(File::open("/proc/self/maps").expect("ours"), LONGEST).expect("a list");
        let here = &own as *const _ as u64;
        assert!(own.iter().any(|mapping| mapping.covers(here) && mapping.writable));
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
