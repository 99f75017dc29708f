//! NVIDIA's own driver in a guest, with a made-up GPU, for the stories of tests/guest. `source` builds an open driver from a source tree,
//! `closed` a closed one, `rig` the GPU and the overrides of `tests/real-driver`. The era of a release decides the expected faults.

mod closed;
mod rig;
mod source;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use mpu_abi::Release;

use crate::arch::Arch;
use crate::guest::real::{CLOSED, MARK, modules};
use crate::guest::{self, Job, Row};
use crate::outcome::Outcome;
use crate::run::print_progress;
use crate::{kernels, nvidia, paths};

#[derive(clap::Args)]
pub struct Args {
    /// Release of the driver, from drivers.toml: the sources are Debian's
    #[arg(long, conflicts_with = "source", default_value = "555.58.02")]
    release: String,
    /// A source tree of NVIDIA's open kernel modules, of whatever release, instead
    #[arg(long)]
    source: Option<PathBuf>,
    /// A closed driver, by its release in drivers.toml, instead: no GPU is started. Of several, each is exchanged for the next
    #[arg(long, value_name = "RELEASE", conflicts_with_all = ["source", "release", "era"])]
    closed: Vec<String>,
    /// Era of that release, for what stories foretell of it: 0 to 4; by its number unless given
    #[arg(long)]
    era: Option<String>,
    /// Kernel, by its name in kernels.toml
    #[arg(long, default_value = "6.1")]
    kernel: String,
    /// Engines: none, module, notify; none and module unless named
    #[arg(long, default_values = ["none", "module"], hide_default_value = true)]
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

pub fn real_driver(args: &Args) -> Result<Outcome> {
    guest::prepare(Arch::Amd64)?;
    let kernel = kernels::ready(&args.kernel)?;
    let mut named = Vec::new();
    if args.closed.is_empty() {
        let tree = args.source.clone().map_or_else(|| source::fetch(&args.release), Ok)?;
        named.push(make_modules(&kernel, &source::from_tree(&kernel, &tree)?)?);
    }
    for release in &args.closed {
        named.push(make_modules(&kernel, &closed::build(&kernel, release)?)?);
    }
    if args.build {
        named.iter().for_each(|name| println!("{name}: {}", modules(&kernel.name, name).display()));
        return Ok(Outcome::Passed);
    }
    let mut rows = named.iter().map(|name| row(name, &args.engine, args.era.as_deref())).collect::<Result<Vec<_>>>()?;
    for row in &mut rows {
        row.stories.clone_from(&args.story);
        row.reloads = args.reloads;
    }
    let limit = Duration::from_secs(args.limit);
    let job = Job { kernel: args.kernel.clone(), rows, cpus: args.cpus, limit, redirect: None };
    guest::play(&job, args.shell)
}

pub fn fetch(release: &str, is_closed: bool) -> Result<()> {
    if is_closed { closed::fetch(release) } else { source::fetch(release) }.map(drop)
}

/// Builds the modules of a release of drivers.toml, and returns the release as a row names it.
pub fn ready(kernel: &str, release: &str, is_closed: bool) -> Result<String> {
    let kernel = kernels::ready(kernel)?;
    let driver = match is_closed {
        true => closed::build(&kernel, release)?,
        false => source::from_tree(&kernel, &source::fetch(release)?)?,
    };
    make_modules(&kernel, &driver)
}

/// Builds all modules of a driver, and returns the release as a row names it.
fn make_modules(kernel: &kernels::Kernel, driver: &source::Driver) -> Result<String> {
    let mark = if driver.internals.is_none() { CLOSED } else { "" };
    let name = format!("{}{mark}", driver.release);
    rig::make(kernel, driver, &paths::target(&format!("guest/modules/{}/real/{name}", kernel.name))?)?;
    Ok(name)
}

/// A row with every story. The release decides the era, unless one is given.
pub fn row(name: &str, engines: &[String], known: Option<&str>) -> Result<Row> {
    let era = match known {
        Some(era) => era.to_owned(),
        None => era(name)?.to_string(),
    };
    let client = client(name);
    let engines = engines.to_vec();
    Ok(Row { era: format!("{era}{MARK}{name}"), client, engines, stories: Vec::new(), reloads: FEW_RELOADS })
}

/// Each reload takes seconds.
const FEW_RELOADS: u32 = 3;

/// The newest available nvidia-smi that is not newer than a release, or the oldest. The guest checks whether it works.
fn client(release: &str) -> String {
    let clients = nvidia::versions(Arch::Amd64);
    let release = release.trim_end_matches(CLOSED);
    let nearest = nearest(clients.clone(), release).or_else(|| clients.clone().next()).unwrap_or_default();
    if nearest != release {
        print_progress(format!("there is no nvidia-smi {release} at hand: {nearest} is tried"));
    }
    nearest.to_owned()
}

fn nearest<'a>(clients: impl Iterator<Item = &'a str>, release: &str) -> Option<&'a str> {
    let known = |version: &str| version.parse::<Release>().ok();
    clients.filter(|version| known(version) <= known(release)).max_by_key(|version| known(version))
}

/// The era of a release, as a row names it.
fn era(name: &str) -> Result<u8> {
    let release = name.trim_end_matches(CLOSED).parse().ok();
    release.map(mpu_abi::era).with_context(|| format!("{name} is no release; name its era by --era"))
}

#[cfg(test)]
mod tests {
    use super::{era, nearest};

    #[test]
    fn nearest_client_is_not_newer() {
        let clients = ["470.256.02", "555.58.02", "535.261.03"];
        for (release, expected) in [
            ("535.261.03", Some("535.261.03")),
            ("545.29.06", Some("535.261.03")),
            ("610.43.03", Some("555.58.02")),
            ("390.157", None),
        ] {
            assert_eq!(nearest(clients.into_iter(), release), expected, "{release}");
        }
    }

    #[test]
    fn closed_release_has_era_of_its_number() {
        assert_eq!(["470.256.02-closed", "550.163.01"].map(|name| era(name).unwrap()), [0, 1]);
        assert!(era("main").is_err());
    }
}
