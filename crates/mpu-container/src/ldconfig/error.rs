//! Errors of updating a container's library cache.

use crate::beneath::BeneathError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum LdconfigError {
    #[error(transparent)]
    Beneath(#[from] BeneathError),
    #[error("{} is the host's root directory; ldconfig is only run for a container", path.display())]
    Host { path: PathBuf },
    #[error("/etc/ld.so.conf in the container leads to more than {most} {what}: make it smaller in the image")]
    ConfigTooLarge { most: usize, what: &'static str },
    #[error("the folder {folder:?} is not an absolute path on one line")]
    Folder { folder: String },
    #[error("cannot read the host's ldconfig {}", path.display())]
    Program { path: PathBuf, source: io::Error },
    #[error(
        "{} is not a statically linked program, and would run the container's loader; name one that is \
         (on Ubuntu /sbin/ldconfig.real)",
        path.display()
    )]
    Dynamic { path: PathBuf },
    #[error("cannot isolate ldconfig: {step}")]
    Jail { step: &'static str, source: io::Error },
    #[error("ldconfig was stopped after {} s", after.as_secs())]
    TimedOut { after: Duration },
    #[error("ldconfig ended with {status}: {output}")]
    Failed { status: String, output: String },
}
