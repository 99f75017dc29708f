//! The administrator's text files: read whole or refused by name, replaced whole or not at all.
//!
//! Owns what a configuration may be: a regular file, or `/dev/null` for an empty one. A pipe could keep a program waiting
//! for ever, and a device may do anything when it is read. Refuses to know what is in a file.

use std::fs::{self, File, FileType, Metadata};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Reads a file of at most so many bytes.
///
/// # Errors
/// If it is not there, is no regular file, is longer, or is no text.
pub fn read(path: &Path, longest: u64) -> io::Result<String> {
    // Asked before it is opened: opening is already an act for some devices.
    regular(&fs::metadata(path)?)?;
    // And once more of what was opened: without waiting, should a pipe have taken the name meanwhile.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    regular(&file.metadata()?)?;
    let mut text = String::new();
    file.take(longest + 1).read_to_string(&mut text)?;
    if text.len() as u64 > longest {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {longest} bytes")));
    }
    Ok(text)
}

/// Puts a text in a file's place: beside it first, then by renaming, with the old file's owner and mode. What a link
/// points to is replaced, not the link. Folders that are missing are made. A device or pipe (`/dev/stdout`) is written
/// to: it must keep its place.
///
/// # Errors
/// If the file could not be written; the old one is then as it was.
pub fn save(path: &Path, text: &str) -> io::Result<()> {
    let path = match path.canonicalize() {
        Ok(real) => real,
        Err(error) if error.kind() == ErrorKind::NotFound => path.to_path_buf(),
        Err(error) => return Err(error),
    };
    let old = fs::metadata(&path).ok();
    if let Some(old) = old.as_ref().filter(|old| !old.is_file()) {
        return match old.is_dir() {
            true => Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory, not a file")),
            false => {
                let special = File::options().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(&path);
                special?.write_all(text.as_bytes())
            }
        };
    }
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).map_or(PathBuf::from("."), PathBuf::from);
    fs::create_dir_all(&folder)?;
    let name = path.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "no file's name"))?;
    let beside = folder.join(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let write = || {
        let mut file = File::options().write(true).create_new(true).open(&beside)?;
        let (mode, owner) = match &old {
            Some(old) => (old.mode() & 0o7777, Some((old.uid(), old.gid()))),
            None => (0o644, None),
        };
        if let Some((uid, gid)) = owner {
            std::os::unix::fs::fchown(&file, Some(uid), Some(gid))?;
        }
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &path)
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

fn regular(of: &Metadata) -> io::Result<()> {
    let null = rustix::fs::makedev(1, 3);
    if of.is_file() || (of.file_type().is_char_device() && of.rdev() == null) {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::InvalidInput, format!("it is a {}, not a file", what(of.file_type()))))
}

fn what(kind: FileType) -> &'static str {
    match () {
        () if kind.is_dir() => "directory",
        () if kind.is_fifo() => "pipe (FIFO)",
        () if kind.is_socket() => "socket",
        () => "device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_refused_at_once_and_by_name() {
        let dir = tempfile::tempdir().expect("a folder");
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
        let socket = dir.path().join("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        for (path, kind) in [
            (pipe.as_path(), "pipe"),
            (socket.as_path(), "socket"),
            (dir.path(), "directory"),
            (Path::new("/dev/zero"), "device"),
        ] {
            let error = read(path, 10).expect_err(kind);
            assert!(error.to_string().contains(kind), "{error}");
        }
        assert_eq!(read(Path::new("/dev/null"), 10).expect("an empty configuration"), "");
        let file = dir.path().join("file");
        fs::write(&file, "0123456789+").expect("written");
        assert_eq!(read(&file, 10).expect_err("long").kind(), ErrorKind::FileTooLarge);
        assert_eq!(read(&file, 11).expect("short enough").len(), 11);
    }

    #[test]
    fn devices_and_pipes_keep_their_place() {
        save(Path::new("/dev/null"), "x").expect("swallowed");
        assert!(fs::metadata("/dev/null").expect("there").file_type().is_char_device());
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(save(dir.path(), "x").expect_err("a folder").kind(), ErrorKind::IsADirectory);
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
        save(&pipe, "x").expect_err("nobody reads it");
        assert!(fs::metadata(&pipe).expect("there").file_type().is_fifo());
    }
}
