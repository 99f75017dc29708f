//! Errors of `mpu top`.

use crate::processes::ProcessError;
use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, Facts};
use std::io;

/// Why `mpu top` ends.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    #[error("standard output is not a terminal")]
    NotATerminal,
    #[error("the terminal cannot be used")]
    Terminal { source: io::Error },
    #[error("cannot write the list")]
    Output { source: io::Error },
    #[error(transparent)]
    Process(#[from] ProcessError),
}

impl Explain for TopError {
    fn facts(&self) -> Facts {
        let (code, exit, fix) = match self {
            TopError::NotATerminal => {
                ("not_a_terminal", Exit::Usage, "use `mpu ps`, or `mpu top --once` or `--batch`, for plain text")
            }
            TopError::Terminal { .. } => {
                ("terminal_failed", Exit::Failed, "check that $TERM names this terminal, or use `mpu ps`")
            }
            TopError::Output { .. } => ("output_failed", Exit::Failed, "check whether the disk is full"),
            TopError::Process(error) => return error.facts(),
        };
        (code, exit, fix.to_string())
    }
}
