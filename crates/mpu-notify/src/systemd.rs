//! Units of systemd's: whether one is there, and its start.
//!
//! Owns the words for `systemctl`. Knows no unit.

use super::error::NotifyError;
use mpu_host::host::Host;
use std::io;
use std::process::{Command, Stdio};

/// Where units are (systemd.unit(5)), as far as anybody installs ours.
const FOLDERS: [&str; 4] =
    ["/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"];

/// Whether systemd runs and has the unit.
pub fn has(host: &Host, unit: &str) -> bool {
    let has = |folder: &&str| host.at(folder).join(unit).is_file();
    host.at("/run/systemd/system").is_dir() && host.tool("systemctl").is_some() && FOLDERS.iter().any(has)
}

/// Has it started. Not waited for: the caller may be part of a start that systemd is in the middle of.
///
/// # Errors
/// When systemd cannot be asked, or refuses.
pub fn start(host: &Host, unit: &str) -> Result<(), NotifyError> {
    let arguments = ["start", "--no-block", "--no-ask-password", unit];
    let what = format!("systemctl {}", arguments.join(" "));
    let missing = || NotifyError::Start { what: what.clone(), source: io::ErrorKind::NotFound.into() };
    let program = host.tool("systemctl").ok_or_else(missing)?;
    let said = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let said = said.map_err(|source| NotifyError::Start { what: what.clone(), source })?;
    match said.status.success() {
        true => Ok(()),
        false => {
            let message = String::from_utf8_lossy(&said.stderr).trim().to_string();
            Err(NotifyError::Systemd { what, message })
        }
    }
}
