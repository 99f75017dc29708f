//! Writing a page into a file for node_exporter's textfile collector.
//!
//! Owns how: whole or not at all, readable for a collector that is not root.

use super::error::MetricsError;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Puts the page there. A reader finds the old page or the new one, never a part; a failure leaves the old one.
pub fn write(path: &Path, page: &[u8]) -> Result<(), MetricsError> {
    let failed = |source| MetricsError::Write { path: path.to_path_buf(), source };
    let beside = beside(path).ok_or_else(|| failed(io::Error::from(io::ErrorKind::InvalidInput)))?;
    let written = fill(&beside, page).and_then(|()| fs::rename(&beside, path));
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

fn fill(path: &Path, page: &[u8]) -> io::Result<()> {
    // One left by a killed run with our number goes; `create_new` follows no link that somebody laid there.
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    // Whatever the umask is.
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.write_all(page)
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
        // A directory cannot be replaced by a file.
        let path = dir.path().join("mpu.prom");
        fs::create_dir(&path).expect("a directory");
        assert!(matches!(write(&path, b"x 1\n"), Err(MetricsError::Write { .. })));
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1);
        assert!(write(&dir.path().join("no/such/mpu.prom"), b"x 1\n").is_err());
        assert!(write(Path::new("/"), b"x 1\n").is_err());
    }
}
