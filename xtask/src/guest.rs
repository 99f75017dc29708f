//! Guests: real kernels under QEMU that run the stories of tests/guest. One guest runs one kernel, and the rows of a plan in it. `image`
//! makes what it boots, `qemu` boots it and watches the console, `verdict` reads the results.

mod costs;
pub mod image;
mod job;
pub mod qemu;
pub mod real;
mod sys;
mod tsc;
pub mod verdict;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::arch::Arch;
use crate::outcome::Outcome;
use crate::{foreign, kernels, paths, setup};
pub use job::{DEMO, Job, Row};
use verdict::{Report, Tally};

#[derive(clap::Args)]
pub struct Args {
    /// Kernel, by its name in kernels.toml: 6.1 unless named, 6.12 on arm64
    #[arg(long)]
    kernel: Option<String>,
    /// A kernel for x86-64 that you built, in place of one of kernels.toml: its source tree after `make bzImage modules`
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kernel", "arch"])]
    pub kernel_tree: Option<PathBuf>,
    /// Architecture of the kernel
    #[arg(long, default_value = "amd64")]
    arch: Arch,
    /// Driver era: 0, 1, 1f (era 1 behind the older entry symbol), 2, 3, 4 or 4n (era 4 as of 615); may be given several times
    #[arg(long, default_value = "1")]
    era: Vec<String>,
    /// Release of nvidia-smi and NVML, from xtask/src/nvidia.rs
    #[arg(long, default_value = "550.163.01")]
    pub client: String,
    /// Engines: none, module, notify; none and module unless named
    #[arg(long, default_values = ["none", "module"], hide_default_value = true)]
    engine: Vec<String>,
    /// Stories by name; all unless named
    #[arg(long)]
    story: Vec<String>,
    /// How the module redirects: auto, direct or ipmodify, as its parameter `redirect`; a module is built that does so by itself
    #[arg(long, value_parser = ["auto", "direct", "ipmodify"])]
    redirect: Option<String>,
    /// How often the module is reloaded under load
    #[arg(long, default_value_t = 10)]
    reloads: u32,
    /// Processors of the guest
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Give the guest this many seconds
    #[arg(long, default_value_t = 300)]
    limit: u64,
    /// Open a shell in the guest instead, with driver and module at hand
    #[arg(long)]
    shell: bool,
}

pub fn guest(args: &Args) -> Result<Outcome> {
    let row = |era: &String| Row {
        era: era.clone(),
        client: args.client.clone(),
        engines: args.engine.clone(),
        stories: args.story.clone(),
        reloads: args.reloads,
    };
    let named = || Ok(args.arch.kernel(args.kernel.as_deref()));
    let job = Job {
        kernel: args.kernel_tree.as_deref().map_or_else(named, kernels::register_tree)?,
        rows: args.era.iter().map(row).collect(),
        cpus: args.cpus,
        limit: Duration::from_secs(args.limit),
        redirect: args.redirect.clone(),
    };
    prepare(kernels::arch_of(&job.kernel)?)?;
    play(&job, args.shell)
}

/// Boots one guest with its console shown, and prints the results; or opens a shell in it.
pub fn play(job: &Job, shell: bool) -> Result<Outcome> {
    let image = build_image(job)?;
    match shell {
        true => qemu::shell(job, &image).map(|()| Outcome::Passed),
        false => Ok(Tally::print_one(&boot_image(job, &image, true)?)),
    }
}

/// Installs what guests of an architecture need on this machine.
pub fn prepare(arch: Arch) -> Result<()> {
    setup::require(setup::KERNELS)?;
    setup::require(setup::OBJECTS)?;
    setup::require(setup::GUESTS)?;
    foreign::require(arch)
}

pub fn build_image(job: &Job) -> Result<PathBuf> {
    image::build(job).with_context(|| format!("cannot make the image of the {} guest", job.kernel))
}

/// Boots one guest and returns its report; `loud` prints its console.
pub fn boot_image(job: &Job, image: &Path, loud: bool) -> Result<Report> {
    let log = paths::target("guest/log")?.join(format!("{}.log", job.name()));
    let console = qemu::boot(job, image, &log, loud)?;
    Ok(Report::read(job, &console, log))
}
