//! Reads files below a root. Opens only regular files and directories, so opening never blocks.

use super::{BeneathError, Handle, Root, absolute};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Limit of names in a directory. A host's `/dev` has some thousands.
pub const MAX_NAMES: usize = 65_536;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub name: OsString,
    /// Whether it is a regular file; false for a link to one.
    pub is_file: bool,
}

impl Root {
    pub fn open_file(&self, path: &Path) -> Result<File, BeneathError> {
        self.resolve(path)?.open()
    }

    /// Reads a regular file of at most `limit` bytes.
    pub fn read_file(&self, path: &Path, limit: u64) -> Result<Vec<u8>, BeneathError> {
        self.resolve(path)?.read(limit)
    }

    /// Reads a directory with at most `max` names. Returns them sorted.
    pub fn read_dir(&self, path: &Path, max: usize) -> Result<Vec<Entry>, BeneathError> {
        let wrap = |error| self.wrap("list", path, error);
        let fd = self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(wrap)?;
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::new(fd).map_err(wrap)? {
            let entry = entry.map_err(wrap)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                if entries.len() == max {
                    return Err(BeneathError::TooMany { path: absolute(path), most: max, what: "names" });
                }
                let is_file = entry.file_type() == FileType::RegularFile;
                entries.push(Entry { name: OsString::from_vec(name.to_vec()), is_file });
            }
        }
        entries.sort();
        Ok(entries)
    }
}

impl Handle {
    /// Reads a regular file of at most `limit` bytes.
    pub fn read(&self, limit: u64) -> Result<Vec<u8>, BeneathError> {
        let mut bytes = Vec::new();
        self.open()?.take(limit + 1).read_to_end(&mut bytes).map_err(|source| BeneathError::Path {
            act: "read",
            path: self.path.clone(),
            source,
        })?;
        match bytes.len() as u64 > limit {
            true => Err(BeneathError::TooLarge { path: self.path.clone(), limit }),
            false => Ok(bytes),
        }
    }

    /// Opens a regular file for reading. Checks the type by the `O_PATH` descriptor first, so no FIFO or device is opened.
    pub fn open(&self) -> Result<File, BeneathError> {
        if self.kind()? != FileType::RegularFile {
            return Err(BeneathError::WrongKind { path: self.path.clone(), wanted: "a regular file" });
        }
        let link = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let opened = rustix::fs::openat(CWD, &link, flags, Mode::empty()).map_err(|error| self.wrap("open", error))?;
        // The path in /proc may have led to another file, so compare the inodes.
        let (expected, actual) = (self.stat()?, rustix::fs::fstat(&opened).map_err(|error| self.wrap("open", error))?);
        if (expected.st_dev, expected.st_ino) != (actual.st_dev, actual.st_ino) {
            return Err(self.wrap("open", Errno::STALE));
        }
        Ok(File::from(opened))
    }
}
