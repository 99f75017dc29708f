//! Finds and starts systemd units.

use super::error::NotifyError;
use mpu_host::host::Host;
use std::io;
use std::process::{Command, Stdio};

/// Folders of systemd.unit(5) that may have our units.
const FOLDERS: [&str; 4] =
    ["/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"];

/// Whether systemd runs and has the unit.
pub fn has(host: &Host, unit: &str) -> bool {
    let has = |folder: &&str| host.at(folder).join(unit).is_file();
    host.at("/run/systemd/system").is_dir() && host.tool("systemctl").is_some() && FOLDERS.iter().any(has)
}

/// Starts a unit without waiting: this process may itself be part of a start by systemd.
///
/// # Errors
/// If systemd cannot be called, or refuses.
pub fn start(host: &Host, unit: &str) -> Result<(), NotifyError> {
    let arguments = ["start", "--no-block", "--no-ask-password", unit];
    let what = format!("systemctl {}", arguments.join(" "));
    let missing = || NotifyError::Start { what: what.clone(), source: io::ErrorKind::NotFound.into() };
    let program = host.tool("systemctl").ok_or_else(missing)?;
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|source| NotifyError::Start { what: what.clone(), source })?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let message = String::from_utf8_lossy(&output.stderr).trim().to_string();
            Err(NotifyError::Systemd { what, message })
        }
    }
}
