//! Reads `ld.so.cache`, the dynamic linker's list of the shared libraries of a system.
//!
//! Source: glibc, `sysdeps/generic/dl-cache.h` (the format) and `ldconfig.h` (the flags).

/// Limit of a cache's size: more than a hundred times that of a full desktop system.
pub const MAX_BYTES: u64 = 16 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Abi {
    X86_64,
    X86,
    Aarch64,
    Arm,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The soname: `libcuda.so.1`.
    pub name: &'a str,
    /// The absolute path of the file.
    pub path: &'a str,
    pub abi: Abi,
}

const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";
const OLD_HEADER: usize = 16;
const OLD_ENTRY: usize = 12;
const NEW_MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const NEW_HEADER: usize = 48;
const NEW_ENTRY: usize = 24;
const ENDIAN_MASK: u8 = 3;
const ENDIAN_HERE: u8 = if cfg!(target_endian = "little") { 2 } else { 3 };

/// The entries of a cache, in the order of the dynamic linker. None if it is not a cache, has only the format from before glibc 2.2, has
/// the other byte order, or is truncated.
pub fn entries(file: &[u8]) -> Option<Vec<Entry<'_>>> {
    let new = new_part(file)?;
    let count = word(new, 20)? as usize;
    let order = *new.get(28)? & ENDIAN_MASK;
    if order != 0 && order != ENDIAN_HERE {
        return None;
    }
    let size = count.checked_mul(NEW_ENTRY)?;
    let table = new.get(NEW_HEADER..).and_then(|rest| rest.get(..size))?;
    let read = |entry: &[u8]| {
        let at = |offset| word(entry, offset);
        Some(Entry { name: string(new, at(4)?)?, path: string(new, at(8)?)?, abi: abi(at(0)?) })
    };
    Some(table.chunks_exact(NEW_ENTRY).filter_map(read).collect())
}

/// The part in the new format: the whole file, or the part after the old format's list.
fn new_part(file: &[u8]) -> Option<&[u8]> {
    if file.starts_with(NEW_MAGIC) {
        return Some(file);
    }
    if !file.starts_with(OLD_MAGIC) {
        return None;
    }
    let count = word(file, OLD_MAGIC.len() + 1)? as usize;
    let end = count.checked_mul(OLD_ENTRY).and_then(|size| size.checked_add(OLD_HEADER))?;
    // The new header has 64-bit fields. It is aligned to 8 bytes, by a 32-bit ldconfig to 4.
    let starts = [end.checked_next_multiple_of(8), Some(end)].into_iter().flatten();
    let mut parts = starts.filter_map(|start| file.get(start..));
    parts.find(|part| part.starts_with(NEW_MAGIC))
}

fn abi(flags: u32) -> Abi {
    const OF_GLIBC: u32 = 3;
    match (flags & 0xff, flags & 0xff00) {
        (OF_GLIBC, 0x0000) if cfg!(any(target_arch = "x86_64", target_arch = "x86")) => Abi::X86,
        (OF_GLIBC, 0x0300) => Abi::X86_64,
        (OF_GLIBC, 0x0900 | 0x0b00) => Abi::Arm,
        (OF_GLIBC, 0x0a00) => Abi::Aarch64,
        _ => Abi::Other,
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The string at an offset from the header. None if it is longer than a path: thousands of entries could point to one
/// string as long as the file.
fn string(new: &[u8], at: u32) -> Option<&str> {
    const LONGEST_PATH: usize = 4096;
    let rest = new.get(at as usize..)?;
    let end = rest.iter().take(LONGEST_PATH).position(|byte| *byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

#[cfg(test)]
pub(crate) fn build_cache(entries: &[(&str, &str, u32)], old_entries: Option<u32>) -> Vec<u8> {
    let mut strings = Vec::new();
    let mut table = Vec::new();
    let base = NEW_HEADER + entries.len() * NEW_ENTRY;
    let mut put = |text: &str| {
        let at = (base + strings.len()) as u32;
        strings.extend_from_slice(text.as_bytes());
        strings.push(0);
        at.to_ne_bytes()
    };
    for (name, path, flags) in entries {
        table.extend_from_slice(&flags.to_ne_bytes());
        table.extend_from_slice(&put(name));
        table.extend_from_slice(&put(path));
        table.extend_from_slice(&[0; 12]);
    }
    let mut file = Vec::new();
    if let Some(count) = old_entries {
        file.extend_from_slice(OLD_MAGIC);
        file.push(0);
        file.extend_from_slice(&count.to_ne_bytes());
        file.resize((OLD_HEADER + count as usize * OLD_ENTRY).next_multiple_of(8), 0);
    }
    file.extend_from_slice(NEW_MAGIC);
    file.extend_from_slice(&(entries.len() as u32).to_ne_bytes());
    file.extend_from_slice(&(strings.len() as u32).to_ne_bytes());
    file.extend_from_slice(&[ENDIAN_HERE, 0, 0, 0]);
    file.extend_from_slice(&[0; 16]);
    file.extend_from_slice(&table);
    file.extend_from_slice(&strings);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[(&str, &str, u32)] =
        &[("libcuda.so.1", "/usr/lib64/libcuda.so.1", 0x0303), ("libcuda.so.1", "/usr/lib/libcuda.so.1", 0x0003)];

    #[test]
    fn new_format_is_read_alone_and_after_old() {
        for old_entries in [None, Some(0), Some(3), Some(4)] {
            let file = build_cache(TWO, old_entries);
            let found = entries(&file).expect("a cache");
            assert_eq!(
                found.iter().map(|entry| (entry.name, entry.path)).collect::<Vec<_>>(),
                TWO.iter().map(|(name, path, _)| (*name, *path)).collect::<Vec<_>>()
            );
            assert_eq!(found[0].abi, Abi::X86_64);
        }
    }

    #[test]
    fn cache_of_this_machine_is_read() {
        let Ok(file) = std::fs::read("/etc/ld.so.cache") else {
            return println!("skipped: this system has no /etc/ld.so.cache");
        };
        let found = entries(&file).expect("a cache");
        let libc = found.iter().find(|entry| entry.name.starts_with("libc.so")).expect("libc");
        assert!(std::path::Path::new(libc.path).exists(), "{libc:?}");
    }

    #[test]
    fn invalid_caches_are_errors() {
        assert_eq!(entries(b""), None);
        assert_eq!(entries(b"\x7fELF"), None);
        assert_eq!(entries(OLD_MAGIC), None);
        assert_eq!(entries(&[OLD_MAGIC, &[0; 64]].concat()), None);
        let mut other = build_cache(TWO, None);
        other[28] ^= 1;
        assert_eq!(entries(&other), None);
        let mut huge = build_cache(TWO, None);
        huge[20..24].fill(0xff);
        assert_eq!(entries(&huge), None);
    }

    #[test]
    fn corrupted_input_never_panics() {
        let file = build_cache(TWO, Some(3));
        for end in 0..file.len() {
            let _ = entries(&file[..end]);
        }
        for at in 0..file.len() {
            for value in [0x00, 0x7f, 0xff] {
                let mut broken = file.clone();
                broken[at] = value;
                let _ = entries(&broken);
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_never_panic(bytes: Vec<u8>, at in 0usize..200, old_entries: Option<u8>) {
            let _ = entries(&bytes);
            // After a valid header, more code reads the bytes.
            let mut file = build_cache(TWO, old_entries.map(u32::from));
            file.truncate(file.len().min(at + 28));
            file.extend_from_slice(&bytes);
            let _ = entries(&file);
        }
    }

    #[test]
    fn entry_pointing_outside_is_skipped() {
        let mut file = build_cache(TWO, None);
        file[NEW_HEADER + 8..NEW_HEADER + 12].fill(0xff);
        let found = entries(&file).expect("a cache");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, TWO[1].1);
    }
}
