//! Runs one sealed program in a jail on a container's root.
//!
//! The program has its own mount, PID and IPC namespaces. Its `/` is the container's root; the host's files are not mounted. `/proc` is
//! empty, because the container's `/proc/1/root` is the host's root until its first program runs. The program has no capabilities and
//! cannot get any. It has resource limits, an empty environment, and a seccomp filter (`filter`).

mod sys;

use super::child::{Jail, STEPS};
use super::error::LdconfigError;
use crate::beneath::Root;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Signal, WaitId, WaitIdOptions};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::time::{Duration, Instant};

pub fn run(
    root: &Root,
    program: &OwnedFd,
    arguments: &[&str],
    timeout: Duration,
    pivot: bool,
) -> Result<(), LdconfigError> {
    let jail = Jail::prepare(root, program, arguments, pivot)?;
    let process =
        sys::spawn(&jail).map_err(|source| LdconfigError::Jail { step: "start a process of its own", source })?;
    let status = wait(&process, timeout)?;
    let report = read(&jail.report);
    if let [step, errno @ ..] = report.as_slice() {
        let errno = i32::from_ne_bytes(errno.try_into().unwrap_or_default());
        let step = STEPS.get(usize::from(*step)).copied().unwrap_or_default();
        return Err(LdconfigError::Jail { step, source: io::Error::from_raw_os_error(errno) });
    }
    match status.exit_status() {
        Some(0) => Ok(()),
        code => {
            let text = String::from_utf8_lossy(&read(&jail.output)).trim().to_string();
            let output = text.lines().next_back().unwrap_or("it printed nothing");
            let output = output.replace(char::is_control, "?");
            let status = match (code, status.terminating_signal()) {
                (Some(code), _) => format!("exit code {code}"),
                (None, Some(signal)) => format!("signal {signal}"),
                (None, None) => "no status".into(),
            };
            Err(LdconfigError::Failed { status, output })
        }
    }
}

/// How long to wait for a killed program.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits for the program. Kills it after `timeout`.
fn wait(process: &OwnedFd, timeout: Duration) -> Result<rustix::process::WaitIdStatus, LdconfigError> {
    let wrap = |error: Errno| LdconfigError::Jail { step: "wait for it", source: error.into() };
    let in_time = ends_within(process, timeout).map_err(wrap)?;
    if !in_time {
        // A process in uninterruptible sleep does not end. Do not wait for it any longer.
        rustix::process::pidfd_send_signal(process, Signal::KILL).map_err(wrap)?;
        if !ends_within(process, KILL_TIMEOUT).map_err(wrap)? {
            return Err(LdconfigError::TimedOut { after: timeout });
        }
    }
    let status = loop {
        match rustix::process::waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED) {
            Err(Errno::INTR) => {}
            result => break result.map_err(wrap)?,
        }
    };
    match status {
        Some(status) if in_time => Ok(status),
        _ => Err(LdconfigError::TimedOut { after: timeout }),
    }
}

/// Whether the process ends in this time. A signal does not extend the wait.
fn ends_within(process: &OwnedFd, timeout: Duration) -> Result<bool, Errno> {
    let deadline = Instant::now() + timeout;
    loop {
        let remaining = Timespec::try_from(deadline.saturating_duration_since(Instant::now()));
        let remaining = remaining.map_err(|_| Errno::INVAL)?;
        match rustix::event::poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&remaining)) {
            Err(Errno::INTR) => {}
            polled => return polled.map(|ready| ready > 0),
        }
    }
}

/// The first 64 KiB of a memory file. Empty if it cannot be read.
fn read(file: &OwnedFd) -> Vec<u8> {
    let mut bytes = Vec::new();
    let Ok(copy) = file.try_clone() else { return bytes };
    let mut file = File::from(copy);
    let _ = file.rewind().and_then(|()| file.take(1 << 16).read_to_end(&mut bytes));
    bytes
}
