//! Why an installation, an upgrade or a removal did not happen.

use super::layout::VERSION;
use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, Facts};
use mpu_os::lock::HeldLock;
use std::io;
use std::path::PathBuf;

/// Why nothing was installed, upgraded or removed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("MPU is installed on this host as a package ({manager})")]
    Packaged { manager: &'static str, command: String },
    #[error("MPU is not installed here by `mpu install`")]
    NotInstalled,
    #[error("MPU {installed} is installed, and this is mpu {VERSION}")]
    Newer { installed: String },
    #[error("files that `mpu install` did not write are in its way: {}", list_paths(paths))]
    Foreign { paths: Vec<PathBuf> },
    #[error("this needs root")]
    NotRoot,
    #[error("{} is not the root of the running host", root.display())]
    OtherRoot { root: PathBuf },
    #[error("cannot read this executable")]
    Executable { source: io::Error },
    #[error("cannot read, write or remove {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("another process changes this host's installation now: {} is held by {}", .0.path.display(), .0.by)]
    Locked(HeldLock),
    #[error("an interrupted installation cannot be undone: {}", failures.join("; "))]
    NotRestored { path: PathBuf, failures: Vec<String> },
    #[error("{} has a change that this mpu cannot undo: another version wrote it", path.display())]
    UnknownChange { path: PathBuf, source: serde_json::Error },
    #[error("`{command}` failed: {why}")]
    Failed { command: String, why: String },
    #[error("`{what}` failed and was undone: {reason}{}", list_failures(failures))]
    RolledBack { what: String, reason: String, failures: Vec<String>, fix: String },
}

fn list_paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn list_failures(failures: &[String]) -> String {
    match failures {
        [] => "; the host is as it was".to_string(),
        failures => format!("; what could not be undone: {}", failures.join("; ")),
    }
}

impl Explain for InstallError {
    fn facts(&self) -> Facts {
        use Exit::{Failed, NotReady, Refused};
        use InstallError as E;
        let (code, exit, fix) = match self {
            E::Packaged { command, .. } => {
                return ("is_a_package", Refused, format!("let the package manager do it: `{command}`"));
            }
            E::NotInstalled => ("not_installed", NotReady, "`sudo mpu install` installs it"),
            E::Newer { .. } => ("newer_installed", Failed, "run the newer mpu; to go back, run `mpu uninstall` first"),
            E::Foreign { .. } => ("foreign_files", Failed, "move them away, then try again; nothing was changed"),
            E::NotRoot => ("not_root", Refused, "run it with sudo; --dry-run shows what it would do"),
            E::OtherRoot { .. } => ("other_root", Refused, "run it without --host-root, or with --dry-run"),
            E::Executable { .. } => ("executable_unreadable", Failed, "start mpu from a file that still exists"),
            E::File { .. } => {
                let fix = "free disk space, make the folder writable, or move away what is in its place; nothing is left \
                           half done";
                ("file_unwritable", Failed, fix)
            }
            E::Locked(held) => return held.facts(),
            E::NotRestored { path, .. } => {
                let fix = format!(
                    "look at these files: free disk space, make them writable or move away what is in their place, and try again; to do \
                     without the bytes in {}, remove it",
                    path.display()
                );
                return ("not_restored", Failed, fix);
            }
            E::UnknownChange { path, .. } => {
                let fix = "run the version of mpu that was broken off; to do without undoing, remove";
                return ("unknown_change", Failed, format!("{fix} {}", path.display()));
            }
            E::Failed { .. } => ("step_failed", Failed, "run the command by hand to see its whole output"),
            E::RolledBack { fix, .. } => ("rolled_back", Failed, &**fix),
        };
        (code, exit, fix.to_string())
    }
}
