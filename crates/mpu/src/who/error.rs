//! Why it is not known what holds the driver.

use crate::processes::ProcessError;
use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, Facts};
use std::io;

#[derive(Debug, thiserror::Error)]
pub enum WhoError {
    #[error("needs root (CAP_SYS_PTRACE): PIDs and names of other users are shown to root alone")]
    NotRoot,
    #[error("/proc hides the processes of others from this process (hidepid)")]
    Hidden,
    #[error("/proc cannot be listed")]
    NoProc { source: io::Error },
    #[error(transparent)]
    Process(#[from] ProcessError),
}

impl Explain for WhoError {
    fn facts(&self) -> Facts {
        match self {
            WhoError::NotRoot => ("not_root", Exit::Refused, "run it as root: sudo mpu who".to_string()),
            WhoError::Hidden => {
                ("hidden_processes", Exit::Refused, "run it as root of the host, in no user namespace".to_string())
            }
            WhoError::NoProc { .. } => ("no_proc", Exit::NotReady, "mount /proc".to_string()),
            WhoError::Process(error) => error.facts(),
        }
    }
}
