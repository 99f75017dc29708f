//! What can go wrong with the notify engine, each with its way out.

use mpu_host::config::{ConfigError, UnknownDriver};
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use std::io;
use std::path::PathBuf;

/// Why the engine is not up, or not told what it was to be told.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it, and the fields are what they name
pub enum NotifyError {
    #[error("only root, in the host's PID namespace, can answer for the callers in containers")]
    NotRoot,
    #[error("this process is not in the host's PID namespace: its PIDs differ from the driver's")]
    NotOnHost,
    #[error("this kernel has no listeners for system calls")]
    NoListeners { source: io::Error },
    #[error("cannot use {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("the supervisor does not answer")]
    NoAnswer { source: io::Error },
    #[error("the supervisor refuses: {message}")]
    Refused { message: String },
    #[error("the supervisor that is up is MPU {up}, and this is {this}")]
    OtherVersion { up: String, this: &'static str },
    #[error("the supervisor was started and did not come up within {seconds} s")]
    NotUp { seconds: u64 },
    #[error("cannot start {what}")]
    Start { what: String, source: io::Error },
    #[error("{what} failed: {message}")]
    Systemd { what: String, message: String },
    #[error("cannot make a PID namespace for the command")]
    Namespace { source: io::Error },
    #[error(transparent)]
    UnknownDriver(#[from] UnknownDriver),
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl Explain for NotifyError {
    fn code(&self) -> &'static str {
        match self {
            NotifyError::NotRoot => "not_root",
            NotifyError::NotOnHost => "not_on_host",
            NotifyError::NoListeners { .. } => "no_listeners",
            NotifyError::File { .. } => "no_file",
            NotifyError::NoAnswer { .. } => "no_answer",
            NotifyError::Refused { .. } => "refused",
            NotifyError::OtherVersion { .. } => "other_version_up",
            NotifyError::NotUp { .. } => "not_up",
            NotifyError::Start { .. } | NotifyError::Systemd { .. } => "not_started",
            NotifyError::Namespace { .. } => "no_namespace",
            NotifyError::UnknownDriver(error) => error.code(),
            NotifyError::Config(error) => error.code(),
        }
    }

    fn exit(&self) -> Exit {
        match self {
            NotifyError::NotRoot | NotifyError::NotOnHost => Exit::Refused,
            NotifyError::NoListeners { .. } => Exit::NotReady,
            NotifyError::UnknownDriver(error) => error.exit(),
            NotifyError::Config(error) => error.exit(),
            NotifyError::Namespace { source } | NotifyError::File { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Exit::Refused
            }
            _ => Exit::Failed,
        }
    }

    fn fix(&self) -> String {
        match self {
            NotifyError::NotRoot => "run it as root, on the host: sudo mpu …",
            NotifyError::NotOnHost => "run it on the host, or in a container that shares the host's PID namespace",
            NotifyError::NoListeners { .. } => {
                "a kernel from 5.9 on with CONFIG_SECCOMP_FILTER is needed; `mpu up --engine module` needs no such thing"
            }
            NotifyError::File { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => "run it as root: sudo mpu …",
            NotifyError::File { .. } => "check that /run is writable and that nothing else is at that path",
            NotifyError::NoAnswer { .. } | NotifyError::Refused { .. } | NotifyError::NotUp { .. } => {
                "`journalctl -u mpu-notify` or /run/mpu/notify/log shows the supervisor's messages"
            }
            NotifyError::OtherVersion { .. } => "let this one take over, with no call lost: mpu up --replace",
            NotifyError::Start { .. } | NotifyError::Systemd { .. } => {
                "`systemctl status mpu-notify` says more; without systemd, check that mpu itself can be executed"
            }
            NotifyError::UnknownDriver(error) => return error.fix(),
            NotifyError::Config(error) => return error.fix(),
            NotifyError::Namespace { .. } => "see that user.max_pid_namespaces is not 0, and that /proc can be mounted",
        }
        .to_string()
    }
}
