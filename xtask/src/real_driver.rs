//! NVIDIA's own open driver in a guest, on a GPU that is made up: `tests/real-driver` has the parts, `tests/guest` the stories, which are
//! those of the simulated driver.
//!
//! `source` makes the driver of a release or of any source tree, `rig` what it is loaded with. Knows which era a release belongs to, for what
//! the stories foretell of it, and nothing else of drivers.

mod parts;
mod rig;
mod source;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::guest::real::{modules, MARK};
use crate::guest::verdict::Tally;
use crate::guest::{self, image, qemu, Job, Row};
use crate::outcome::Outcome;
use crate::run::say;
use crate::{kernels, nvidia, paths};

#[derive(clap::Args)]
pub struct Args {
    /// Release of the driver, from drivers.toml: the sources are Debian's
    #[arg(long, conflicts_with = "source", default_value = "555.58.02")]
    release: String,
    /// A source tree of NVIDIA's open kernel modules, of whatever release, instead
    #[arg(long)]
    source: Option<PathBuf>,
    /// Era of that release, for what stories foretell of it: 0 to 4; by its number unless given
    #[arg(long)]
    era: Option<String>,
    /// Kernel, by its name in kernels.toml
    #[arg(long, default_value = "6.1")]
    kernel: String,
    /// Engines: none, module, notify; none and module unless named
    #[arg(long)]
    engine: Vec<String>,
    /// Stories by name; all unless named
    #[arg(long)]
    story: Vec<String>,
    /// How often the module is reloaded under load
    #[arg(long, default_value_t = FEW_RELOADS)]
    reloads: u32,
    /// Processors of the guest
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Give the guest this many seconds
    #[arg(long, default_value_t = 900)]
    limit: u64,
    /// Build driver and rig, and boot nothing
    #[arg(long)]
    build: bool,
    /// Open a shell in the guest instead, with everything at hand and nothing loaded
    #[arg(long)]
    shell: bool,
}

/// The verb.
pub fn real_driver(args: &Args) -> Result<Outcome> {
    guest::prepare()?;
    let kernel = kernels::ready(&args.kernel)?;
    let driver = match &args.source {
        Some(tree) => source::of_tree(&kernel, tree)?,
        None => source::of_tree(&kernel, &source::fetched(&args.release)?)?,
    };
    let release = made(&kernel, &driver)?;
    if args.build {
        println!("{release}: {}", modules(&kernel.name, &release).display());
        return Ok(Outcome::Passed);
    }
    let engines =
        if args.engine.is_empty() { vec!["none".to_owned(), "module".to_owned()] } else { args.engine.clone() };
    let mut row = row(&release, engines, args.era.as_deref())?;
    row.stories.clone_from(&args.story);
    row.reloads = args.reloads;
    let limit = Duration::from_secs(args.limit);
    let job = Job { kernel: args.kernel.clone(), rows: vec![row], cpus: args.cpus, limit };
    if args.shell {
        return qemu::shell(&job, &image::build(&job)?).map(|()| Outcome::Passed);
    }
    let report = guest::boot(&job, true)?;
    let mut tally = Tally::default();
    tally.add(&report);
    tally.print();
    Ok(tally.outcome())
}

/// Fetches the sources of a release of drivers.toml.
pub fn fetch(release: &str) -> Result<()> {
    source::fetched(release).map(drop)
}

/// Makes what a row of this release of drivers.toml is played with.
pub fn ready(kernel: &str, release: &str) -> Result<()> {
    let kernel = kernels::ready(kernel)?;
    made(&kernel, &source::of_tree(&kernel, &source::fetched(release)?)?).map(drop)
}

fn made(kernel: &kernels::Kernel, driver: &source::Driver) -> Result<String> {
    let folder = paths::target(&format!("guest/modules/{}/real/{}", kernel.name, driver.release))?;
    rig::make(kernel, driver, &folder)?;
    Ok(driver.release.clone())
}

/// A row of every story, of the era that the release is of unless another is given.
pub fn row(release: &str, engines: Vec<String>, known: Option<&str>) -> Result<Row> {
    let era = match known {
        Some(era) => era.to_owned(),
        None => era(release)?.to_string(),
    };
    let client = client(release)?;
    Ok(Row { era: format!("{era}{MARK}{release}"), client, engines, stories: Vec::new(), reloads: FEW_RELOADS })
}

/// Each takes seconds here.
const FEW_RELOADS: u32 = 3;

/// The nvidia-smi of the same release; without one, any: stories that would run it are skipped.
fn client(release: &str) -> Result<String> {
    let clients = nvidia::versions()?;
    if clients.iter().any(|version| version == release) {
        return Ok(release.to_owned());
    }
    say(format!("nvidia.toml has no nvidia-smi {release}: stories that need one are skipped"));
    Ok("550.163.01".to_owned())
}

/// How a release numbers processes: sim/README.md tells the eras apart.
fn era(release: &str) -> Result<u32> {
    let mut numbers = release.split('.').map(|number| number.parse::<u32>());
    let mut next = || numbers.next().transpose().ok().flatten();
    let (major, minor) = (next().with_context(|| format!("{release} is no release; name its era by --era"))?, next());
    Ok(match (major, minor.unwrap_or(0)) {
        (..535, _) | (535, ..113) => 0,
        (535..565, _) => 1,
        (565, _) => 2,
        (570, ..148) | (575, ..57) => 3,
        _ => 4,
    })
}

#[cfg(test)]
mod tests {
    use super::era;

    #[test]
    fn a_release_has_the_era_in_which_it_came() {
        let of = |release| era(release).unwrap();
        assert_eq!([of("515.105.01"), of("535.104.05"), of("535.113.01")], [0, 0, 1]);
        assert_eq!([of("560.35.03"), of("565.57.01"), of("570.86.15"), of("570.148.08")], [1, 2, 3, 4]);
        assert_eq!([of("575.51.02"), of("575.57.08"), of("595.45.04")], [3, 4, 4]);
        assert!(era("main").is_err());
    }
}
