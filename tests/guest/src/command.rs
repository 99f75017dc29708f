//! Running programs in the guest with a limit on time, and with both outputs kept.

use std::io::Read;
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

/// Seconds that any one program may take. Emulation is slow, and a hang must not eat the whole guest.
const LIMIT: &str = "120";

/// Runs a program to its end.
pub fn run(words: &[&str]) -> Result<Output> {
    run_with(words, &[])
}

/// Runs a program to its end with more in its environment.
pub fn run_with(words: &[&str], environment: &[(&str, &str)]) -> Result<Output> {
    let mut command = Command::new("/bin/busybox");
    command.args(["timeout", LIMIT]).args(words).envs(environment.iter().copied());
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start busybox")?;
    let mut err_pipe = child.stderr.take().context("no standard error")?;
    let err = std::thread::spawn(move || {
        let mut text = Vec::new();
        err_pipe.read_to_end(&mut text).map(|_| text)
    });
    let mut out = Vec::new();
    child.stdout.take().context("no standard output")?.read_to_end(&mut out)?;
    let status = child.wait()?;
    let err = err.join().map_err(|_| anyhow::anyhow!("the reading thread panicked"))??;
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Output { status: status.code().unwrap_or(128), out: lossy(&out), err: lossy(&err) })
}

/// Runs a program that has to succeed, and returns its standard output.
pub fn must(words: &[&str]) -> Result<String> {
    let done = run(words)?;
    if done.status != 0 {
        bail!("{} ended with {}: {} {}", words.join(" "), done.status, done.out.trim(), done.err.trim());
    }
    Ok(done.out)
}
