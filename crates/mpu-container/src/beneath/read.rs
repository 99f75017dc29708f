//! Reading below a root. Only regular files and directories are opened, so opening never blocks.

use super::{Beneath, BeneathError, Root, absolute};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Limit of names in a directory: a host's `/dev` has some thousands.
pub const MOST_NAMES: usize = 65_536;

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

    /// The content of a regular file that is no longer than `limit` bytes.
    pub fn read_file(&self, path: &Path, limit: u64) -> Result<Vec<u8>, BeneathError> {
        self.resolve(path)?.read(limit)
    }

    /// The names in a directory, sorted, if there are no more than `most`.
    pub fn read_dir(&self, path: &Path, most: usize) -> Result<Vec<Entry>, BeneathError> {
        let wrap = |error| self.wrap("list", path, error);
        let fd = self.at(path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(wrap)?;
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::new(fd).map_err(wrap)? {
            let entry = entry.map_err(wrap)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                if entries.len() == most {
                    return Err(BeneathError::Many { path: absolute(path), most, what: "names" });
                }
                let is_file = entry.file_type() == FileType::RegularFile;
                entries.push(Entry { name: OsString::from_vec(name.to_vec()), is_file });
            }
        }
        entries.sort();
        Ok(entries)
    }
}

impl Beneath {
    /// The content of what must be a regular file that is no longer than `limit` bytes.
    pub fn read(&self, limit: u64) -> Result<Vec<u8>, BeneathError> {
        let mut bytes = Vec::new();
        self.open()?.take(limit + 1).read_to_end(&mut bytes).map_err(|source| BeneathError::Path {
            act: "read",
            path: self.path.clone(),
            source,
        })?;
        match bytes.len() as u64 > limit {
            true => Err(BeneathError::Large { path: self.path.clone(), limit }),
            false => Ok(bytes),
        }
    }

    /// Opens for reading what must be a regular file.
    ///
    /// Checks the type by the `O_PATH` descriptor first, so no FIFO or device is ever opened.
    pub fn open(&self) -> Result<File, BeneathError> {
        if self.kind()? != FileType::RegularFile {
            return Err(BeneathError::Kind { path: self.path.clone(), wanted: "a regular file" });
        }
        let link = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let opened = rustix::fs::openat(CWD, &link, flags, Mode::empty()).map_err(|error| self.wrap("open", error))?;
        // The file by which we came back is /proc's word; what it is, is the inode's.
        let (expected, actual) = (self.stat()?, rustix::fs::fstat(&opened).map_err(|error| self.wrap("open", error))?);
        if (expected.st_dev, expected.st_ino) != (actual.st_dev, actual.st_ino) {
            return Err(self.wrap("open", Errno::STALE));
        }
        Ok(File::from(opened))
    }
}
