//! Measures MPU's cost in instructions: `guest` boots a guest with a counting clock and reads the figures, `goals` has the goals, `report`
//! prints both. Method and results: docs/performance.md.

mod goals;
mod guest;
mod report;

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::arch::Arch;
use crate::outcome::Outcome;
use crate::run::print_progress;
use crate::{containers, guest as guests};

#[derive(clap::Args)]
pub struct Args {
    /// Kernel, by its name in kernels.toml; may be given several times
    #[arg(long, default_value = "6.1")]
    kernel: Vec<String>,
    /// The simulated driver's era, 0 to 4; may be given several times
    #[arg(long, default_value = "0")]
    era: Vec<String>,
    /// Release of nvidia-smi; one that fits the era unless named
    #[arg(long)]
    client: Option<String>,
    /// Another module to measure beside mpu, in the same guest: loaded instead of it, on the same processes. Give it one kernel
    #[arg(long, value_name = "FILE.ko")]
    peer: Vec<PathBuf>,
    /// How the module redirects, as its parameter `redirect`; its own choice unless named
    #[arg(long, value_parser = ["auto", "direct", "ipmodify"])]
    redirect: Option<String>,
    /// Print one table of all runs, as docs/performance.md has it
    #[arg(long)]
    markdown: bool,
    /// Fail when a goal is missed; otherwise a bench only reports
    #[arg(long)]
    check: bool,
    /// Time what mpu-container adds to a container's start, a hundred of each kind, instead of counting instructions in guests
    #[arg(long, conflicts_with_all = ["peer", "markdown", "check"])]
    containers: bool,
}

pub fn bench(args: &Args) -> Result<Outcome> {
    ensure!(args.peer.is_empty() || args.kernel.len() == 1, "a peer is built for one kernel: give one --kernel");
    if args.containers {
        containers::bench()?;
        return Ok(Outcome::Passed);
    }
    guests::prepare(Arch::Amd64)?;
    let (mut runs, mut missed, mut broken, mut unmeasured) = (Vec::new(), 0, false, 0);
    for kernel in &args.kernel {
        for era in &args.era {
            let client = args.client.clone().unwrap_or_else(|| client_of(era).to_owned());
            print_progress(format!(
                "counting on Linux {kernel} with era {era} and nvidia-smi {client}: about two minutes"
            ));
            let run = match guest::measure(kernel, era, &client, args.redirect.as_deref(), &args.peer) {
                Ok(run) => run,
                // The other runs go on.
                Err(error) => {
                    print_progress(format!("Linux {kernel}, era {era}: {error:#}"));
                    unmeasured += 1;
                    continue;
                }
            };
            missed += goals::verdicts(&run).iter().filter(|verdict| !verdict.met).count();
            broken |= !run.troubles.is_empty();
            if !args.markdown {
                report::print(&run);
            }
            runs.push(run);
        }
    }
    if args.markdown {
        report::markdown(&runs);
    }
    ensure!(unmeasured == 0, "{unmeasured} of the guests could not measure");
    Ok(Outcome::of(!broken && (!args.check || missed == 0)))
}

/// A client that is used with drivers of that era (matrix.toml has them all).
fn client_of(era: &str) -> &'static str {
    match era {
        "0" => "470.256.02",
        "1f" => "535.261.03",
        "1" => "550.163.01",
        _ => "555.58.02",
    }
}
