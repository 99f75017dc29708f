//! Writing a page into a file for node_exporter's textfile collector.
//!
//! Owns how: whole or not at all, readable for a collector that is not root. What is no file is left alone, a link too.

use super::error::MetricsError;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A page that this process has put somewhere. It is kept open, so that no other file gets its number.
#[derive(Debug)]
pub struct Written(File);

impl Written {
    /// Takes the page away, unless somebody else has put a file there since.
    pub fn remove(&self, path: &Path) {
        let number = |of: fs::Metadata| (of.dev(), of.ino());
        let there = fs::symlink_metadata(path).map(number);
        if there.is_ok_and(|there| self.0.metadata().map(number).is_ok_and(|ours| ours == there)) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Puts the page there. A reader finds the old page or the new one, never a part; a failure leaves the old one.
pub fn write(path: &Path, page: &[u8]) -> Result<Written, MetricsError> {
    let failed = |source| MetricsError::Write { path: path.to_path_buf(), source };
    if fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(MetricsError::NoFile { path: path.to_path_buf() });
    }
    let beside = beside(path).ok_or_else(|| failed(io::Error::from(io::ErrorKind::InvalidInput)))?;
    let written = fill(&beside, page).and_then(|file| fs::rename(&beside, path).map(|()| Written(file)));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written.map_err(failed)
}

/// A name in the same directory that the collector does not read: it wants names that end in `.prom`.
fn beside(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    Some(path.with_file_name(format!(".{name}.{}", std::process::id())))
}

fn fill(path: &Path, page: &[u8]) -> io::Result<File> {
    // One left by a killed run with our number goes; `create_new` follows no link that somebody laid there.
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    // Whatever the umask is.
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.write_all(page)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_whole_and_readable_and_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mpu.prom");
        for page in ["first 1\n", "second 2\n"] {
            write(&path, page.as_bytes()).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("a page"), page);
        }
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_failure_leaves_the_old_page_and_nothing_beside() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mpu.prom");
        write(&path, b"old 1\n").expect("written");
        // What is in the way of the page beside it: a directory.
        let beside = beside(&path).expect("a name");
        fs::create_dir(&beside).expect("a directory");
        assert!(matches!(write(&path, b"x 1\n"), Err(MetricsError::Write { .. })));
        assert_eq!(fs::read_to_string(&path).expect("a page"), "old 1\n");
        fs::remove_dir(&beside).expect("still there");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1);
        assert!(write(&dir.path().join("no/such/mpu.prom"), b"x 1\n").is_err());
        assert!(write(Path::new("/"), b"x 1\n").is_err());
    }

    #[test]
    fn what_is_no_file_stays_what_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let (pipe, link, dangling) = (dir.path().join("pipe"), dir.path().join("link"), dir.path().join("dangling"));
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
        let target = dir.path().join("target");
        fs::write(&target, "theirs").expect("a file");
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        std::os::unix::fs::symlink("nowhere", &dangling).expect("a link");
        for path in [pipe.as_path(), &link, &dangling, dir.path()] {
            let before = fs::symlink_metadata(path).expect("there");
            let error = write(path, b"x 1\n").expect_err("refused");
            assert!(matches!(error, MetricsError::NoFile { .. }), "{error}");
            let after = fs::symlink_metadata(path).expect("there");
            assert_eq!((before.ino(), before.file_type()), (after.ino(), after.file_type()), "{}", path.display());
        }
        assert_eq!(fs::read_to_string(&target).expect("a file"), "theirs");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 4, "nothing is left beside them");
    }

    #[test]
    fn only_our_own_page_is_taken_away() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mpu.prom");
        write(&path, b"x 1\n").expect("written").remove(&path);
        assert!(!path.exists());
        let ours = write(&path, b"x 1\n").expect("written");
        let theirs = write(&path, b"y 1\n").expect("written");
        ours.remove(&path);
        assert_eq!(fs::read_to_string(&path).expect("theirs"), "y 1\n");
        theirs.remove(&path);
        assert!(!path.exists());
    }
}
