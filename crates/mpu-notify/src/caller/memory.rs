//! Reads and writes the memory of a caller's program. Checks each mapping's protection first: `/proc/TID/mem` ignores it for private
//! memory, and the driver's copies do not.
//!
//! Source: proc_pid_mem(5), proc_pid_maps(5); `PROCMAP_QUERY` is Linux 6.11. Documentation/arch/arm64/tagged-address-abi.rst.

use crate::caller::proc_folder::Folder;
use crate::kernel::Mapping;
use crate::sys;
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;

/// Limit for the text of `/proc/TID/maps`: twice the size of 65,530 mappings, the default maximum of a process.
const MAX_MAPS_SIZE: u64 = 16 << 20;

/// Memory of the program that ran when this was opened, even if the process executes another one later.
#[derive(Debug)]
pub(crate) struct Memory {
    bytes: File,
    maps: File,
    /// The last mapping used; an argument and its parameters are often in one mapping.
    last: Cell<Option<Mapping>>,
    /// All mappings, for kernels without `PROCMAP_QUERY`.
    mappings: OnceCell<Vec<Mapping>>,
}

impl Memory {
    /// Opens the memory of the program that a thread runs now.
    pub(crate) fn open(thread: &Folder) -> io::Result<Memory> {
        let (bytes, maps) = (thread.open("mem", OFlags::RDWR)?, thread.open("maps", OFlags::RDONLY)?);
        Ok(Memory { bytes, maps, last: Cell::default(), mappings: OnceCell::default() })
    }

    /// Reads all of `bytes`.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        let address = strip_address_tag(address);
        self.check_access(address, bytes.len(), |mapping| mapping.readable)?;
        count_faults(|| self.bytes.read_exact_at(bytes, address))
    }

    /// Writes all of `bytes`.
    ///
    /// If another thread of the caller removes the write permission at this moment, the bytes may still be written. They are an
    /// answer to the same program.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let address = strip_address_tag(address);
        self.check_access(address, bytes.len(), |mapping| mapping.writable)?;
        count_faults(|| self.bytes.write_all_at(bytes, address))
    }

    /// Refuses an access that the program itself may not do. An access to unmapped memory then fails by itself, or grows the stack.
    fn check_access(&self, address: u64, len: usize, is_allowed: impl Fn(&Mapping) -> bool) -> io::Result<()> {
        let mut at = address;
        let end = address.saturating_add(len as u64);
        while at < end {
            match self.mapping(at)? {
                None => return Ok(()),
                Some(mapping) if is_allowed(&mapping) => at = mapping.end,
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
                self.mappings()?.iter().find(|mapping| mapping.covers(address)).copied()
            }
            found => found?,
        };
        self.last.set(found);
        Ok(found)
    }

    fn mappings(&self) -> io::Result<&[Mapping]> {
        if self.mappings.get().is_none() {
            let _ = self.mappings.set(parse_maps(&self.maps, MAX_MAPS_SIZE)?);
        }
        Ok(self.mappings.get().map(Vec::as_slice).unwrap_or_default())
    }
}

thread_local! {
    /// See [`take_caller_faults`].
    static CALLER_FAULTS: Cell<u64> = const { Cell::new(0) };
}

/// Page faults that this thread caused in callers' memory since the last call of this function.
pub(crate) fn take_caller_faults() -> u64 {
    CALLER_FAULTS.take()
}

fn count_faults<T>(access: impl FnOnce() -> T) -> T {
    let before = sys::thread_page_faults();
    let result = access();
    CALLER_FAULTS.set(CALLER_FAULTS.get().saturating_add(sys::thread_page_faults().saturating_sub(before)));
    result
}

/// Parses the text of `/proc/TID/maps` line by line. A program controls its length, and many can be read at one time, so the whole
/// text is never in memory.
fn parse_maps(text: impl Read, limit: u64) -> io::Result<Vec<Mapping>> {
    // The kernel returns a page per read.
    let mut text = BufReader::with_capacity(32 << 10, text.take(limit));
    let (mut mappings, mut line, mut read) = (Vec::new(), Vec::new(), 0);
    loop {
        line.clear();
        read += text.read_until(b'\n', &mut line)? as u64;
        if read == limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if line.is_empty() {
            return Ok(mappings);
        }
        mappings.extend(Mapping::parse(&String::from_utf8_lossy(&line)));
    }
}

/// Removes the tag in the top byte of an address. arm64 kernels ignore it for programs that have enabled tagged addresses. No other
/// process can read that setting. So a program without it gets an answer here, where the kernel would refuse the address.
fn strip_address_tag(address: u64) -> u64 {
    const TAG: u64 = 0xff << 56;
    /// Set in kernel addresses, which stay unchanged.
    const UPPER: u64 = 1 << 55;
    match cfg!(target_arch = "aarch64") && address & UPPER == 0 {
        true => address & !TAG,
        false => address,
    }
}

/// Memory of a waiting caller. After an interrupt nothing is written: the caller may use that memory for other things by now.
pub(crate) struct CallerMemory<'a> {
    pub(crate) memory: Memory,
    pub(crate) is_waiting: &'a dyn Fn() -> bool,
}

impl CallerMemory<'_> {
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.memory.read(address, bytes)
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        if !(self.is_waiting)() {
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
    fn arm64_address_loses_its_tag() {
        let buffer = 0x0000_7f5c_8c02_1000;
        for tag in [0x05, 0xb7, 0xff] {
            let tagged = buffer | tag << 56;
            assert_eq!(strip_address_tag(tagged), if cfg!(target_arch = "aarch64") { buffer } else { tagged });
        }
        for address in [buffer, 0, 0xffff_8000_1234_5678] {
            assert_eq!(strip_address_tag(address), address);
        }
    }

    #[test]
    fn first_page_touch_is_counted_once() {
        let file = File::from(rustix::fs::memfd_create("mpu-test", rustix::fs::MemfdFlags::CLOEXEC).expect("memory"));
        rustix::fs::ftruncate(&file, 64 << 12).expect("64 pages");
        let numbers = sys::map_atomics(&file, 64 << 9).expect("mapped");
        let memory = Memory::open(&of_thread(Tid::of_this_thread()).expect("our own folder")).expect("our own memory");
        take_caller_faults();
        let [new, again] = [(); 2].map(|()| {
            for page in 0..48 {
                memory.write(&numbers[page << 9] as *const _ as u64, &[1; 8]).expect("ours to write");
            }
            take_caller_faults()
        });
        // An emulated processor has page faults of its own.
        assert!((1..=64).contains(&new) && again <= new / 4, "{new} pages, then {again}");
    }

    #[test]
    fn maps_beyond_size_limit_are_refused() {
        let line =
            |at: u64| format!("{:x}-{:x} rw-p 00000000 00:00 0 {}\n", at << 12, (at + 1) << 12, "x".repeat(4000));
        let text: String = (1..=100).map(line).collect();
        let found = parse_maps(text.as_bytes(), MAX_MAPS_SIZE).expect("a list");
        assert_eq!((found.len(), found[99].start, found[99].end), (100, 100 << 12, 101 << 12));
        let error = parse_maps(text.as_bytes(), text.len() as u64).expect_err("there could be more");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(parse_maps(&b"nonsense\n\n"[..], MAX_MAPS_SIZE).expect("a list"), []);
        let own = parse_maps(File::open("/proc/self/maps").expect("ours"), MAX_MAPS_SIZE).expect("a list");
        let here = &own as *const _ as u64;
        assert!(own.iter().any(|mapping| mapping.covers(here) && mapping.writable));
    }

    #[test]
    fn access_respects_mapping_protection() {
        let folder = of_thread(Tid::of_this_thread()).expect("our own folder");
        let buffer = Box::new([7u8; 16]);
        let mut bytes = [0u8; 16];
        let memory = Memory::open(&folder).expect("our own memory");
        memory.read(buffer.as_ptr() as u64, &mut bytes).expect("ours to read");
        assert_eq!(bytes, *buffer);
        memory.read(8, &mut bytes).expect_err("nothing is mapped there");
        let text = "read-only";
        let error = memory.write(text.as_ptr() as u64, b"x").expect_err("ours to read, not to write");
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        // PROCMAP_QUERY and the text of maps agree.
        for address in [buffer.as_ptr() as u64, text.as_ptr() as u64, 8] {
            let listed = memory.mappings().expect("our own mappings").iter().find(|mapping| mapping.covers(address));
            let rights = |mapping: &Mapping| (mapping.readable, mapping.writable);
            assert_eq!(memory.mapping(address).expect("asked").as_ref().map(rights), listed.map(rights));
        }
    }
}
