//! The repository's tasks. `./x` finds a cargo and runs this; each verb is one file.
//!
//! Exit status: 0 all is well, 1 the product failed a check, 2 wrong usage, 69 the rig broke (no network, no package, no QEMU), which
//! says nothing about the product.

mod abi;
mod apt;
mod arch;
mod bench;
mod chart;
mod chart_image;
mod cluster;
mod containers;
mod cpio;
mod demo;
mod dist;
mod doctor;
mod emulated;
mod files;
mod foreign;
mod guest;
mod kernels;
mod kmod;
#[cfg(test)]
mod kmod_probes;
mod libtest;
mod lint;
mod modules;
mod node;
mod nvidia;
mod outcome;
mod packages;
mod paths;
mod processor;
mod programs;
mod promtool;
mod python;
mod real_driver;
mod rig;
mod run;
mod setup;
mod skips;
mod stories;
mod sysroot;
#[cfg(test)]
mod systemd_units;
#[cfg(test)]
mod taint;
mod test;
#[cfg(test)]
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use outcome::Outcome;

#[derive(Parser)]
#[command(name = "x", about = "MPU's own tool: set up, build, boot, test", disable_help_subcommand = false)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Boots a guest and shows the same nvidia-smi in a container before and after MPU
    Demo(demo::Args),
    /// Runs every check there is: host tests, kernel object, module builds, guests
    Test(test::Args),
    /// Boots one guest with chosen kernel, driver era, client, engine and stories
    Guest(guest::Args),
    /// Lists the stories that guests play
    Stories(stories::Args),
    /// Boots one guest with NVIDIA's own open driver on a made-up GPU, and plays the same stories there
    RealDriver(real_driver::Args),
    /// Boots a whole Debian and plays a node's life in it: installed, upgraded, removed
    Node(node::Args),
    /// Builds the kernel module's Rust object and checks its symbols
    Kmod(kmod::Args),
    /// Installs the packages that the other verbs need
    Setup,
    /// Says what this machine lacks, and changes nothing
    Doctor,
    /// Runs the tests of mpu-container that need real engines: runc, crun, podman, Docker
    Containers(containers::Args),
    /// Starts a Kubernetes cluster with a guest as its node, and plays the chart's life in it
    Cluster(cluster::Args),
    /// Renders and validates the Helm chart, and checks what belongs to it
    Chart(chart::Args),
    /// Makes what a release hands out, in target/dist
    Dist(dist::Args),
    /// Formats the sources
    Fmt,
    /// Checks formatting and clippy, warnings denied
    Lint,
    /// Counts what MPU costs, in instructions, and prints it beside the goals
    Bench(bench::Args),
    /// Holds a driver's source against the rows: what carries a PID, and what is new
    Abi(abi::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.verb {
        Verb::Demo(args) => demo::demo(&args),
        Verb::Test(args) => test::test(&args),
        Verb::Guest(args) => guest::guest(&args),
        Verb::Stories(args) => Ok(stories::stories(&args)),
        Verb::RealDriver(args) => real_driver::real_driver(&args),
        Verb::Node(args) => node::node(&args),
        Verb::Kmod(args) => kmod::kmod(&args),
        Verb::Setup => setup::install_all().and_then(|()| promtool::ready()).map(|_| Outcome::Passed),
        Verb::Doctor => doctor::doctor(),
        Verb::Containers(args) => containers::containers(&args),
        Verb::Cluster(args) => cluster::cluster(&args),
        Verb::Chart(args) => match chart::chart() {
            Ok(Outcome::Passed) if args.image => chart_image::check(),
            checked => checked,
        },
        Verb::Dist(args) => dist::dist(&args),
        Verb::Fmt => lint::fmt(),
        Verb::Lint => lint::lint(),
        Verb::Bench(args) => bench::bench(&args),
        Verb::Abi(args) => abi::abi(&args),
    };
    match result {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(1),
        Err(broken) => {
            eprintln!("x: the rig broke: {broken:#}");
            eprintln!("x: `./x doctor` says what this machine lacks");
            ExitCode::from(69)
        }
    }
}
