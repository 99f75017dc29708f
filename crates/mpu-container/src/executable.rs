//! The path of this executable, for hooks and links that outlive this process.
//!
//! Source: proc(5), `/proc/PID/exe`: the path of a removed or replaced file ends in ` (deleted)`.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The path of this executable. It stays valid after a package has replaced the file.
pub fn path() -> io::Result<PathBuf> {
    Ok(without_deleted_suffix(&std::env::current_exe()?))
}

/// A file can really have this suffix. Then it exists.
fn without_deleted_suffix(path: &Path) -> PathBuf {
    match path.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
        Some(rest) if !path.exists() => OsStr::from_bytes(rest).into(),
        _ => path.to_path_buf(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleted_suffix_is_removed_unless_file_exists() {
        let folder = tempfile::tempdir().unwrap();
        let (plain, marked) = (folder.path().join("mpu"), folder.path().join("mpu (deleted)"));
        assert_eq!(without_deleted_suffix(&plain), plain);
        assert_eq!(without_deleted_suffix(&marked), plain);
        std::fs::write(&marked, "").unwrap();
        assert_eq!(without_deleted_suffix(&marked), marked);
    }
}
