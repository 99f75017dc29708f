//! Writes files below a root. A new file or link is renamed into place, and replaces an earlier one without following it.

use super::{BeneathError, Handle, Root, absolute, relative_to_root};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Limit of links in a path: the kernel's.
const MAX_LINKS: usize = 40;
/// Limit of names walked where directories are missing. Each link can add two thousand.
const MAX_NAMES_WALKED: usize = 1000;

impl Root {
    /// Creates a directory and its parents with this mode, if they are missing. Follows dangling links as in the container, and
    /// creates their targets.
    pub fn create_dir_all(&self, path: &Path, mode: u32) -> Result<Handle, BeneathError> {
        let fd = self.open_or_create_dir(path, mode).map_err(|error| self.wrap("create", path, error))?;
        Ok(Handle { fd, path: absolute(path) })
    }

    /// Creates or replaces a file with this mode. Its directory must exist.
    pub fn create_file(&self, path: &Path, bytes: &[u8], mode: u32) -> Result<(), BeneathError> {
        let (folder, name) = self.parent_and_name(path)?;
        let wrap = |source| BeneathError::Path { act: "write", path: absolute(path), source };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (fd, new) =
            with_temp_name(&name, |new| rustix::fs::openat(&folder, new, flags, Mode::from_raw_mode(0o600)))
                .map_err(|error| wrap(error.into()))?;
        let mut file = File::from(fd);
        let written = file
            .write_all(bytes)
            .and_then(|()| rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).map_err(Into::into))
            .and_then(|()| rustix::fs::renameat(&folder, &new, &folder, &name).map_err(Into::into));
        written.map_err(|error| {
            // Best effort: return the first error.
            let _ = rustix::fs::unlinkat(&folder, &new, AtFlags::empty());
            wrap(error)
        })
    }

    /// Creates an empty file and its parents as a mount point, if they are missing. An existing file stays unchanged.
    pub fn touch_file(&self, path: &Path) -> Result<Handle, BeneathError> {
        let wrap = |error| self.wrap("create", path, error);
        let (mut path, mut walked) = (path.to_path_buf(), 0);
        for _ in 0..MAX_LINKS {
            if let Some(found) = self.find(&path)? {
                return match found.kind()? {
                    FileType::Directory => Err(BeneathError::WrongKind { path: absolute(&path), wanted: "a file" }),
                    _ => Ok(found),
                };
            }
            let (parent, name) = split(&path)?;
            walked += parent.components().count();
            if walked > MAX_NAMES_WALKED {
                break;
            }
            let folder = self.open_or_create_dir(&parent, 0o755).map_err(wrap)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::openat(&folder, &name, flags, Mode::from_raw_mode(0o644)) {
                // The next round finds it, or another process's replacement.
                Ok(_) => {}
                Err(Errno::EXIST) => match rustix::fs::readlinkat(&folder, &name, Vec::new()) {
                    Ok(target) => path = parent.join(OsStr::from_bytes(target.as_bytes())),
                    Err(Errno::INVAL | Errno::NOENT) => {}
                    Err(error) => return Err(wrap(error)),
                },
                Err(error) => return Err(wrap(error)),
            }
        }
        Err(wrap(Errno::LOOP))
    }

    /// Creates or replaces a symbolic link, and creates its parents. The target is not resolved: it is followed inside the
    /// container. Returns false if the link already existed.
    pub fn symlink(&self, target: &Path, path: &Path) -> Result<bool, BeneathError> {
        let (parent, name) = split(path)?;
        let wrap = |error| self.wrap("create the link", path, error);
        let folder = self.open_or_create_dir(&parent, 0o755).map_err(wrap)?;
        match rustix::fs::readlinkat(&folder, &name, Vec::new()) {
            Ok(found) if found.as_bytes() == target.as_os_str().as_bytes() => return Ok(false),
            Ok(_) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(wrap(error)),
        }
        let ((), new) = with_temp_name(&name, |new| rustix::fs::symlinkat(target, &folder, new)).map_err(wrap)?;
        rustix::fs::renameat(&folder, &new, &folder, &name).map_err(|error| {
            let _ = rustix::fs::unlinkat(&folder, &new, AtFlags::empty());
            wrap(error)
        })?;
        Ok(true)
    }

    pub fn remove_file(&self, path: &Path) -> Result<bool, BeneathError> {
        let (folder, name) = match self.parent_and_name(path) {
            Err(error) if error.is_missing() => return Ok(false),
            place => place?,
        };
        match rustix::fs::unlinkat(&folder, &name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(self.wrap("remove", path, error)),
        }
    }

    fn parent_and_name(&self, path: &Path) -> Result<(OwnedFd, OsString), BeneathError> {
        let (parent, name) = split(path)?;
        let folder = self
            .open_at(&parent, OFlags::PATH | OFlags::DIRECTORY)
            .map_err(|error| self.wrap("open", &parent, error))?;
        Ok((folder, name))
    }

    /// Opens a directory. Creates missing ones. Each step is resolved from the root again, so that a new directory is below the
    /// root whatever happens to its parents meanwhile.
    fn open_or_create_dir(&self, path: &Path, mode: u32) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match self.open_at(path, flags) {
            Err(Errno::NOENT) => {}
            result => return result,
        }
        let mut rest: VecDeque<OsString> = names(path);
        let (mut done, mut dir) = (PathBuf::from("/"), self.open_at(Path::new("/"), flags)?);
        let (mut retries, mut walked) = (0, 0);
        while let Some(name) = rest.pop_front() {
            walked += 1;
            if walked > MAX_NAMES_WALKED {
                return Err(Errno::LOOP);
            }
            match self.open_at(&done.join(&name), flags) {
                Ok(found) => (done, dir) = (done.join(&name), found),
                Err(Errno::NOENT) => match rustix::fs::mkdirat(&dir, &name, Mode::from_raw_mode(mode)) {
                    Ok(()) => {
                        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                        let made = rustix::fs::openat(&dir, &name, flags, Mode::empty())?;
                        // Independent of the umask.
                        rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?;
                        (done, dir) = (done.join(&name), made);
                    }
                    // A dangling link, or another process was faster.
                    Err(Errno::EXIST) if retries < MAX_LINKS => {
                        retries += 1;
                        match rustix::fs::readlinkat(&dir, &name, Vec::new()) {
                            Ok(target) => {
                                let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                                if target.is_absolute() {
                                    (done, dir) = (PathBuf::from("/"), self.open_at(Path::new("/"), flags)?);
                                }
                                names(target).into_iter().rev().for_each(|name| rest.push_front(name));
                            }
                            Err(Errno::INVAL | Errno::NOENT) => rest.push_front(name),
                            Err(error) => return Err(error),
                        }
                    }
                    Err(Errno::EXIST) => return Err(Errno::LOOP),
                    Err(error) => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
        Ok(dir)
    }
}

impl Handle {
    /// Sets the permission bits of a file of any kind without opening it.
    pub fn set_mode(&self, mode: u32) -> Result<(), BeneathError> {
        let has_mode = |found: &Handle| Ok::<_, BeneathError>(found.stat()?.st_mode & 0o7777 == mode);
        if has_mode(self)? {
            return Ok(());
        }
        let link = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        rustix::fs::chmod(&link, Mode::from_raw_mode(mode)).map_err(|error| self.wrap("change the mode of", error))?;
        // The path in /proc may have led to another file, so the mode of this one is checked.
        match has_mode(self)? {
            true => Ok(()),
            false => Err(self.wrap("change the mode of", Errno::STALE)),
        }
    }
}

fn names(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    parts.map(|part| part.as_os_str().to_os_string()).collect()
}

fn split(path: &Path) -> Result<(PathBuf, OsString), BeneathError> {
    let path = absolute(&relative_to_root(path));
    match (path.parent(), path.components().next_back()) {
        (Some(parent), Some(Component::Normal(name))) => Ok((parent.to_path_buf(), name.to_os_string())),
        _ => Err(BeneathError::NoFileName { path }),
    }
}

fn with_temp_name<T>(name: &OsStr, make: impl Fn(&OsStr) -> Result<T, Errno>) -> Result<(T, OsString), Errno> {
    for _ in 0..100 {
        // Each RandomState has new keys.
        let mut new = OsString::from(format!(".mpu-{:016x}-", RandomState::new().build_hasher().finish()));
        // Names are limited to 255 bytes.
        new.push(OsStr::from_bytes(&name.as_bytes()[..name.len().min(200)]));
        match make(&new) {
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
            Ok(made) => return Ok((made, new)),
        }
    }
    Err(Errno::EXIST)
}
