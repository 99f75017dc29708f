//! Finds and starts systemd units.

use super::error::NotifyError;
use mpu_host::host::Host;
use mpu_os::child;
use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Folders of systemd.unit(5) that may have our units.
const FOLDERS: [&str; 4] =
    ["/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"];

/// The limit for a request that systemd only queues.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The limit for a question to systemd or its journal.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

const MAX_OUTPUT: u64 = 1 << 16;

/// Whether systemd runs and has the unit.
pub fn has_unit(host: &Host, unit: &str) -> bool {
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
    let output = child::run(Command::new(program).args(arguments).stdin(Stdio::null()), TIMEOUT, MAX_OUTPUT);
    let output = output.map_err(|source| NotifyError::Start { what: what.clone(), source })?;
    match output.status {
        Some(status) if status.success() => Ok(()),
        Some(_) => {
            let message = String::from_utf8_lossy(&output.stderr).trim().to_string();
            Err(NotifyError::Systemd { what, message })
        }
        None => Err(NotifyError::Start { what, source: io::ErrorKind::TimedOut.into() }),
    }
}

/// How often systemd has started a unit again by itself; none before systemd 235, which does not count.
pub(crate) fn restarts(host: &Host, unit: &str) -> Option<u64> {
    query(host, "systemctl", &["show", "--property=NRestarts", unit])?.trim().strip_prefix("NRestarts=")?.parse().ok()
}

/// The last lines that mpu wrote to the journal as a unit in the last ten seconds.
pub(crate) fn last_lines(host: &Host, unit: &str) -> Option<String> {
    let lines = ["--unit", unit, "--identifier=mpu", "--since=-10s", "--lines=4"];
    query(host, "journalctl", &[&lines[..], &["--output=cat", "--quiet", "--no-pager"]].concat())
}

fn query(host: &Host, tool: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(host.tool(tool)?);
    let output = child::run(command.args(arguments).stdin(Stdio::null()), QUERY_TIMEOUT, MAX_OUTPUT).ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}
