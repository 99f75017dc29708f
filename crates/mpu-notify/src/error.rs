//! Errors of the notify engine, each with its fix.

use mpu_host::config::{ConfigError, UnknownDriver};
use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, Facts};
use std::io;
use std::path::PathBuf;

/// Why the engine is not up, or not configured.
#[derive(Debug, thiserror::Error)]
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
    #[error("the running supervisor is MPU {up}, and this is {this}")]
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
    fn facts(&self) -> Facts {
        use NotifyError as E;
        const LOG: &str = "`journalctl -u mpu-notify` or /run/mpu/notify/log shows the supervisor's messages";
        const START: &str = "`systemctl status mpu-notify` or /run/mpu/notify/log says more; check also that mpu itself can be executed";
        const FILES: &str = "raise the limit of open files: `ulimit -n 1024` here, or fs.file-max for the host";
        let by_errno = |source: &io::Error, other: &'static str| match source.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => FILES,
            _ => other,
        };
        let by_kind = |source: &io::Error| match source.kind() {
            io::ErrorKind::PermissionDenied => Exit::Refused,
            _ => Exit::Failed,
        };
        let (code, exit, fix) = match self {
            E::NotRoot => ("not_root", Exit::Refused, "run it as root, on the host: sudo mpu …"),
            E::NotOnHost => (
                "not_on_host",
                Exit::Refused,
                "run it on the host, or in a container that shares the host's PID namespace",
            ),
            E::NoListeners { .. } => (
                "no_listeners",
                Exit::NotReady,
                "a kernel from 5.9 on with CONFIG_SECCOMP_FILTER is needed; `mpu up --engine module` needs no such thing",
            ),
            E::File { source, .. } => match by_kind(source) {
                Exit::Refused => ("no_file", Exit::Refused, "run it as root: sudo mpu …"),
                exit => ("no_file", exit, "check that /run is writable and that nothing else is at that path"),
            },
            E::NoAnswer { .. } => ("no_answer", Exit::Failed, LOG),
            E::Refused { .. } => ("refused", Exit::Failed, LOG),
            E::NotUp { .. } => ("not_up", Exit::Failed, LOG),
            E::OtherVersion { .. } => {
                ("other_version_up", Exit::Failed, "let this one take over, with no call lost: mpu up --replace")
            }
            E::Start { source, .. } => ("not_started", Exit::Failed, by_errno(source, START)),
            E::Systemd { .. } => ("not_started", Exit::Failed, START),
            E::Namespace { source } => (
                "no_namespace",
                by_kind(source),
                by_errno(source, "see that user.max_pid_namespaces is not 0, and that /proc can be mounted"),
            ),
            E::UnknownDriver(error) => return error.facts(),
            E::Config(error) => return error.facts(),
        };
        (code, exit, fix.to_string())
    }
}
