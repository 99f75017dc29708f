//! Runs programs in the guest with a time limit, and keeps both outputs.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
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
const LIMIT: Duration = Duration::from_secs(480);

pub fn run(words: &[&str]) -> Result<Output> {
    run_with(words, &[])
}

/// Runs a program to its end with more in its environment.
///
/// The outputs are files. A detached container inherits them, and reading a pipe to its end would wait for the container.
pub fn run_with(words: &[&str], environment: &[(&str, &str)]) -> Result<Output> {
    let (mut out, mut err) = (scratch()?, scratch()?);
    let (program, arguments) = words.split_first().context("no program")?;
    let mut command = Command::new(program);
    command.args(arguments).envs(environment.iter().copied()).stdin(Stdio::null());
    let status = in_a_group(command.stdout(out.try_clone()?).stderr(err.try_clone()?), LIMIT)
        .with_context(|| words.join(" "))?;
    Ok(Output { status, out: text(&mut out)?, err: text(&mut err)? })
}

/// Runs a program in a process group, which is killed at the limit. Waits on a pidfd: busybox's timeout polls the PID, and goes on if another
/// process gets it.
fn in_a_group(command: &mut Command, limit: Duration) -> Result<i32> {
    let mut child = command.process_group(0).spawn().context("cannot start it")?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a process without a number")?;
    let descriptor = pidfd_open(group, PidfdFlags::empty()).context("cannot watch it")?;
    let limit = limit.try_into().context("no such time")?;
    if retry_on_intr(|| poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&limit)))? == 0 {
        rustix::process::kill_process_group(group, Signal::KILL).context("cannot end it")?;
    }
    let status = child.wait().context("cannot wait for it")?;
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
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
