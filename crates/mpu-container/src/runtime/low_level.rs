//! Finds and executes the low-level runtime.
//!
//! Source: NVIDIA Container Toolkit, `[nvidia-container-runtime] runtimes`: the first one that exists. A name is searched on PATH; a
//! path is used unchanged.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use thiserror::Error;

/// The default if PATH is unset, as it can be for an engine's children.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug, Error)]
pub enum LowLevelError {
    #[error("no OCI runtime is named in the configuration: nvidia-container-runtime.runtimes is empty")]
    NoneConfigured,
    #[error("none of these OCI runtimes was found: {named} (searched {searched})")]
    NotFound { named: String, searched: String },
    #[error("the OCI runtime {} is this program itself: nvidia-container-runtime.runtimes must name a runtime such as runc", .0.display())]
    IsWrapper(PathBuf),
    #[error("cannot run the OCI runtime {}", .0.display())]
    Exec(PathBuf, #[source] io::Error),
}

pub(super) fn find(named: &[String], path: Option<&OsStr>) -> Result<PathBuf, LowLevelError> {
    if named.is_empty() {
        return Err(LowLevelError::NoneConfigured);
    }
    let path = path.filter(|path| !path.is_empty()).unwrap_or(OsStr::new(PATH));
    let own = fs::metadata("/proc/self/exe").ok().map(|meta| (meta.dev(), meta.ino()));
    let mut wrapper = None;
    for found in named.iter().flat_map(|name| candidates(name, path)) {
        let Some(meta) = fs::metadata(&found).ok().filter(is_executable) else { continue };
        if own != Some((meta.dev(), meta.ino())) && !is_our_script(&found) {
            return Ok(found);
        }
        wrapper.get_or_insert(found);
    }
    Err(match wrapper {
        Some(found) => LowLevelError::IsWrapper(found),
        None => LowLevelError::NotFound { named: named.join(", "), searched: path.to_string_lossy().into_owned() },
    })
}

/// Candidate paths of a runtime. Relative directories in PATH are skipped: they depend on the engine's working directory.
fn candidates(name: &str, path: &OsStr) -> Vec<PathBuf> {
    if name.contains('/') {
        return vec![name.into()];
    }
    std::env::split_paths(path).filter(|dir| dir.is_absolute() && !name.is_empty()).map(|dir| dir.join(name)).collect()
}

/// Whether this is the installer's script beside this executable, which has one of our names and starts us again.
fn is_our_script(found: &Path) -> bool {
    let Ok(real) = found.canonicalize() else { return false };
    let identity = |folder: Option<&Path>| fs::metadata(folder?).ok().map(|meta| (meta.dev(), meta.ino()));
    let has_our_name =
        real.file_name().is_some_and(|name| super::PROGRAM.nvidia_names.iter().any(|own_name| name == *own_name));
    let own = crate::executable::path().ok();
    has_our_name
        && identity(real.parent()).is_some_and(|folder| Some(folder) == identity(own.as_deref().and_then(Path::parent)))
}

fn is_executable(meta: &fs::Metadata) -> bool {
    meta.is_file() && meta.permissions().mode() & 0o111 != 0
}

/// Executes the runtime in this process. Returns only an error.
pub(super) fn exec(runtime: &Path, arguments: &[OsString]) -> LowLevelError {
    LowLevelError::Exec(runtime.into(), Command::new(runtime).args(arguments.iter().skip(1)).exec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(dir: &Path, name: &str, mode: u32) {
        fs::write(dir.join(name), "#!/bin/sh\n").unwrap();
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn named(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).into()).collect()
    }

    /// Otherwise the wrapper and the script would start each other for ever.
    #[test]
    fn own_wrapper_script_is_not_runtime() {
        let own = std::env::current_exe().unwrap();
        let script = own.with_file_name("nvidia-container-runtime.legacy");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(&script, dir.path().join("nvidia-container-runtime.legacy")).unwrap();
        let link = dir.path().join("nvidia-container-runtime.legacy");
        for named_so in [&script, &link] {
            let alone = find(&named(&[named_so.to_str().unwrap()]), None).unwrap_err();
            assert!(matches!(&alone, LowLevelError::IsWrapper(path) if path == named_so), "{alone}");
        }
        fs::remove_file(&script).unwrap();
        // A script of this name in another folder is a runtime.
        fs::remove_file(&link).unwrap();
        program(dir.path(), "nvidia-container-runtime.legacy", 0o755);
        assert_eq!(find(&named(&[link.to_str().unwrap()]), None).unwrap(), link);
    }
}
