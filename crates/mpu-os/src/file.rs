//! Replaces files atomically: a reader, even after a crash, finds the old contents or the new ones. Reads files with a size limit.
//! Creates private folders.

use rustix::fs::OFlags;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use tempfile::{NamedTempFile, PersistError};

/// The permissions of a written file, whatever the umask is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Those of the replaced file; 0600 for a new file.
    Kept,
    Of(u32),
}

/// Replaces a file or a symbolic link. Returns the new file, open.
///
/// # Errors
/// No temporary file is left. The old file is unchanged, unless only the last step failed, the fsync of the folder: then the new file
/// is in place. A folder cannot be replaced.
pub fn replace_file_atomically(path: &Path, contents: &[u8], mode: Mode) -> io::Result<File> {
    write_and_rename(path, contents, mode, |file| file.persist(path))
}

/// Creates a file with mode 0600.
///
/// # Errors
/// `AlreadyExists` if the path exists, also as a symbolic link.
pub fn create_file_atomically(path: &Path, contents: &[u8]) -> io::Result<File> {
    write_and_rename(path, contents, Mode::Kept, |file| file.persist_noclobber(path))
}

/// Whether a symbolic link at the path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    Followed,
    Refused,
}

/// Opens a regular file, or `/dev/null` as an empty one, for reading. Opening a pipe could block, and opening a device may have any effect.
///
/// # Errors
/// `InvalidInput` for any other kind of file.
pub fn open_regular(path: &Path, links: Links) -> io::Result<File> {
    let (metadata, nofollow) = match links {
        Links::Followed => (fs::metadata(path)?, OFlags::empty()),
        Links::Refused => (fs::symlink_metadata(path)?, OFlags::NOFOLLOW),
    };
    check_regular(&metadata)?;
    // Checked again once open: a pipe may have taken the name meanwhile.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY | nofollow).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    check_regular(&file.metadata()?)?;
    Ok(file)
}

fn check_regular(metadata: &Metadata) -> io::Result<()> {
    let is_null = metadata.file_type().is_char_device() && metadata.rdev() == rustix::fs::makedev(1, 3);
    match metadata.is_file() || is_null {
        true => Ok(()),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "it is not a file")),
    }
}

/// Reads a file as [`open_regular`] opens it.
///
/// # Errors
/// `FileTooLarge` if it has more than `limit` bytes.
pub fn read_bounded(path: &Path, limit: u64, links: Links) -> io::Result<Vec<u8>> {
    let file = open_regular(path, links)?;
    // One allocation for the whole file: a growing buffer would be copied several times.
    let len = file.metadata()?.len().min(limit);
    read_into(Vec::with_capacity(usize::try_from(len).unwrap_or(0) + 1), file, limit)
}

/// Reads a stream to its end.
///
/// # Errors
/// As [`read_bounded`].
pub fn read_all(from: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    read_into(Vec::new(), from, limit)
}

fn read_into(mut bytes: Vec<u8>, from: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    from.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {limit} bytes"))),
        false => Ok(bytes),
    }
}

/// Whether an open file is still the file at this path.
pub fn is_at(file: &File, path: &Path) -> bool {
    let id = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => id(open) == id(named),
        _ => false,
    }
}

fn write_and_rename(
    path: &Path,
    contents: &[u8],
    mode: Mode,
    persist: impl FnOnce(NamedTempFile) -> Result<File, PersistError>,
) -> io::Result<File> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    // Hidden, and with a random suffix: programs that select files of a folder by suffix ignore it.
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    // Not by `tempfile_in`: it adds the temporary name to an error, and callers add the real one.
    let create = |path: &Path| File::options().read(true).write(true).create_new(true).mode(0o600).open(path);
    let mut file = tempfile::Builder::new().prefix(&prefix).make_in(folder, create)?;
    let mode = match mode {
        Mode::Of(mode) => mode,
        Mode::Kept => {
            fs::symlink_metadata(path).ok().filter(Metadata::is_file).map_or(0o600, |old| old.mode() & 0o7777)
        }
    };
    file.as_file_mut().write_all(contents)?;
    file.as_file().set_permissions(Permissions::from_mode(mode))?;
    file.as_file().sync_all()?;
    // Opened before the rename: a later failure would be an error with the new file already in place.
    let open_folder = File::open(folder)?;
    let file = persist(file).map_err(|error| error.error)?;
    sync(&open_folder)?;
    Ok(file)
}

/// Creates a folder that only its owner can enter, or closes an existing one. Missing parents get the usual mode: they also hold files for
/// other users. Only their owner can write to them, whatever the umask is.
///
/// # Errors
/// As mkdir(2) and chmod(2).
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or(path);
    DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    // Closed from the beginning: otherwise another user could put files there first.
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => {}
        created => created?,
    }
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// Writes a folder's entries to disk, so that new names survive a crash.
///
/// # Errors
/// If the folder cannot be opened, or its disk fails.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    sync(&File::open(folder)?)
}

fn sync(folder: &File) -> io::Result<()> {
    match folder.sync_all() {
        // fsync(2): this file system does not support it.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).expect("a file").mode() & 0o7777
    }

    #[test]
    fn replaced_file_is_whole_and_keeps_its_mode() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        replace_file_atomically(&path, b"one", Mode::Kept).expect("written");
        assert_eq!((fs::read(&path).expect("read"), mode_of(&path)), (b"one".to_vec(), 0o600), "private at first");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("changed");
        let old = File::open(&path).expect("open");
        let new = replace_file_atomically(&path, b"two", Mode::Kept).expect("replaced");
        assert_eq!((fs::read(&path).expect("read"), mode_of(&path)), (b"two".to_vec(), 0o640));
        let number = |file: &File| file.metadata().expect("metadata").ino();
        assert_eq!(number(&new), fs::metadata(&path).expect("metadata").ino(), "the returned file is the new one");
        assert_ne!(number(&old), number(&new), "a reader of the old file keeps it");
        replace_file_atomically(&path, b"three", Mode::Of(0o644)).expect("replaced");
        assert_eq!(mode_of(&path), 0o644);
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1, "nothing is left beside it");
    }

    #[test]
    fn replaced_link_leaves_its_target() {
        let dir = tempfile::tempdir().expect("a directory");
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, "theirs").expect("a file");
        fs::set_permissions(&target, Permissions::from_mode(0o644)).expect("changed");
        symlink(&target, &link).expect("a link");
        replace_file_atomically(&link, b"ours", Mode::Kept).expect("replaced");
        assert_eq!(fs::read(&target).expect("read"), b"theirs");
        assert_eq!((fs::read(&link).expect("read"), mode_of(&link)), (b"ours".to_vec(), 0o600));
    }

    #[test]
    fn failed_replacement_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).expect("a folder");
        assert!(replace_file_atomically(&folder, b"x", Mode::Kept).is_err());
        let no_folder = replace_file_atomically(&dir.path().join("no/such"), b"x", Mode::Kept).expect_err("no folder");
        let plain = io::Error::from(rustix::io::Errno::NOENT).to_string();
        assert_eq!(no_folder.to_string(), plain, "without the temporary name");
        assert!(replace_file_atomically(Path::new("/"), b"x", Mode::Kept).is_err());
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1);
    }

    #[test]
    fn create_file_refuses_existing_path() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, dangling) = (dir.path().join("file"), dir.path().join("dangling"));
        create_file_atomically(&path, b"one").expect("written");
        assert_eq!(mode_of(&path), 0o600);
        symlink(dir.path().join("nowhere"), &dangling).expect("a link");
        for there in [&path, &dangling] {
            let error = create_file_atomically(there, b"two").expect_err("there is one");
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(fs::read(&path).expect("read"), b"one");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 2);
    }

    #[test]
    fn private_folder_is_closed_and_its_parent_open() {
        let dir = tempfile::tempdir().expect("a directory");
        let [usual, parent] = ["usual", "parent"].map(|name| dir.path().join(name));
        let folder = parent.join("private");
        fs::create_dir(&usual).expect("a folder");
        for _ in 0..2 {
            create_private_folder(&folder).expect("made or closed");
            assert_eq!((mode_of(&folder), mode_of(&parent)), (0o700, mode_of(&usual) & 0o755));
            fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("changed");
        }
        let file = dir.path().join("file");
        fs::write(&file, "").expect("written");
        fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("changed");
        assert_eq!(create_private_folder(&file).expect_err("a file").kind(), ErrorKind::AlreadyExists);
        assert_eq!(mode_of(&file), 0o640);
    }

    #[test]
    fn file_has_its_name_until_another_takes_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let [path, other, link] = ["a", "b", "c"].map(|name| folder.path().join(name));
        let file = File::create(&path).expect("made");
        symlink(&path, &link).expect("a link");
        assert!(is_at(&file, &path) && !is_at(&file, &link) && !is_at(&file, &other));
        File::create(&other).expect("made");
        fs::rename(&other, &path).expect("renamed");
        assert!(!is_at(&file, &path), "another has it");
        fs::remove_file(&path).expect("removed");
        assert!(!is_at(&file, &path), "no file has the name");
    }

    #[test]
    fn bounded_read_refuses_large_and_special_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, link, pipe) = (dir.path().join("file"), dir.path().join("link"), dir.path().join("pipe"));
        fs::write(&file, "12345").expect("a file");
        symlink(&file, &link).expect("a link");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
        let read = |path: &Path, limit, links| read_bounded(path, limit, links).map_err(|error| error.kind());
        let (five, null) = (Ok(b"12345".to_vec()), Path::new("/dev/null"));
        for (path, limit, links, expected) in [
            (&*file, 5, Links::Refused, five.clone()),
            (&link, 5, Links::Followed, five),
            (null, 0, Links::Refused, Ok(Vec::new())),
            (&file, 4, Links::Followed, Err(ErrorKind::FileTooLarge)),
            (&link, 5, Links::Refused, Err(ErrorKind::InvalidInput)),
            (&pipe, 5, Links::Followed, Err(ErrorKind::InvalidInput)),
            (dir.path(), 5, Links::Followed, Err(ErrorKind::InvalidInput)),
            (Path::new("/dev/zero"), 5, Links::Followed, Err(ErrorKind::InvalidInput)),
            (&dir.path().join("none"), 5, Links::Followed, Err(ErrorKind::NotFound)),
        ] {
            assert_eq!(read(path, limit, links), expected, "{} {links:?}", path.display());
        }
    }
}
