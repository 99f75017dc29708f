//! The report's file.
//!
//! Owns that nothing is overwritten unasked, that nobody else can read it, and that there is no half of one.

use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_os::file::{create_file_atomically, replace_file_atomically, Mode};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it, and the fields are what they name
pub enum ReportError {
    #[error("{} exists", path.display())]
    Exists { path: PathBuf },
    #[error("{} is not a file", path.display())]
    NoFile { path: PathBuf },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl Explain for ReportError {
    fn code(&self) -> &'static str {
        match self {
            ReportError::Exists { .. } => "file_exists",
            ReportError::NoFile { .. } => "no_file",
            ReportError::Write { .. } => "cannot_write",
        }
    }

    fn exit(&self) -> Exit {
        match self {
            ReportError::Write { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => Exit::Refused,
            ReportError::Exists { .. } | ReportError::NoFile { .. } => Exit::Refused,
            ReportError::Write { .. } => Exit::Failed,
        }
    }

    fn fix(&self) -> String {
        match self {
            ReportError::Exists { .. } => "name another file, or give --force to replace it".to_string(),
            ReportError::NoFile { .. } => "name a file".to_string(),
            ReportError::Write { .. } => "name a file in a folder that you may write to: --report FILE".to_string(),
        }
    }
}

/// Puts the report there. What is there already is replaced as a whole and only if asked; what is no file, never.
pub fn write(path: &Path, report: &str, force: bool) -> Result<(), ReportError> {
    match fs::symlink_metadata(path) {
        Ok(_) if !force => return Err(ReportError::Exists { path: path.to_path_buf() }),
        Ok(meta) if !meta.is_file() => return Err(ReportError::NoFile { path: path.to_path_buf() }),
        _ => {}
    }
    let written = match force {
        true => replace_file_atomically(path, report.as_bytes(), Mode::Of(0o600)),
        false => create_file_atomically(path, report.as_bytes()),
    };
    written.map(drop).map_err(|source| match source.kind() {
        // Somebody was quicker.
        io::ErrorKind::AlreadyExists => ReportError::Exists { path: path.to_path_buf() },
        _ => ReportError::Write { path: path.to_path_buf(), source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{symlink, PermissionsExt};

    #[test]
    fn a_file_is_private_and_replaced_only_when_asked() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("report.txt");
        write(&path, "one", false).expect("written");
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        assert!(matches!(write(&path, "two", false), Err(ReportError::Exists { .. })));
        assert_eq!(fs::read_to_string(&path).expect("a file"), "one");
        write(&path, "two", true).expect("replaced");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "two");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1, "nothing is left beside it");
    }

    #[test]
    fn leftover_of_killed_run_blocks_no_report() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("r.txt");
        write(&path, "one", false).expect("written");
        fs::write(dir.path().join(format!(".r.txt.{}", std::process::id())), "half").expect("a leftover");
        write(&path, "two", true).expect("replaced");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "two");
    }

    #[test]
    fn links_and_folders_are_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, "theirs").expect("a file");
        symlink(&target, &link).expect("a link");
        symlink(dir.path().join("nowhere"), dir.path().join("dangling")).expect("a link");
        for force in [false, true] {
            assert!(write(&link, "x", force).is_err());
            assert!(write(&dir.path().join("dangling"), "x", force).is_err());
            assert!(write(dir.path(), "x", force).is_err());
        }
        assert_eq!(fs::read_to_string(&target).expect("a file"), "theirs");
        assert!(!dir.path().join("nowhere").exists());
        assert!(matches!(write(&dir.path().join("no/such"), "x", false), Err(ReportError::Write { .. })));
    }
}
