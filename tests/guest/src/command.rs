//! Runs programs in the guest with a time limit, and keeps both outputs.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

#[derive(Debug, Clone)]
pub struct Output {
    /// The exit status; 137 if it ran past the limit and was killed.
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Output {
    /// Standard output, if the exit status is not higher: some programs answer with 1.
    pub fn at_most(self, status: i32) -> Result<String> {
        ensure!(self.status <= status, "ended with {}: {} {}", self.status, self.out.trim(), self.err.trim());
        Ok(self.out)
    }
}

/// The limit of one program. It only ends a hang: emulated on a busy machine, a program needs far less.
pub const LIMIT: Duration = Duration::from_secs(480);

pub fn run(words: &[&str]) -> Result<Output> {
    run_with(words, &[])
}

/// Runs a program to its end with more in its environment.
pub fn run_with(words: &[&str], environment: &[(&str, &str)]) -> Result<Output> {
    run_command(command(words).envs(environment.iter().copied())).with_context(|| words.join(" "))
}

/// Runs a command to its end.
///
/// The outputs are files. A detached container inherits them, and reading a pipe to its end would wait for the container.
pub fn run_command(command: &mut Command) -> Result<Output> {
    let (mut out, mut err) = (scratch()?, scratch()?);
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?);
    Ok(Output { status: in_a_group(command, LIMIT)?, out: text(&mut out)?, err: text(&mut err)? })
}

/// A program and its arguments.
pub fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// Words behind a command prefix.
pub fn behind<'a>(before: &'a [String], words: &[&'a str]) -> Vec<&'a str> {
    before.iter().map(String::as_str).chain(words.iter().copied()).collect()
}

/// Runs a program in a process group, which is killed at the limit.
fn in_a_group(command: &mut Command, limit: Duration) -> Result<i32> {
    let mut child = command.process_group(0).spawn().context("cannot start it")?;
    if !ends_within(&child, limit)? {
        rustix::process::kill_process_group(Pid::from_child(&child), Signal::KILL).context("cannot end it")?;
    }
    let status = child.wait().context("cannot wait for it")?;
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

/// Waits for the end of a process. At the limit of one program it is killed, and this fails.
pub fn wait_for_end(child: &mut Child) -> Result<()> {
    let in_time = ends_within(child, LIMIT)?;
    if !in_time {
        child.kill()?;
    }
    child.wait()?;
    ensure!(in_time, "process {} did not end, and was killed", child.id());
    Ok(())
}

/// Waits on a pidfd: busybox's timeout polls the PID, and goes on if another process gets it.
fn ends_within(child: &Child, limit: Duration) -> Result<bool> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).context("cannot watch it")?;
    is_readable_within(&process, limit)
}

/// Waits until a descriptor can be read or is at its end.
pub fn is_readable_within(descriptor: &impl AsFd, limit: Duration) -> Result<bool> {
    let limit = limit.try_into().context("no such time")?;
    Ok(retry_on_intr(|| poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&limit)))? > 0)
}

/// An anonymous file.
fn scratch() -> Result<File> {
    let fd =
        rustix::fs::memfd_create("output", rustix::fs::MemfdFlags::CLOEXEC).context("cannot make a file in memory")?;
    Ok(File::from(fd))
}

fn text(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Runs a program, fails unless it succeeds, and returns its standard output.
pub fn run_ok(words: &[&str]) -> Result<String> {
    run(words)?.at_most(0).with_context(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_program_ends_with_its_children() {
        let file = std::env::temp_dir().join(format!("mpu-late-{}", std::process::id()));
        let script = format!("sleep 300 & echo $! > {}; wait", file.display());
        let mut command = Command::new("sh");
        let status = in_a_group(command.args(["-c", &script]), Duration::from_secs(3)).unwrap();
        let started = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(status, 128 + 9);
        let stat = format!("/proc/{}/stat", started.trim());
        let is_gone = || Ok(std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")));
        crate::wait::wait_until("it lives on", is_gone).unwrap();
    }
}
