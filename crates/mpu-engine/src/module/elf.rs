//! What the first bytes of a module's file say, before the kernel is asked: for which processor it is, and whether it is whole.
//!
//! Owns the few fields of a 64-bit ELF header that matter here (System V ABI, chapter 4). Everything else is the kernel's to judge.

/// Processors that modules of ours are made for: the ELF number, Rust's name, and the kernel's.
const MACHINES: [(u16, &str, &str); 2] = [(62, "x86_64", "x86"), (183, "aarch64", "arm64")];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    machine: u16,
    /// Whether the file is as long as its table of sections wants it to be.
    pub whole: bool,
}

/// Reads them; none if it is no 64-bit little-endian ELF file.
pub fn header(bytes: &[u8]) -> Option<Header> {
    const CLASS_64_LITTLE: [u8; 6] = *b"\x7fELF\x02\x01";
    if !bytes.starts_with(&CLASS_64_LITTLE) {
        return None;
    }
    let short = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let sections = u64::from_le_bytes(bytes.get(40..48)?.try_into().ok()?);
    let (size, count) = (short(58)?, short(60)?);
    let end = sections.checked_add(u64::from(size) * u64::from(count));
    Some(Header { machine: short(18)?, whole: end.is_some_and(|end| end <= bytes.len() as u64) })
}

impl Header {
    /// The processor, by Rust's name; none of those that modules of ours are made for.
    pub fn arch(&self) -> Option<&'static str> {
        MACHINES.iter().find(|row| row.0 == self.machine).map(|row| row.1)
    }
}

/// The kernel's name (`ARCH`) of a processor that Rust names so.
pub fn kernels_name(arch: &str) -> Option<&'static str> {
    MACHINES.iter().find(|row| row.1 == arch).map(|row| row.2)
}

#[cfg(any(test, feature = "fake"))]
pub mod fake {
    //! Made-up headers for tests.

    /// A header without sections, for a processor by Rust's name.
    pub fn header(arch: &str) -> Vec<u8> {
        let machine = super::MACHINES.iter().find(|row| row.1 == arch).map_or(0, |row| row.0);
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(64, 0);
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_tells_the_processor_and_whether_the_file_is_whole() {
        let mut bytes = fake::header("aarch64");
        let found = header(&bytes).expect("a header");
        assert_eq!((found.arch(), found.whole), (Some("aarch64"), true));
        bytes[40] = 60;
        bytes[58] = 64;
        bytes[60] = 1;
        assert!(!header(&bytes).expect("a header").whole, "the table of sections ends behind the file");
        bytes[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(!header(&bytes).expect("a header").whole, "no sum overflows");
        bytes[18] = 40;
        assert_eq!(header(&bytes).expect("a header").arch(), None);
        for cut in 0..62 {
            assert_eq!(header(&bytes[..cut]), None, "{cut} bytes");
        }
        assert_eq!(kernels_name("aarch64"), Some("arm64"));
    }
}
