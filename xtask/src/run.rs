//! Runs other programs, and reports their output if they fail. Also prints progress lines.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::processor;

/// Prints to standard error: standard output is for results.
pub fn print_progress(text: impl AsRef<str>) {
    eprintln!("x: {}", text.as_ref());
}

pub fn command<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// Runs with inherited input and output; an error unless it succeeds.
pub fn run(command: &mut Command) -> Result<()> {
    if succeeds(command)? {
        return Ok(());
    }
    bail!("failed: {}", command_line(command))
}

/// Runs with inherited input and output; true if it succeeded.
pub fn succeeds(command: &mut Command) -> Result<bool> {
    let mut child = command.spawn().with_context(|| format!("cannot start {}", command_line(command)))?;
    Ok(processor::wait(&mut child)?.success())
}

/// Runs, and returns standard output; an error with the end of standard error unless it succeeds.
pub fn output(command: &mut Command) -> Result<String> {
    let done = capture(command.stderr(Stdio::piped()))?;
    if !done.status.success() {
        bail!("failed: {}\n{}", command_line(command), last_lines(&String::from_utf8_lossy(&done.stderr), 30));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Runs without input, and captures standard output; standard error, too, if it is a pipe.
pub fn capture(command: &mut Command) -> Result<Output> {
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = started.with_context(|| format!("cannot start {}", command_line(command)))?;
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        let errors = scope.spawn(|| err.as_mut().map_or(Ok(0), |pipe| pipe.read_to_end(&mut stderr)));
        out.as_mut().map_or(Ok(0), |pipe| pipe.read_to_end(&mut stdout))?;
        errors.join().unwrap_or(Ok(0))
    })?;
    Ok(Output { status: processor::wait(&mut child)?, stdout, stderr })
}

/// Runs with both outputs in a file; true if it succeeded.
pub fn run_to_log(command: &mut Command, log: &Path) -> Result<bool> {
    let file = fs_err::File::create(log)?.into_file();
    let copy = file.try_clone().context("cannot share the log file")?;
    succeeds(command.stdin(Stdio::null()).stdout(file).stderr(copy))
}

/// As [`run_to_log`], for a long build: prints its name, its log and its duration.
pub fn build_to_log(command: &mut Command, log: &Path, what: &str) -> Result<bool> {
    let began = Instant::now();
    print_progress(format!("building {what}; its log is {}", log.display()));
    let passed = run_to_log(command, log)?;
    print_progress(format!(
        "{what}: {} after {} s",
        if passed { "built" } else { "failed" },
        began.elapsed().as_secs()
    ));
    Ok(passed)
}

pub fn last_lines(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Whether a program is in PATH or in the folders of the system's administration tools.
pub fn is_installed(program: &str) -> bool {
    find_program(program).is_some()
}

pub fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"]);
    let mut places = folders.map(|dir| Path::new(dir).join(program));
    places.find(|place| place.is_file())
}

/// make in a folder, niced. CC is cleared: a compiler wrapper of this machine must not be used.
pub fn make(folder: &Path) -> Command {
    let mut make = command("nice", ["-n", "10", "make", "-C"]);
    make.arg(folder).arg("CC=gcc-12").env("LC_ALL", "C").env_remove("MAKEFLAGS").env_remove("CC");
    make
}

/// Paths that are made once per run, by name. Concurrent callers wait for the first.
pub struct BuildOnce(Mutex<BTreeMap<String, PathBuf>>);

impl BuildOnce {
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub fn get_or_make(&self, name: &str, make: impl FnOnce() -> Result<PathBuf>) -> Result<PathBuf> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = made.get(name) {
            return Ok(path.clone());
        }
        let path = make()?;
        made.insert(name.to_owned(), path.clone());
        Ok(path)
    }
}

pub fn is_root() -> bool {
    output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
