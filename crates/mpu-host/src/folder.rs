//! The folder of a process or thread in `/proc`. An open folder stays with its process. It never becomes that of a later process with
//! the same PID.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxFlags, openat, readlinkat, statat, statx};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Limit of a file's size. The largest file is `status`, with up to 65,536 groups (`NGROUPS_MAX`).
const MAX_SIZE: u64 = 1 << 20;

/// Most files fit in this size, so one read is enough.
const USUAL_SIZE: usize = 4 << 10;

#[derive(Debug)]
pub struct Folder(OwnedFd);

impl Folder {
    pub fn at(path: impl AsRef<Path>) -> io::Result<Folder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Folder(openat(CWD, path.as_ref(), flags, Mode::empty())?))
    }

    /// Opens a file in it.
    pub fn open(&self, name: &str, flags: OFlags) -> io::Result<File> {
        Ok(File::from(openat(&self.0, name, flags | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Reads a file in it as text. Invalid UTF-8 is replaced: a command's name may be any bytes.
    pub fn read(&self, name: &str) -> io::Result<String> {
        let mut text = Vec::with_capacity(USUAL_SIZE);
        self.open(name, OFlags::RDONLY)?.take(MAX_SIZE).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The same for a file that the kernel generates in one piece (`single_open` of fs/seq_file.c). One read returns all that fits, so a
    /// short read is complete.
    pub fn read_record(&self, name: &str) -> io::Result<String> {
        let mut text = [0; USUAL_SIZE];
        match self.open(name, OFlags::RDONLY)?.read(&mut text)? {
            USUAL_SIZE => self.read(name),
            len => Ok(String::from_utf8_lossy(&text[..len]).into_owned()),
        }
    }

    /// Device and inode of a file in it.
    pub fn identity(&self, name: &str) -> io::Result<(u64, u64)> {
        let stat = statat(&self.0, name, AtFlags::empty())?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// The device number of a character device in it, if it is one.
    pub fn device(&self, name: &str) -> io::Result<Option<(u32, u32)>> {
        device(self.0.as_fd(), name, AtFlags::empty())
    }

    /// The first `limit` names in a folder in it.
    pub fn names(&self, name: &str, limit: usize) -> io::Result<Vec<String>> {
        let folder = openat(&self.0, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let names = Dir::new(folder)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        Ok(names.filter(|name| !name.starts_with('.')).take(limit).collect())
    }

    /// Whether a descriptor in it can be read or written, by the mode of its link (proc_pid_fd(5)). Does not access the file.
    pub fn is_readable_or_writable(&self, name: &str) -> io::Result<bool> {
        let stat = statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(Mode::from_raw_mode(stat.st_mode).intersects(Mode::RUSR | Mode::WUSR))
    }

    /// The target of a link in it.
    pub fn link(&self, name: &str) -> io::Result<Vec<u8>> {
        Ok(readlinkat(&self.0, name, Vec::new())?.into_bytes())
    }

    /// Whether a link in it leads to a path, not to a socket, a pipe or the like. A path that is too long to be read (ENAMETOOLONG)
    /// counts as a path. Fails if the link may not be read: root without capabilities lists the descriptors of a process that has some,
    /// and reads none of them.
    pub fn is_path(&self, name: &str) -> io::Result<bool> {
        match self.link(name) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
            link => Ok(link.map_or(true, |path| path.starts_with(b"/"))),
        }
    }

    pub fn pid_namespace(&self) -> io::Result<OwnedFd> {
        Ok(self.open("ns/pid", OFlags::RDONLY)?.into())
    }

    /// The cgroup in the unified hierarchy, if there is one.
    pub fn cgroup(&self) -> Option<Vec<u8>> {
        let text = self.read("cgroup").ok()?;
        text.lines().find_map(|line| line.strip_prefix("0::")).map(|path| path.as_bytes().to_vec())
    }
}

/// The value of a field of a text such as `status` or `fdinfo`.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// `NV_MAJOR_DEVICE_NUMBER`: the major number of all driver nodes with controls (nv.h of every release).
pub const NVIDIA_MAJOR: u32 = 195;

/// Whether a character device is the driver's.
pub fn is_driver_device(device: Option<(u32, u32)>) -> bool {
    device.is_some_and(|(major, _)| major == NVIDIA_MAJOR)
}

/// Device number of a character device, from the kernel's cache (`AT_STATX_DONT_SYNC`): the file system may be a caller's FUSE program
/// that never answers.
pub fn device(at: BorrowedFd<'_>, name: &str, flags: AtFlags) -> io::Result<Option<(u32, u32)>> {
    let stat = statx(at, name, flags | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)?;
    let is_device = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::CharacterDevice;
    Ok(is_device.then_some((stat.stx_rdev_major, stat.stx_rdev_minor)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::mkdirat;
    use std::os::fd::AsRawFd;

    #[test]
    fn path_too_long_counts_as_path() {
        let dir = tempfile::tempdir().expect("a folder");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut deep = openat(CWD, dir.path(), flags, Mode::empty()).expect("a folder");
        let own = Folder::at("/proc/self").expect("a folder");
        let link = |fd: &OwnedFd| format!("fd/{}", fd.as_raw_fd());
        assert!(own.is_path(&link(&deep)).expect("ours"));
        let name = "x".repeat(255);
        for _ in 0..4096 / 256 {
            mkdirat(&deep, &name, Mode::RWXU).expect("a folder");
            deep = openat(&deep, &name, flags, Mode::empty()).expect("a folder");
        }
        let error = own.link(&link(&deep)).expect_err("too long");
        assert_eq!(error.kind(), io::ErrorKind::InvalidFilename);
        assert!(own.is_path(&link(&deep)).expect("ours"));
        let (pipe, _other) = io::pipe().expect("a pipe");
        assert!(!own.is_path(&link(&pipe.into())).expect("ours"));
    }
}
