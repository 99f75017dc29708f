//! Running programs in the guest with a limit on time, and with both outputs kept.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use anyhow::{bail, Context, Result};

/// What a program left.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its exit status; 143 when it was late and ended.
    pub status: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Seconds that any one program may take: far more than one takes on a busy machine, where emulation is slower still. A hang must not eat the
/// whole guest.
const LIMIT: &str = "480";

/// Runs a program to its end.
pub fn run(words: &[&str]) -> Result<Output> {
    run_with(words, &[])
}

/// Runs a program to its end with more in its environment.
///
/// Outputs go to files: what a detached container inherits stays open, and waiting for a pipe's end would wait for the container.
pub fn run_with(words: &[&str], environment: &[(&str, &str)]) -> Result<Output> {
    let (mut out, mut err) = (scratch()?, scratch()?);
    let mut command = Command::new("/bin/busybox");
    command.args(["timeout", LIMIT]).args(words).envs(environment.iter().copied()).stdin(Stdio::null());
    let status = command.stdout(out.try_clone()?).stderr(err.try_clone()?).status().context("cannot start busybox")?;
    let status = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(Output { status, out: text(&mut out)?, err: text(&mut err)? })
}

/// A file without a name.
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

/// Runs a program that has to succeed, and returns its standard output.
pub fn must(words: &[&str]) -> Result<String> {
    let done = run(words)?;
    if done.status != 0 {
        bail!("{} ended with {}: {} {}", words.join(" "), done.status, done.out.trim(), done.err.trim());
    }
    Ok(done.out)
}
