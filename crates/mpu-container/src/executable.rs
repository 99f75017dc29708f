//! The path of this executable, for hooks and links that outlive this process.
//!
//! Source: proc(5), `/proc/PID/exe`: the path of a removed or replaced file ends in ` (deleted)`.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The path, which stays valid after a package has replaced the file.
pub fn path() -> io::Result<PathBuf> {
    Ok(without_mark(&std::env::current_exe()?))
}

/// A file can be called so: then it is there.
fn without_mark(path: &Path) -> PathBuf {
    match path.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
        Some(rest) if !path.exists() => OsStr::from_bytes(rest).into(),
        _ => path.to_path_buf(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_mark_is_no_part_of_name() {
        let folder = tempfile::tempdir().unwrap();
        let (plain, marked) = (folder.path().join("mpu"), folder.path().join("mpu (deleted)"));
        assert_eq!(without_mark(&plain), plain);
        assert_eq!(without_mark(&marked), plain);
        std::fs::write(&marked, "").unwrap();
        assert_eq!(without_mark(&marked), marked);
    }
}
