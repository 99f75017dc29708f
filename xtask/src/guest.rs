//! Guests: real kernels under QEMU that run the stories of tests/guest. One guest runs one kernel, and the rows of a plan in it.
//!
//! `image` makes what the guest boots from, `qemu` boots it and watches the console, `verdict` reads what the stories say.

pub mod image;
pub mod qemu;
pub mod real;
pub mod verdict;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::outcome::Outcome;
use crate::{kernels, nvidia, paths, setup};
use verdict::{Report, Tally};

#[derive(clap::Args)]
pub struct Args {
    /// Kernel, by its name in kernels.toml
    #[arg(long, default_value = "6.1")]
    kernel: String,
    /// Driver era: 0, 1, 1f (era 1 behind the older entry symbol), 2, 3 or 4; may be given several times
    #[arg(long, default_value = "1")]
    era: Vec<String>,
    /// Release of nvidia-smi and NVML, from nvidia.toml
    #[arg(long, default_value = "550.163.01")]
    client: String,
    /// Engines: none, module, notify; none and module unless named
    #[arg(long)]
    engine: Vec<String>,
    /// Stories by name; all unless named
    #[arg(long)]
    story: Vec<String>,
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

/// One line of a guest's plan: a driver and a client, and what to try on them.
#[derive(Clone, Debug)]
pub struct Row {
    /// The simulated driver's era; or, as `1@550.163.01`, the era of a real driver and its release.
    pub era: String,
    /// Which nvidia-smi.
    pub client: String,
    /// Which engines, in order.
    pub engines: Vec<String>,
    /// Which stories; all if empty.
    pub stories: Vec<String>,
    /// How often the module is reloaded under load.
    pub reloads: u32,
}

/// One guest to boot.
#[derive(Clone, Debug)]
pub struct Job {
    /// The kernel's short name.
    pub kernel: String,
    /// What to do in it.
    pub rows: Vec<Row>,
    /// Its processors.
    pub cpus: u32,
    /// How long it may take.
    pub limit: Duration,
}

/// The verb.
pub fn guest(args: &Args) -> Result<Outcome> {
    let engines =
        if args.engine.is_empty() { vec!["none".to_owned(), "module".to_owned()] } else { args.engine.clone() };
    let row = |era: &String| Row {
        era: era.clone(),
        client: args.client.clone(),
        engines: engines.clone(),
        stories: args.story.clone(),
        reloads: args.reloads,
    };
    let job = Job {
        kernel: args.kernel.clone(),
        rows: args.era.iter().map(row).collect(),
        cpus: args.cpus,
        limit: Duration::from_secs(args.limit),
    };
    prepare()?;
    if args.shell {
        return qemu::shell(&job, &image::build(&job)?).map(|()| Outcome::Passed);
    }
    let report = boot(&job, true)?;
    let mut tally = Tally::default();
    tally.add(&report);
    tally.print();
    Ok(tally.outcome())
}

/// Installs what guests need on this machine.
pub fn prepare() -> Result<()> {
    setup::require(setup::KERNELS)?;
    setup::require(setup::OBJECTS)?;
    setup::require(setup::GUESTS)
}

/// Boots one guest and returns what it reported; `loud` passes its console on.
pub fn boot(job: &Job, loud: bool) -> Result<Report> {
    let image = image::build(job).with_context(|| format!("cannot make the image of the {} guest", job.kernel))?;
    boot_image(job, &image, loud)
}

/// Boots one guest from an image that is made already.
pub fn boot_image(job: &Job, image: &Path, loud: bool) -> Result<Report> {
    let log = paths::target("guest/log")?.join(format!("{}.log", job.name()));
    let console = qemu::boot(job, image, &log, loud)?;
    Ok(Report::read(job, &console, log))
}

impl Job {
    /// Fetches what the guest is made of, so that later steps need no network.
    pub fn fetch(&self) -> Result<()> {
        kernels::ready(&self.kernel)?;
        self.rows.iter().try_for_each(|row| nvidia::ready(&row.client).map(drop))
    }

    /// Whether a real driver is played, which wants memory that the guest's kernel leaves alone.
    pub fn is_real(&self) -> bool {
        self.rows.iter().any(|row| real::release(&row.era).is_some())
    }

    /// A name for logs and images.
    pub fn name(&self) -> String {
        let mut eras: Vec<&str> = self.rows.iter().map(|row| row.era.as_str()).collect();
        eras.dedup();
        format!("{}-era{}", self.kernel, eras.join("+"))
    }
}
