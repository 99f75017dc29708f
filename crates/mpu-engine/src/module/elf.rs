//! Reads a module's file before the kernel does: its processor, its completeness, and its `.modinfo`.

use object::LittleEndian;
use object::elf::{EM_AARCH64, EM_X86_64, FileHeader64};
use object::read::elf::{FileHeader, SectionHeader};

/// Processors of our modules: the ELF number, Rust's name, and the kernel's.
const MACHINES: [(u16, &str, &str); 2] = [(EM_X86_64, "x86_64", "x86"), (EM_AARCH64, "aarch64", "arm64")];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elf<'a> {
    machine: u16,
    /// Whether the file has the length that its table of sections implies.
    pub whole: bool,
    modinfo: &'a [u8],
}

impl<'a> Elf<'a> {
    /// None for anything but a 64-bit little-endian ELF file.
    pub fn parse(bytes: &'a [u8]) -> Option<Elf<'a>> {
        let header = FileHeader64::<LittleEndian>::parse(bytes).ok().filter(|header| header.is_little_endian())?;
        let sections = header.sections(LittleEndian, bytes).ok();
        let modinfo = sections.and_then(|sections| {
            let (_, section) = sections.section_by_name(LittleEndian, b".modinfo")?;
            section.data(LittleEndian, bytes).ok()
        });
        let machine = header.e_machine.get(LittleEndian);
        Some(Elf { machine, whole: sections.is_some(), modinfo: modinfo.unwrap_or_default() })
    }

    /// The processor, by Rust's name; none for one without modules of ours.
    pub fn arch(&self) -> Option<&'static str> {
        MACHINES.iter().find(|row| row.0 == self.machine).map(|row| row.1)
    }

    /// A value of `.modinfo`: `key=value`, ended by a zero byte.
    pub fn info(&self, key: &str) -> Option<String> {
        let values = self.modinfo.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        values.filter_map(|text| Some(text.strip_prefix(key)?.strip_prefix('=')?.to_string())).next()
    }
}

/// The kernel's name (`ARCH`) of a processor by Rust's name.
pub fn kernel_arch(arch: &str) -> Option<&'static str> {
    MACHINES.iter().find(|row| row.1 == arch).map(|row| row.2)
}

#[cfg(any(test, feature = "fake"))]
pub mod fake {
    use object::write::Object;
    use object::{Architecture, BinaryFormat, Endianness, SectionKind};

    /// An object for a processor by Rust's name, with this `.modinfo`.
    pub fn object(arch: &str, modinfo: &str) -> Vec<u8> {
        let arch = match arch {
            "x86_64" => Architecture::X86_64,
            "aarch64" => Architecture::Aarch64,
            _ => Architecture::Riscv64,
        };
        let mut object = Object::new(BinaryFormat::Elf, arch, Endianness::Little);
        let section = object.add_section(Vec::new(), b".modinfo".to_vec(), SectionKind::ReadOnlyData);
        object.append_section_data(section, modinfo.as_bytes(), 1);
        object.write().expect("an ELF file")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elf_gives_processor_length_and_modinfo() {
        let bytes = fake::object("aarch64", "srcversion=1\0version=2\0");
        let found = Elf::parse(&bytes).expect("a header");
        assert_eq!((found.arch(), found.whole, found.info("version")), (Some("aarch64"), true, Some("2".to_string())));
        assert_eq!(found.info("srcversio"), None);
        for cut in 64..bytes.len() {
            assert!(!Elf::parse(&bytes[..cut]).expect("a header").whole, "{cut} bytes");
        }
        let mut damaged = bytes.clone();
        damaged[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(!Elf::parse(&damaged).expect("a header").whole, "no sum overflows");
        damaged[18] = 40;
        assert_eq!(Elf::parse(&damaged).expect("a header").arch(), None);
        for cut in 0..64 {
            assert_eq!(Elf::parse(&bytes[..cut]), None, "{cut} bytes");
        }
        assert_eq!(kernel_arch("aarch64"), Some("arm64"));
    }
}
