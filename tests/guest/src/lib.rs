//! Process 1 of a test guest: sets the guest up, runs the host's plan in /plan, prints verdicts on the console, and powers off. The host
//! (xtask/src/guest) reads only those lines; a missing verdict is a failure.
//!
//! A story is one function in `stories/`. It runs with no engine first, where it must show the wrong answer, then with engines. xtask reads
//! the declarations (`stories::all`) on the host.

#[macro_use]
mod story;

mod boot;
mod bundle;
mod callers;
mod client;
mod command;
mod container;
mod demo;
mod engine;
mod holder;
mod injected;
mod kernel_log;
mod mpu_json;
mod nvctl;
mod pod;
mod processes;
mod real;
mod runner;
mod scene;
mod stage;
pub mod stories;
mod supervisor;
mod wait;

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{WaitOptions, wait};

pub use engine::Engines;
pub use real::Real;
pub use story::Story;

const RUNNER: &str = "play";
/// The exit status if the test setup itself failed.
const BROKEN: i32 = 69;

/// Process 1, and the process that runs the stories.
pub fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|argument| argument == RUNNER) {
        return ExitCode::from(exit_status(run_plan()));
    }
    if std::process::id() != 1 {
        eprintln!("mpu-guest is process 1 of a test guest; `cargo xtask guest` boots one");
        return ExitCode::from(2);
    }
    // The firmware's last line has no line break.
    println!();
    let rc = boot::set_up_root().and_then(|()| run_and_reap("/init", RUNNER)).unwrap_or_else(|error| {
        println!("guest: the rig broke: {error:#}");
        BROKEN
    });
    println!("{}", mpu_plan::ExitLine(rc));
    boot::power_off()
}

/// Starts the process that runs the stories. Reaps it and every orphan, as process 1 must: up to Linux 6.10, a zombie of a container keeps
/// its listener open. The child waits for its own children only.
fn run_and_reap(program: &str, argument: &str) -> Result<i32> {
    let mut child = Command::new(program);
    child.arg(argument).env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").env("HOME", "/root");
    let child = child.spawn().context("cannot start the process that plays")?;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() as u32 == child.id() => {
                return Ok(status.exit_status().unwrap_or(BROKEN));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait"),
        }
    }
}

/// The exit status of the whole plan.
fn exit_status(failed: Result<usize>) -> u8 {
    match failed {
        Ok(failed) => u8::from(failed > 0),
        Err(broken) => {
            println!("guest: the rig broke: {broken:#}");
            BROKEN as u8
        }
    }
}

/// Runs the plan, and returns how many stories failed.
fn run_plan() -> Result<usize> {
    if boot::wants_shell()? {
        boot::shell()?;
        return Ok(0);
    }
    let mut failed = 0;
    let rows = runner::read_plan("/plan")?;
    for row in &rows {
        // Stories without a client run with the first client of each era only.
        let first = rows.iter().find(|other| other.era == row.era);
        let first_of_era = first.is_some_and(|first| first.client == row.client);
        failed += runner::run_row(row, first_of_era)?;
    }
    Ok(failed)
}
