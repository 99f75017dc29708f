//! Paths of our other programs, for hooks.
//!
//! A path is a link to this executable or the executable itself. PATH is not searched: an engine's PATH may lead to another program
//! of that name.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const SELF_EXE: &str = "/proc/self/exe";
/// The package's directories of links.
const LINKS: &[&str] = &["/usr/bin", "/usr/local/bin"];

pub(super) fn own_program(name: &str) -> PathBuf {
    let own = crate::executable::path().unwrap_or_else(|_| SELF_EXE.into());
    let beside = own.parent().into_iter().chain(LINKS.iter().map(Path::new)).map(|dir| dir.join(name));
    let link = beside.into_iter().find(|link| is_ours(link));
    link.unwrap_or(own)
}

/// Whether a path is this executable, under any name.
pub(super) fn is_ours(path: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    identity(path).is_some_and(|found| Some(found) == identity(Path::new(SELF_EXE)))
}

/// The absolute path in the configuration, or else our program of this name.
pub(super) fn configured(path: &str, name: &str) -> PathBuf {
    Some(Path::new(path)).filter(|path| path.is_absolute()).map_or_else(|| own_program(name), PathBuf::from)
}
