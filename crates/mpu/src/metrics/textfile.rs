//! Writes a page into a file for node_exporter's textfile collector, atomically and readable for all. Replaces only a
//! regular file.

use super::error::MetricsError;
use mpu_os::file::{Mode, is_at, replace_file_atomically};
use std::fs::{self, File};
use std::path::Path;

/// A written page. Its file stays open, so that no other file gets the inode number.
#[derive(Debug)]
pub struct WrittenPage(File);

impl WrittenPage {
    /// Removes the page, unless another program has replaced the file.
    pub fn remove(&self, path: &Path) {
        if is_at(&self.0, path) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Replaces the file atomically. A failure leaves the old page.
pub fn write(path: &Path, page: &[u8]) -> Result<WrittenPage, MetricsError> {
    let failed = |source| MetricsError::Write { path: path.to_path_buf(), source };
    if fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(MetricsError::NoFile { path: path.to_path_buf() });
    }
    replace_file_atomically(path, page, Mode::Of(0o644)).map(WrittenPage).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn written_page_is_complete_and_readable() {
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
    fn missing_folder_is_error() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(write(&dir.path().join("no/such/mpu.prom"), b"x 1\n").is_err());
        assert!(write(Path::new("/"), b"x 1\n").is_err());
    }

    #[test]
    fn textfile_refuses_special_files() {
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
    fn remove_keeps_page_of_other_writer() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mpu.prom");
        write(&path, b"x 1\n").expect("written").remove(&path);
        assert!(!path.exists());
        let first = write(&path, b"x 1\n").expect("written");
        let second = write(&path, b"y 1\n").expect("written");
        first.remove(&path);
        assert_eq!(fs::read_to_string(&path).expect("theirs"), "y 1\n");
        second.remove(&path);
        assert!(!path.exists());
    }
}
