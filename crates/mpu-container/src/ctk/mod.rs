//! The program `nvidia-ctk`: what administrators and packages call.
//!
//! Owns its command line. Each verb is a module, and does nothing but translate words: CDI is `cdi`'s, the configuration
//! `config`'s, engines are `engines`'.
//!
//! Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 not done, 2 not understood.
//!
//! Outside truth: `nvidia-ctk --help` of NVIDIA Container Toolkit 1.20.

mod cdi;
mod config;
mod generate;
mod info;
mod links;
mod nodes;
mod system;

use crate::engines::command::Configure;
use crate::hooks;
use crate::program::Program;
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// The program's row.
pub const PROGRAM: Program = Program {
    own: "ctk",
    nvidia: &["nvidia-ctk"],
    about: "makes and lists CDI files, writes config.toml, tells engines of the runtime",
    run: main,
    command: Some(Ctk::command),
};

/// `mpu-container cdi` is `nvidia-ctk cdi`.
pub const CDI: Program = Program {
    own: "cdi",
    nvidia: &[],
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

/// What holds for every verb.
#[derive(Debug, Args)]
struct Context {
    /// Accepted for scripts; it has no effect
    #[arg(long, short, env = "NVIDIA_CTK_DEBUG", value_parser = truth(), hide = true)]
    debug: bool,
    /// Print errors only
    #[arg(long, env = "NVIDIA_CTK_QUIET", value_parser = truth())]
    quiet: bool,
    /// The runtime's configuration [default: /etc/nvidia-container-runtime/config.toml]
    #[arg(long, env = "NVIDIA_CTK_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Context {
    /// Tells people what has been done or passed over.
    fn note(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            eprintln!("nvidia-ctk: {text}");
        }
    }
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
    Info(info::Info),
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

/// Why a verb was not carried out; the chain of reasons is printed as one line.
type Failure = Box<dyn Error>;

fn main(arguments: Vec<OsString>) -> ExitCode {
    // Its name stands in usage lines, however it was called.
    let arguments = [OsString::from("nvidia-ctk")].into_iter().chain(arguments.into_iter().skip(1));
    let ctk = match Ctk::try_parse_from(arguments) {
        Ok(ctk) => ctk,
        Err(told) => {
            // Nobody may be reading.
            let _ = told.print();
            return ExitCode::from(u8::try_from(told.exit_code()).unwrap_or(2));
        }
    };
    let context = &ctk.context;
    let done = match ctk.verb {
        Verb::Cdi(verb) => verb.run(context),
        Verb::Config(verb) => verb.run(context),
        Verb::Runtime(Runtime::Configure(verb)) => verb.run().map_err(Into::into),
        Verb::System(verb) => verb.run(context),
        Verb::Info(verb) => verb.run(),
        Verb::Hook { words } => {
            return hooks::main([OsString::from("nvidia-cdi-hook")].into_iter().chain(words).collect())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvidia-ctk: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn cdi_main(arguments: Vec<OsString>) -> ExitCode {
    let words = ["nvidia-ctk", "cdi"].map(OsString::from);
    main(words.into_iter().chain(arguments.into_iter().skip(1)).collect())
}

/// An error and its reasons. Some errors tell their reason themselves; it is not told twice.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(reason) = next {
        let told = reason.to_string();
        if !text.ends_with(&told) {
            text.push_str(": ");
            text.push_str(&told);
        }
        next = reason.source();
    }
    text
}

/// A flag's variable: anything but a word for no is yes, as scripts set them.
fn truth() -> clap::builder::FalseyValueParser {
    clap::builder::FalseyValueParser::new()
}

/// The first of these variables of our own environment that is set to something.
fn variable(names: &[&str]) -> Option<OsString> {
    names.iter().find_map(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
}

#[cfg(test)]
mod tests;
