//! Finds the host's ldconfig, checks that it is static, and makes a sealed copy.

use super::error::LdconfigError;
use mpu_os::file::{Links, read_bounded};
use object::Endianness;
use object::elf::{FileHeader32, FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Limit of the program's size. Debian's ldconfig has 1 MB.
const MAX_BYTES: u64 = 64 << 20;

/// The path on the host from a setting: without a leading `@`, and with `.real` appended if that file exists. On Ubuntu,
/// `ldconfig` is a script and `ldconfig.real` the program.
pub fn host_path(setting: &Path) -> PathBuf {
    let text = setting.as_os_str().to_string_lossy();
    let path = match text.strip_prefix('@') {
        Some(path) => PathBuf::from(path),
        None => setting.to_path_buf(),
    };
    let mut real = path.clone().into_os_string();
    real.push(".real");
    let real = PathBuf::from(real);
    match real.is_file() {
        true => real,
        false => path,
    }
}

/// An immutable copy of the program, which can be executed by its descriptor.
pub fn seal(path: &Path) -> Result<OwnedFd, LdconfigError> {
    let wrap = |source| LdconfigError::Program { path: path.to_path_buf(), source };
    let bytes = read_bounded(path, MAX_BYTES, Links::Followed).map_err(wrap)?;
    if !is_static(&bytes) {
        return Err(LdconfigError::Dynamic { path: path.to_path_buf() });
    }
    copy(&bytes).map_err(wrap)
}

fn copy(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // MFD_EXEC. Since Linux 6.3, a sysctl can forbid executable memory files without this flag.
    let executable = MemfdFlags::from_bits_retain(0x10);
    let fd = rustix::fs::memfd_create("ldconfig", flags | executable)
        .or_else(|_| rustix::fs::memfd_create("ldconfig", flags))?;
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}

/// Whether bytes are an ELF program without an interpreter.
pub fn is_static(bytes: &[u8]) -> bool {
    let wide = FileHeader64::<Endianness>::parse(bytes).ok().and_then(|header| has_interpreter(header, bytes));
    let narrow = || FileHeader32::<Endianness>::parse(bytes).ok().and_then(|header| has_interpreter(header, bytes));
    wide.or_else(narrow) == Some(false)
}

fn has_interpreter<Elf: FileHeader<Endian = Endianness>>(header: &Elf, bytes: &[u8]) -> Option<bool> {
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, bytes).ok()?;
    Some(segments.is_empty() || segments.iter().any(|segment| segment.p_type(endian) == PT_INTERP))
}
