//! Reads and atomically replaces the administrator's text files.
//!
//! Reads only regular files, and `/dev/null` as an empty one: reading a pipe could block for ever, and reading a device can have side
//! effects. [`read_file_or_pipe`] is for a file that the caller has just named.

use mpu_os::file::{self, Links};
use rustix::fs::{Mode, OFlags, open, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::{NamedTempFile, TempPath};

/// Mode bits of a folder such as `/tmp`: sticky, and writable for all.
const STICKY_FOR_ALL: u32 = 0o1002;

pub fn read(path: &Path, max: u64) -> io::Result<String> {
    let bytes = file::read_bounded(path, max, Links::Followed)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// Opens a regular file without blocking. Follows links.
///
/// # Errors
/// If it does not exist or is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    file::open_regular(path, Links::Followed).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => io::Error::other("it is not a regular file"),
        _ => error,
    })
}

/// Replaces a file atomically, with the old file's owner and mode. Replaces or creates a link's target, not the link. Creates missing
/// folders. Writes directly to a device or pipe (`/dev/stdout`).
pub fn save(path: &Path, text: &str) -> io::Result<()> {
    let existing = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        metadata => Some(metadata?),
    };
    if let Some(existing) = existing.filter(|existing| !existing.is_file()) {
        return match existing.is_dir() {
            true => Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory, not a file")),
            false => write_to_device(path, text),
        };
    }
    let path = resolve_links(path)?;
    let old = path.symlink_metadata().ok();
    if old.as_ref().is_some_and(|old| !old.is_file()) {
        return Err(io::Error::other("it is no file any more"));
    }
    fs::create_dir_all(folder(&path))?;
    with_temp_file(&path, |beside| {
        let (mode, owner) = match &old {
            Some(old) => (old.mode() & 0o7777, Some((old.uid(), old.gid()))),
            None => (0o644, None),
        };
        let mut new = beside.as_file();
        if let Some((uid, gid)) = owner {
            std::os::unix::fs::fchown(new, Some(uid), Some(gid))?;
        }
        new.set_permissions(fs::Permissions::from_mode(mode))?;
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        beside.persist(&path).map_err(|error| error.error)?;
        file::sync_folder(&folder(&path))
    })
}

/// Reads a file as [`file::read_bounded`], or a pipe to its end (`/dev/stdin`, a shell's `<(…)`). A pipe without a writer is empty.
/// Blocks on a slow writer.
pub fn read_file_or_pipe(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    match fs::metadata(path)?.file_type().is_fifo() {
        true => file::read_all(open_at_once(File::options().read(true), path)?, max),
        false => file::read_bounded(path, max, Links::Followed),
    }
}

/// Writes to a device or pipe. Fails without a reader. Blocks on a slow reader.
fn write_to_device(path: &Path, text: &str) -> io::Result<()> {
    open_at_once(File::options().write(true), path)?.write_all(text.as_bytes())
}

/// Opens a device or pipe without waiting for its other end. Reads and writes wait.
fn open_at_once(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

/// A file moved to a temporary path. Dropping it removes the file.
#[derive(Debug)]
pub struct MovedAside {
    path: PathBuf,
    aside: TempPath,
}

pub fn move_aside(path: &Path) -> io::Result<MovedAside> {
    if path.symlink_metadata()?.is_dir() {
        return Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory, not a file"));
    }
    with_temp_file(path, |beside| {
        let aside = beside.into_temp_path();
        fs::rename(path, &aside)?;
        Ok(MovedAside { path: path.to_path_buf(), aside })
    })
}

impl MovedAside {
    pub fn restore(self) -> Result<(), String> {
        let (aside, path) = (self.aside.to_path_buf(), &self.path);
        match fs::rename(&aside, path) {
            Ok(()) => Ok(()),
            Err(error) => {
                let kept = self.aside.keep().map_or(aside, |kept| kept);
                Err(format!("{} is now {} ({error})", path.display(), kept.display()))
            }
        }
    }
}

/// Resolves all links of a path. The file itself may be missing.
///
/// # Errors
/// Also for another user's link in a folder such as `/tmp`, as in the kernel with `fs.protected_symlinks` (proc_sys_fs(5)). Like the
/// kernel, this looks only at links that are the last part of a path.
pub fn resolve_links(path: &Path) -> io::Result<PathBuf> {
    let mut current = path.to_path_buf();
    // The kernel's limit of links.
    for _ in 0..=40 {
        let inner = folder(&current);
        // One descriptor, so that the checked link is the link that is read.
        let link = match open(&current, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::NOENT) => None,
            opened => Some(File::from(opened?)).filter(|opened| opened.metadata().is_ok_and(|meta| meta.is_symlink())),
        };
        let Some(link) = link else {
            let name = current.file_name().ok_or(ErrorKind::InvalidInput)?;
            return Ok(inner.canonicalize().unwrap_or(inner).join(name));
        };
        let (owner, shared) = (link.metadata()?.uid(), fs::metadata(&inner)?);
        let is_shared = shared.mode() & STICKY_FOR_ALL == STICKY_FOR_ALL;
        if is_shared && owner != geteuid().as_raw() && owner != shared.uid() {
            return Err(io::Error::new(ErrorKind::PermissionDenied, "it is another user's link"));
        }
        current = inner.join(OsString::from_vec(readlinkat(&link, "", Vec::new())?.into_bytes()));
    }
    Err(Errno::LOOP.into())
}

fn folder(path: &Path) -> PathBuf {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).map_or(PathBuf::from("."), PathBuf::from)
}

/// Calls a function with a new temporary file in the same folder. For a folder such as `crio.conf.d`, in its parent if possible, because CRI-O
/// reads all files of the folder, even hidden ones.
fn with_temp_file<T>(of: &Path, mut action: impl FnMut(NamedTempFile) -> io::Result<T>) -> io::Result<T> {
    let name = of.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "no file's name"))?;
    let prefix = format!(".{}.", name.to_string_lossy());
    let mut attempt = |folder: &Path| action(tempfile::Builder::new().prefix(&prefix).tempfile_in(folder)?);
    let folder = folder(of);
    let above = folder.parent().filter(|_| folder.extension().is_some_and(|end| end == "d"));
    // The parent may be another mount, or read-only.
    above.map(&mut attempt).and_then(Result::ok).map_or_else(|| attempt(&folder), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::fake::fifo;
    use crate::lock::Lock;
    use std::io::Read;

    #[test]
    fn non_files_are_refused_at_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let pipe = dir.path().join("pipe");
        fifo(&pipe);
        let socket = dir.path().join("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        for path in [&pipe, &socket, dir.path(), Path::new("/dev/zero")] {
            let error = read(path, 10).expect_err("no file");
            assert!(error.to_string().contains("not a file"), "{error}");
        }
        assert_eq!(read(Path::new("/dev/null"), 10).expect("an empty configuration"), "");
        let file = dir.path().join("file");
        fs::write(&file, "0123456789+").expect("written");
        assert_eq!(read(&file, 10).expect_err("long").kind(), ErrorKind::FileTooLarge);
        assert_eq!(read(&file, 11).expect("short enough").len(), 11);
    }

    #[test]
    fn devices_and_pipes_are_not_replaced() {
        save(Path::new("/dev/null"), "x").expect("swallowed");
        assert!(fs::metadata("/dev/null").expect("there").file_type().is_char_device());
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(save(dir.path(), "x").expect_err("a folder").kind(), ErrorKind::IsADirectory);
        let pipe = dir.path().join("pipe");
        fifo(&pipe);
        save(&pipe, "x").expect_err("there is no reader");
        assert!(fs::metadata(&pipe).expect("there").file_type().is_fifo());
    }

    /// As `/dev/stdout` before a `|`: a magic link to a pipe without a path.
    #[test]
    fn write_to_pipe_waits_for_slow_reader() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let path = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer)));
        // More than a pipe holds.
        let text = "x".repeat(200_000);
        let read = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            let mut all = String::new();
            reader.read_to_string(&mut all).map(|_| all)
        });
        save(&path, &text).expect("written");
        drop(writer);
        assert_eq!(read.join().expect("ended").expect("read"), text);
    }

    #[test]
    fn target_of_dangling_link_is_written() {
        let dir = tempfile::tempdir().expect("a folder");
        let (link, second) = (dir.path().join("link"), dir.path().join("second"));
        std::os::unix::fs::symlink("second", &link).expect("a link");
        std::os::unix::fs::symlink("real", &second).expect("a link");
        save(&link, "x").expect("written");
        assert!(link.is_symlink() && second.is_symlink());
        assert_eq!(fs::read_to_string(dir.path().join("real")).expect("there"), "x");
    }

    /// Such as in `/tmp`.
    #[test]
    fn another_users_link_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("link", &link).expect("a link");
        assert_eq!(save(&link, "x").expect_err("a circle").raw_os_error(), Some(libc::ELOOP));
        assert_eq!(resolve_links(&link).expect_err("a circle").raw_os_error(), Some(libc::ELOOP));
        assert!(link.is_symlink());
        if !geteuid().is_root() {
            return println!("skipped: only root can give a link to another user");
        }
        let shared = dir.path().join("shared");
        fs::create_dir(&shared).expect("made");
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).expect("as /tmp");
        let (link, target) = (shared.join("link"), dir.path().join("target"));
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        save(&link, "before").expect("our own");
        if std::os::unix::fs::lchown(&link, Some(65534), Some(65534)).is_err() {
            return println!("skipped: root of a user namespace without another user");
        }
        for there in [true, false] {
            assert_eq!(save(&link, "x").expect_err("refused").kind(), ErrorKind::PermissionDenied);
            assert_eq!(fs::read_to_string(&target).ok(), there.then(|| "before".to_string()));
            assert!(Lock::of(&link).expect("nobody holds it").is_none());
            let _ = fs::remove_file(&target);
        }
    }

    #[test]
    fn drop_in_folder_never_shows_partial_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("crio.conf.d");
        fs::create_dir(&folder).expect("made");
        // Files of another program with a similar name do not matter.
        let left = dir.path().join(format!(".a.conf.{}", std::process::id()));
        fs::write(&left, "left").expect("written");
        fs::write(folder.join(left.file_name().expect("a name")), "left").expect("written");
        let watched = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::NONBLOCK).expect("a watch");
        let kinds = rustix::fs::inotify::WatchFlags::CREATE | rustix::fs::inotify::WatchFlags::MOVED_TO;
        rustix::fs::inotify::add_watch(&watched, &folder, kinds).expect("watched");
        save(&folder.join("a.conf"), "x").expect("written");
        let mut bytes = [std::mem::MaybeUninit::uninit(); 1024];
        let mut events = rustix::fs::inotify::Reader::new(&watched, &mut bytes);
        let mut names = Vec::new();
        while let Ok(event) = events.next() {
            names.extend(event.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
        assert_eq!(names, ["a.conf"]);
        assert_eq!(fs::read_to_string(left).expect("there"), "left");
    }
}
