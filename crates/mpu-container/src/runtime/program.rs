//! Paths of our other programs, for hooks.
//!
//! All of them are this executable: a link beside it, or the executable itself with the program's name as first argument. PATH is not
//! searched: an engine's PATH may lead to another program of that name.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const OWN: &str = "/proc/self/exe";
/// Directories in which the package puts its links, when the executable lies elsewhere.
const LINKS: &[&str] = &["/usr/bin", "/usr/local/bin"];

pub(super) fn own_program(name: &str) -> PathBuf {
    let own = crate::executable::path().unwrap_or_else(|_| OWN.into());
    let beside = own.parent().into_iter().chain(LINKS.iter().map(Path::new)).map(|dir| dir.join(name));
    let link = beside.into_iter().find(|link| is_ours(link));
    link.unwrap_or(own)
}

/// Whether a path is this executable, by whatever name.
pub(super) fn is_ours(path: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    identity(path).is_some_and(|found| Some(found) == identity(Path::new(OWN)))
}

/// A program that the configuration names by an absolute path; ours if it names none.
pub(super) fn configured(path: &str, name: &str) -> PathBuf {
    Some(Path::new(path)).filter(|path| path.is_absolute()).map_or_else(|| own_program(name), PathBuf::from)
}
