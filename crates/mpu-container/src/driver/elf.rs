//! Reads the soname and the machine of a shared library.
//!
//! Source: System V ABI, "Dynamic Section".

use super::ldcache::Abi;
use mpu_os::file::{Links, open_regular};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};
use object::{Endianness, elf};
use std::io::Read;
use std::path::Path;

pub(super) struct SharedLibrary {
    /// `DT_SONAME`.
    pub(super) soname: Option<String>,
    pub(super) abi: Abi,
}

/// Whether a file is an ELF file, not a script.
pub(super) fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    open_regular(path, Links::Followed).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == elf::ELFMAG
}

pub(super) fn read(path: &Path) -> Option<SharedLibrary> {
    let file = ReadCache::new(open_regular(path, Links::Followed).ok()?);
    match file.read_bytes_at(0, 5).ok()? {
        [0x7f, b'E', b'L', b'F', elf::ELFCLASS64] => parse::<elf::FileHeader64<Endianness>, _>(&file),
        [0x7f, b'E', b'L', b'F', elf::ELFCLASS32] => parse::<elf::FileHeader32<Endianness>, _>(&file),
        _ => None,
    }
}

fn parse<'a, H: FileHeader<Endian = Endianness>, R: ReadRef<'a>>(file: R) -> Option<SharedLibrary> {
    let header = H::parse(file).ok()?;
    let endian = header.endian().ok()?;
    if header.e_type(endian) != elf::ET_DYN {
        return None;
    }
    let abi = match (header.e_machine(endian), header.is_class_64()) {
        (elf::EM_X86_64, true) => Abi::X86_64,
        (elf::EM_386, false) => Abi::X86,
        (elf::EM_AARCH64, true) => Abi::Aarch64,
        (elf::EM_ARM, false) => Abi::Arm,
        _ => Abi::Other,
    };
    let segments = header.program_headers(endian, file).ok()?;
    let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, file).ok().flatten())?;
    let value = |tag: u32| {
        let entry = dynamic.iter().find(|entry| entry.tag32(endian) == Some(tag))?;
        Some(entry.d_val(endian).into())
    };
    let soname = value(elf::DT_SONAME).zip(value(elf::DT_STRTAB)).and_then(|(offset, table)| {
        let address = table.checked_add(offset)?;
        let loads = segments.iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD);
        let mut ranges = loads.filter_map(|segment| {
            let within = address.checked_sub(segment.p_vaddr(endian).into())?;
            let (start, size) = segment.file_range(endian);
            (within < size).then_some(start.checked_add(within)?..start.checked_add(size)?)
        });
        let name = file.read_bytes_at_until(ranges.next()?, 0).ok()?;
        std::str::from_utf8(name).ok().map(str::to_owned)
    });
    Some(SharedLibrary { soname, abi })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_library_has_soname() {
        let cache = std::fs::read("/etc/ld.so.cache").unwrap_or_default();
        let known = super::super::ldcache::entries(&cache).unwrap_or_default();
        let Some(libc) = known.iter().find(|entry| entry.name == "libc.so.6" && entry.abi != Abi::Other) else {
            return println!("skipped: this system has no libc.so.6");
        };
        let found = read(Path::new(libc.path)).expect("a shared library");
        assert_eq!(found.soname.as_deref(), Some("libc.so.6"));
        assert_eq!(found.abi, libc.abi);
    }

    #[test]
    fn corrupted_input_never_panics() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("library");
        let reads = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("a file");
            read(&path)
        };
        for wide in [true, false] {
            let whole = crate::driver::fake::library("libcuda.so.1", wide);
            assert_eq!(reads(&whole).and_then(|found| found.soname).as_deref(), Some("libcuda.so.1"));
            for end in 0..whole.len() {
                let _ = reads(&whole[..end]);
            }
            for (at, value) in (0..whole.len()).flat_map(|at| [0x00, 0x01, 0x7f, 0xff].map(|value| (at, value))) {
                let mut broken = whole.clone();
                broken[at] = value;
                let _ = reads(&broken);
            }
        }
    }

    #[test]
    fn non_libraries_are_none() {
        assert!(read(Path::new("/proc/self/status")).is_none());
        assert!(read(Path::new("/nothing/here")).is_none());
        assert!(read(Path::new("/")).is_none());
        // Opening a pipe would wait for a writer.
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("libcuda.so.1");
        crate::driver::fake::fifo(&pipe);
        assert!(read(&pipe).is_none() && !is_elf(&pipe));
    }
}
