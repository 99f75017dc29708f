//! Runs a program with a deadline and a limit on its output.

use crate::deadline::within;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// Interval between two checks of the child.
const PAUSE: Duration = Duration::from_millis(10);

/// Time that a killed child gets to end. A child in an uninterruptible sleep, such as in a hung driver, does not end at all.
const GRACE: Duration = Duration::from_secs(2);

/// Status and output of an ended program.
#[derive(Debug)]
pub struct Output {
    /// None if it was killed because it took too long or printed too much.
    pub status: Option<ExitStatus>,
    /// Up to the limit.
    pub stdout: Vec<u8>,
    /// Up to the limit.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Whether it ended by itself with exit code 0.
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

/// Runs a program in its own process group. Kills the group after `timeout`, or when the program has printed more than `limit` bytes.
///
/// # Errors
/// If it cannot be started.
pub fn run(command: &mut Command, timeout: Duration, limit: u64) -> io::Result<Output> {
    // No pipes: a process that the program leaves running could hold the other end open for ever.
    let file = || memfd_create("output", MemfdFlags::CLOEXEC).map(File::from);
    let (out, err) = (file()?, file()?);
    let mut child = command.stdout(out.try_clone()?).stderr(err.try_clone()?).process_group(0).spawn()?;
    let deadline = Instant::now() + timeout;
    let exceeds_limit = |file: &File| file.metadata().is_ok_and(|metadata| metadata.len() > limit);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if Instant::now() >= deadline || exceeds_limit(&out) || exceeds_limit(&err) {
            // Before `wait`, so the kernel has not reused the group's number.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            // It may have left its group.
            let _ = child.kill();
            let _ = within(GRACE, move || child.wait());
            break None;
        }
        thread::sleep(PAUSE);
    };
    // It may have printed too much and ended between two checks.
    let status = status.filter(|_| !exceeds_limit(&out) && !exceeds_limit(&err));
    let read_back = |mut file: File| {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.take(limit).read_to_end(&mut bytes).map(|_| bytes)
    };
    Ok(Output { status, stdout: read_back(out)?, stderr: read_back(err)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, timeout: Duration, limit: u64) -> (Output, Duration) {
        let began = Instant::now();
        let output = run(Command::new("/bin/sh").args(["-c", script]), timeout, limit).expect("a shell");
        (output, began.elapsed())
    }

    #[test]
    fn child_gives_its_output_and_status() {
        let minute = Duration::from_secs(60);
        for (script, code, out, err) in [
            ("echo out; echo err >&2; exit 3", Some(3), "out\n", "err\n"),
            ("true", Some(0), "", ""),
            ("printf 0123456", Some(0), "0123456", ""),
            ("printf 01234567", None, "0123456", ""),
            // The background process holds the output open.
            ("sleep 60 & echo done", Some(0), "done\n", ""),
            ("kill -9 $$", None, "", ""),
        ] {
            let (output, took) = sh(script, minute, 7);
            assert_eq!(output.status.and_then(|status| status.code()), code, "{script}");
            assert_eq!((&output.stdout[..], &output.stderr[..]), (out.as_bytes(), err.as_bytes()), "{script}");
            assert_eq!(output.is_success(), code == Some(0));
            assert!(took < minute / 2);
        }
        assert!(run(&mut Command::new("/no/such/program"), minute, 1).is_err());
    }

    #[test]
    fn child_over_limit_is_killed_with_its_group() {
        let leaves_group = "echo $$; exec perl -e 'setpgrp(0, getpgrp(getppid())); sleep 60'";
        for (script, timeout) in [("sleep 60 & echo $!; wait", 3000), ("echo $$; yes", 60_000), (leaves_group, 3000)] {
            let (output, took) = sh(script, Duration::from_millis(timeout), 1 << 10);
            assert!(output.status.is_none() && !output.is_success() && took < Duration::from_secs(30), "{script}");
            let text = String::from_utf8(output.stdout).expect("text");
            let stat = format!("/proc/{}/stat", text.lines().next().expect("its number"));
            let lives = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z"));
            let began = Instant::now();
            while lives() {
                assert!(began.elapsed() < Duration::from_secs(30), "it lives on: {script}");
                thread::sleep(PAUSE);
            }
        }
    }
}
