//! What keeps a container's library cache from being brought up to date.

use crate::beneath::BeneathError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why the cache is not up to date.
#[derive(Debug, thiserror::Error)]
pub enum LdconfigError {
    /// A file of the container.
    #[error(transparent)]
    Beneath(#[from] BeneathError),
    /// The root that was named is this process's own.
    #[error("{} is the host's root directory; ldconfig is only run for a container", path.display())]
    Host {
        /// The path.
        path: PathBuf,
    },
    /// The image's configuration leads to more than can be followed.
    #[error("/etc/ld.so.conf in the container leads to more than {most} {what}: make it smaller in the image")]
    Endless {
        /// The limit.
        most: usize,
        /// Of what.
        what: &'static str,
    },
    /// A folder that cannot stand in a line of a file.
    #[error("the folder {folder:?} is not an absolute path on one line")]
    Folder {
        /// The folder.
        folder: String,
    },
    /// The program cannot be read.
    #[error("cannot read the host's ldconfig {}", path.display())]
    Program {
        /// Its path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The program would bring code of the container into play.
    #[error(
        "{} is not a statically linked program, and would run the container's loader; name one that is \
         (on Ubuntu /sbin/ldconfig.real)",
        path.display()
    )]
    Dynamic {
        /// Its path.
        path: PathBuf,
    },
    /// The host refused what the isolation needs.
    #[error("cannot isolate ldconfig: {step}")]
    Jail {
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// It took too long.
    #[error("ldconfig was stopped after {} s", after.as_secs())]
    Slow {
        /// The limit.
        after: Duration,
    },
    /// It failed.
    #[error("ldconfig ended with {status}: {said}")]
    Failed {
        /// How it ended.
        status: String,
        /// The last line that it printed.
        said: String,
    },
}
