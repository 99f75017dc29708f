//! Why `mpu top` shows nothing.

use crate::processes::ProcessError;
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use std::io;

/// Why there is no screen.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it, and the fields are what they name
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
    fn code(&self) -> &'static str {
        match self {
            TopError::NotATerminal => "not_a_terminal",
            TopError::Terminal { .. } => "terminal_failed",
            TopError::Output { .. } => "output_failed",
            TopError::Process(error) => error.code(),
        }
    }

    fn exit(&self) -> Exit {
        match self {
            TopError::NotATerminal => Exit::Usage,
            TopError::Terminal { .. } | TopError::Output { .. } => Exit::Failed,
            TopError::Process(error) => error.exit(),
        }
    }

    fn fix(&self) -> String {
        match self {
            TopError::NotATerminal => "use `mpu ps`, or `mpu top --once` or `--batch`, for plain text",
            TopError::Terminal { .. } => "check that $TERM names this terminal, or use `mpu ps`",
            TopError::Output { .. } => "check whether the disk is full",
            TopError::Process(error) => return error.fix(),
        }
        .to_string()
    }
}
