//! The program `nvidia-ctk`, for administrators and packages.
//!
//! Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 not done, 2 not understood.
//!
//! Source: `nvidia-ctk --help` of NVIDIA Container Toolkit 1.20.

mod cdi;
mod config;
mod context;
mod generate;
mod links;
pub mod nodes;
mod system;

use crate::cdi::{Registry, registry};
use crate::chain::chain_without_repeats;
use crate::config::ConfigError;
use crate::driver::{Driver, DriverRoot};
use crate::engines::command::Configure;
use crate::program::{self, Program};
use crate::{cdi_hooks, output};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use context::{Context, Failure};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

pub use nodes::NodeError;

pub const PROGRAM: Program = Program {
    name: "ctk",
    nvidia_names: &["nvidia-ctk"],
    about: "makes and lists CDI files, writes config.toml, adds the runtime to engines",
    run: main,
    command: Some(Ctk::command),
};

pub const CDI: Program = Program {
    name: "cdi",
    nvidia_names: &[],
    about: "makes, lists and changes CDI files: short for ctk cdi",
    run: cdi_main,
    command: None,
};

/// Configures the NVIDIA container runtime
#[derive(Debug, Parser)]
#[command(
    name = "nvidia-ctk",
    version,
    bin_name = "nvidia-ctk",
    arg_required_else_help = true,
    after_help = "Examples:
  nvidia-ctk cdi generate                           describe this host's GPUs for engines
  nvidia-ctk cdi list                               the names that engines know
  nvidia-ctk runtime configure --runtime=docker     make the runtime known to Docker
  nvidia-ctk config default                         every key of config.toml, explained"
)]
struct Ctk {
    #[command(flatten)]
    context: Context,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// CDI files: make, list, change
    #[command(subcommand)]
    Cdi(cdi::Verb),
    /// The runtime's config.toml: show, change
    Config(config::Config),
    /// Container engines
    #[command(subcommand)]
    Runtime(Runtime),
    /// Device nodes and their links
    #[command(subcommand)]
    System(system::Verb),
    /// The driver and the GPUs that containers can get
    Info(Info),
    /// The hooks that CDI files start: the program nvidia-cdi-hook
    #[command(disable_help_flag = true)]
    Hook {
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
}

#[derive(Debug, Subcommand)]
enum Runtime {
    /// Adds the runtime to an engine's configuration, or removes it
    Configure(Configure),
}

fn main(arguments: Vec<OsString>) -> ExitCode {
    // Usage lines always show NVIDIA's name.
    let arguments = [OsString::from("nvidia-ctk")].into_iter().chain(arguments.into_iter().skip(1));
    let ctk = match Ctk::try_parse_from(arguments) {
        Ok(ctk) => ctk,
        Err(error) if error.kind() == ErrorKind::DisplayVersion => {
            return output::print_page("nvidia-ctk", &program::version("NVIDIA Container Toolkit CLI"));
        }
        Err(error) => return program::print_clap_error(&error),
    };
    let context = &ctk.context;
    let done = match ctk.verb {
        Verb::Cdi(verb) => verb.run(context),
        Verb::Config(verb) => verb.run(context),
        Verb::Runtime(Runtime::Configure(verb)) => verb.run().map_err(Into::into),
        Verb::System(verb) => verb.run(context),
        Verb::Info(verb) => verb.run(),
        Verb::Hook { words } => {
            return cdi_hooks::main([OsString::from("nvidia-cdi-hook")].into_iter().chain(words).collect());
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let fix = error.downcast_ref::<ConfigError>().map(|error| format!("; to fix it: {}", error.fix()));
            let text = chain_without_repeats(error.as_ref());
            output::eprint_line(format!("nvidia-ctk: {text}{}", fix.unwrap_or_default()));
            ExitCode::FAILURE
        }
    }
}

fn cdi_main(arguments: Vec<OsString>) -> ExitCode {
    let words = ["nvidia-ctk", "cdi"].map(OsString::from);
    main(words.into_iter().chain(arguments.into_iter().skip(1)).collect())
}

#[derive(Debug, Args)]
struct Info {
    /// Where the driver's files are
    #[arg(long, env = "NVIDIA_CTK_DRIVER_ROOT", value_name = "DIR", default_value = "/")]
    driver_root: PathBuf,
}

impl Info {
    fn run(&self) -> Result<(), Failure> {
        let driver = Driver::find(&DriverRoot::at(&self.driver_root, None))?;
        let registry = Registry::read(&registry::DIRECTORIES.map(PathBuf::from));
        let mut text = format!("Driver: {}\n", driver.version);
        for gpu in &driver.gpus {
            let divided = if gpu.mig_enabled { ", divided by MIG" } else { "" };
            text.push_str(&format!("GPU {}: {}, {}, {}{divided}\n", gpu.index, gpu.model, gpu.uuid, gpu.bus));
            for mig in &gpu.mig {
                text.push_str(&format!("MIG {}:{}: {}\n", gpu.index, mig.index, mig.uuid));
            }
        }
        text.push_str(&format!("CDI devices: {}\n", registry.devices().count()));
        context::print(&text)
    }
}

#[cfg(test)]
mod tests;
