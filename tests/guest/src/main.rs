//! Process 1 of a test guest. Makes the guest habitable, runs the plan that the host put into /plan, prints verdicts on the console,
//! and powers the guest off. The host (xtask/src/guest) judges by those lines alone; no verdict is a failure.
//!
//! A story is one function in `stories/`: one body, run with no engine first, where it must show the wrong answer, then with engines.

mod answer;
mod boot;
mod client;
mod command;
mod container;
mod demo;
mod holder;
mod injected;
mod kernel_log;
mod nvctl;
mod plan;
mod pod;
mod processes;
mod stage;
mod stories;
mod story;

use std::process::ExitCode;

use anyhow::Result;

fn main() -> ExitCode {
    if std::process::id() != 1 {
        eprintln!("mpu-guest is process 1 of a test guest; `cargo xtask guest` boots one");
        return ExitCode::from(2);
    }
    // The firmware leaves its last line open.
    println!();
    let rc = match everything() {
        Ok(failed) => i32::from(failed > 0),
        Err(broken) => {
            println!("guest: the rig broke: {broken:#}");
            69
        }
    };
    println!("GUEST-RC={rc}");
    boot::power_off()
}

/// Runs the plan, and returns how many stories failed.
fn everything() -> Result<usize> {
    boot::habitable()?;
    if boot::wants_shell()? {
        boot::shell()?;
        return Ok(0);
    }
    let mut failed = 0;
    let rows = plan::read("/plan")?;
    for (at, row) in rows.iter().enumerate() {
        // What does not depend on the client is tried with the first client of each era only.
        let first_of_era = rows.iter().position(|other| other.era == row.era) == Some(at);
        failed += stage::perform(row, first_of_era)?;
    }
    Ok(failed)
}
