//! Updates a container's `/etc/ld.so.cache`.
//!
//! Writes the list of folders for the container's loader (`ld.so.conf.d`, musl's path file), and runs the *host's* ldconfig on the
//! container's root in a jail (`jail`). Never starts a program of the image.
//!
//! Source: NVIDIA's container toolkit (`internal/ldconfig`) for the drop-in files' names and the distributions' folders, so that either
//! hook finds the files of the other; ldconfig(8), ld.so(8).

mod child;
pub mod conf;
mod error;
mod filter;
mod folders;
mod jail;
mod program;
mod sys;
#[cfg(test)]
mod tests;

pub use error::LdconfigError;
pub use program::{host_path, is_static};

use crate::beneath::Root;
use rustix::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// Timeout of ldconfig. It reads the first bytes of some thousand files. Its CPU time is limited to 10 s.
const TIMEOUT: Duration = Duration::from_secs(30);

const CACHE: &str = "/etc/ld.so.cache";

/// Adds the libraries in `folders` (absolute paths in the container) to the container's loader cache, by the host's
/// ldconfig.
///
/// Changes the cache, drop-in files of a fixed name in `/etc/ld.so.conf.d`, musl's path file if the image has musl, and
/// soname links that ldconfig creates beside libraries. Idempotent.
///
/// `host_ldconfig` is a path on the host, with or without the `@` of NVIDIA's configuration.
pub fn run(root: &Root, host_ldconfig: &Path, folders: &[impl AsRef<str>]) -> Result<(), LdconfigError> {
    seal(host_ldconfig)?.run(root, folders)
}

/// A sealed copy of the host's ldconfig, made before another mount namespace is entered.
#[derive(Debug)]
pub struct SealedLdconfig {
    program: OwnedFd,
    pivot: bool,
}

/// Copies the host's ldconfig, in the current mount namespace.
pub fn seal(host_ldconfig: &Path) -> Result<SealedLdconfig, LdconfigError> {
    Ok(SealedLdconfig { program: program::seal(&host_path(host_ldconfig))?, pivot: true })
}

impl SealedLdconfig {
    /// Uses chroot instead of pivot_root, as on hosts whose root is an initial RAM file system.
    #[must_use]
    pub fn without_pivot(self) -> SealedLdconfig {
        SealedLdconfig { pivot: false, ..self }
    }

    /// As [`run`].
    pub fn run(&self, root: &Root, folders: &[impl AsRef<str>]) -> Result<(), LdconfigError> {
        if root.is_process_root()? {
            return Err(LdconfigError::Host { path: root.path().to_path_buf() });
        }
        let folders: Vec<&str> = folders.iter().map(AsRef::as_ref).collect();
        let unreachable = folders::write_config(root, &folders)?;
        let mut arguments = vec!["ldconfig", "-i", "-f", folders::CONF, "-C", CACHE];
        arguments.extend(unreachable.iter().map(String::as_str));
        jail::run(root, &self.program, &arguments, TIMEOUT, self.pivot)
    }
}
