//! Writing below a root. A new file or link takes its name in one step, and replaces an earlier one without following it.

use super::{Beneath, BeneathError, Root, absolute, below};
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

/// Links that a path may lead through, as the kernel counts them.
const LINKS: usize = 40;
/// Names that a path leads through where directories are missing. Each link can add two thousand.
const NAMES: usize = 1000;

impl Root {
    /// Makes a directory and those above it, where they are missing, with this mode.
    ///
    /// A link whose target is missing is followed as it would be in the container, and the target is made.
    pub fn create_dir_all(&self, path: &Path, mode: u32) -> Result<Beneath, BeneathError> {
        let fd = self.directories(path, mode).map_err(|error| self.wrap("create", path, error))?;
        Ok(Beneath { fd, path: absolute(path) })
    }

    /// Writes a file with this mode, in place of what had its name. Its directory must be there.
    pub fn create_file(&self, path: &Path, bytes: &[u8], mode: u32) -> Result<(), BeneathError> {
        let (folder, name) = self.place(path)?;
        let wrap = |source| BeneathError::Path { act: "write", path: absolute(path), source };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (fd, new) = with_new_name(&name, |new| rustix::fs::openat(&folder, new, flags, Mode::from_raw_mode(0o600)))
            .map_err(|error| wrap(error.into()))?;
        let mut file = File::from(fd);
        let written = file
            .write_all(bytes)
            .and_then(|()| rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).map_err(Into::into))
            .and_then(|()| rustix::fs::renameat(&folder, &new, &folder, &name).map_err(Into::into));
        written.map_err(|error| {
            // Best effort: the error that is returned is the first one.
            let _ = rustix::fs::unlinkat(&folder, &new, AtFlags::empty());
            wrap(error)
        })
    }

    /// Makes sure that a mount point for a file exists. Creates an empty file and the directories above it; an existing file stays
    /// unchanged.
    pub fn touch_file(&self, path: &Path) -> Result<Beneath, BeneathError> {
        let wrap = |error| self.wrap("create", path, error);
        let (mut path, mut walked) = (path.to_path_buf(), 0);
        for _ in 0..LINKS {
            if let Some(found) = self.find(&path)? {
                return match found.kind()? {
                    FileType::Directory => Err(BeneathError::Kind { path: absolute(&path), wanted: "a file" }),
                    _ => Ok(found),
                };
            }
            let (parent, name) = split(&path)?;
            walked += parent.components().count();
            if walked > NAMES {
                break;
            }
            let folder = self.directories(&parent, 0o755).map_err(wrap)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::openat(&folder, &name, flags, Mode::from_raw_mode(0o644)) {
                // The next round finds it, or what another process puts in its place.
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

    /// Makes a symbolic link, and the directories above it, in place of what had its name. The target is only text:
    /// it is followed from inside the container. False when the link was there already.
    pub fn symlink(&self, target: &Path, path: &Path) -> Result<bool, BeneathError> {
        let (parent, name) = split(path)?;
        let wrap = |error| self.wrap("create the link", path, error);
        let folder = self.directories(&parent, 0o755).map_err(wrap)?;
        match rustix::fs::readlinkat(&folder, &name, Vec::new()) {
            Ok(found) if found.as_bytes() == target.as_os_str().as_bytes() => return Ok(false),
            Ok(_) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(wrap(error)),
        }
        let ((), new) = with_new_name(&name, |new| rustix::fs::symlinkat(target, &folder, new)).map_err(wrap)?;
        rustix::fs::renameat(&folder, &new, &folder, &name).map_err(|error| {
            let _ = rustix::fs::unlinkat(&folder, &new, AtFlags::empty());
            wrap(error)
        })?;
        Ok(true)
    }

    pub fn remove_file(&self, path: &Path) -> Result<bool, BeneathError> {
        let (folder, name) = match self.place(path) {
            Err(error) if error.is_missing() => return Ok(false),
            place => place?,
        };
        match rustix::fs::unlinkat(&folder, &name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(self.wrap("remove", path, error)),
        }
    }

    fn place(&self, path: &Path) -> Result<(OwnedFd, OsString), BeneathError> {
        let (parent, name) = split(path)?;
        let folder =
            self.at(&parent, OFlags::PATH | OFlags::DIRECTORY).map_err(|error| self.wrap("open", &parent, error))?;
        Ok((folder, name))
    }

    /// A directory, made where it is missing. Each step is resolved anew from the root, so that whatever happens to
    /// the steps before it, a new directory is made below the root.
    fn directories(&self, path: &Path, mode: u32) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match self.at(path, flags) {
            Err(Errno::NOENT) => {}
            result => return result,
        }
        let mut rest: VecDeque<OsString> = names(path);
        let (mut done, mut here) = (PathBuf::from("/"), self.at(Path::new("/"), flags)?);
        let (mut again, mut walked) = (0, 0);
        while let Some(name) = rest.pop_front() {
            walked += 1;
            if walked > NAMES {
                return Err(Errno::LOOP);
            }
            match self.at(&done.join(&name), flags) {
                Ok(found) => (done, here) = (done.join(&name), found),
                Err(Errno::NOENT) => match rustix::fs::mkdirat(&here, &name, Mode::from_raw_mode(mode)) {
                    Ok(()) => {
                        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                        let made = rustix::fs::openat(&here, &name, flags, Mode::empty())?;
                        // The caller's umask is not the container's business.
                        rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?;
                        (done, here) = (done.join(&name), made);
                    }
                    // A link to nothing, or another process was faster.
                    Err(Errno::EXIST) if again < LINKS => {
                        again += 1;
                        match rustix::fs::readlinkat(&here, &name, Vec::new()) {
                            Ok(target) => {
                                let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                                if target.is_absolute() {
                                    (done, here) = (PathBuf::from("/"), self.at(Path::new("/"), flags)?);
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
        Ok(here)
    }
}

impl Beneath {
    /// Sets the permission bits of what is held, whatever it is; nothing is opened.
    pub fn set_mode(&self, mode: u32) -> Result<(), BeneathError> {
        let has = |found: &Beneath| Ok::<_, BeneathError>(found.stat()?.st_mode & 0o7777 == mode);
        if has(self)? {
            return Ok(());
        }
        let link = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        rustix::fs::chmod(&link, Mode::from_raw_mode(mode)).map_err(|error| self.wrap("change the mode of", error))?;
        // The path in /proc may have led to another file, so the mode of this one is checked.
        match has(self)? {
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
    let path = absolute(&below(path));
    match (path.parent(), path.components().next_back()) {
        (Some(parent), Some(Component::Normal(name))) => Ok((parent.to_path_buf(), name.to_os_string())),
        _ => Err(BeneathError::Name { path }),
    }
}

fn with_new_name<T>(name: &OsStr, make: impl Fn(&OsStr) -> Result<T, Errno>) -> Result<(T, OsString), Errno> {
    for _ in 0..100 {
        // Each RandomState has keys of its own.
        let mut new = OsString::from(format!(".mpu-{:016x}-", RandomState::new().build_hasher().finish()));
        // A name may have 255 bytes; this one has to stay one.
        new.push(OsStr::from_bytes(&name.as_bytes()[..name.len().min(200)]));
        match make(&new) {
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
            Ok(made) => return Ok((made, new)),
        }
    }
    Err(Errno::EXIST)
}
