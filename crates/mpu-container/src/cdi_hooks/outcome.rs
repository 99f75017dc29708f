//! A hook's error and its log.

use super::state;
use crate::beneath::BeneathError;
use crate::driver::LimitError;
use crate::ldconfig::LdconfigError;
use crate::output;
use crate::request::RequestError;
use crate::spec::SpecError;
use std::io;
use std::path::PathBuf;

pub(super) const NAME: &str = "nvidia-cdi-hook";

#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error(transparent)]
    State(#[from] state::StateError),
    #[error(transparent)]
    Beneath(#[from] BeneathError),
    #[error(transparent)]
    Ldconfig(#[from] LdconfigError),
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the container asks for a limit of GPU memory, which would not hold")]
    Limits(#[from] LimitError),
    #[error("the container's root {} is the host's root directory; a hook changes containers only", path.display())]
    Host { path: PathBuf },
    #[error("{what} {value:?} is not {expected}")]
    Argument { what: &'static str, value: String, expected: &'static str },
    #[error("cannot {act}")]
    System { act: &'static str, source: io::Error },
}

/// Writes to standard error, which a runtime shows if the hook fails.
#[derive(Debug, Clone, Copy)]
pub(super) struct Log {
    pub(super) debug: bool,
    pub(super) quiet: bool,
}

impl Log {
    pub(super) fn debug(self, text: impl FnOnce() -> String) {
        if self.debug && !self.quiet {
            output::eprint_line(format!("{NAME}: {}", text()));
        }
    }

    pub(super) fn warn(self, text: impl AsRef<str>) {
        if !self.quiet {
            output::eprint_line(format!("{NAME}: warning: {}", text.as_ref()));
        }
    }
}
