//! `nvidia-container-cli`: what the driver is, what is in it, and putting it into a container by hand or from a hook.
//!
//! Owns the program's commands and its error line: `nvidia-container-cli: WHAT: WHY`, on standard error, where WHAT is
//! one of the words that NVIDIA's program says, so that whoever greps for them still finds them.
//!
//! Outside truth: libnvidia-container, `src/cli`: commands, options, output formats, error words.

mod args;
mod cgroup;
mod configure;
mod enter;
mod facts;
mod info;
mod kmods;
mod list;
mod log;
mod mig;

use crate::driver::{Driver, DriverError, DriverRoot, UnknownDevice};
use crate::program::Program;
use crate::require::RequireError;
use args::{Cli, Command, Global};
use clap::{error::ErrorKind, CommandFactory, Parser};
use log::Log;
use std::error::Error;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use thiserror::Error;

const NAME: &str = "nvidia-container-cli";

/// Its row in the table of programs.
pub const PROGRAM: Program = Program {
    own: "cli",
    nvidia: &[NAME],
    about: "lists the driver's parts, and puts them into a container",
    run,
    command: Some(Cli::command),
};

/// Why a command failed. The message is the part between the program's name and the cause.
#[derive(Debug, Error)]
pub enum CliError {
    /// The driver is not there.
    #[error("initialization error")]
    Driver(#[source] DriverError),
    /// Its files cannot be found.
    #[error("detection error")]
    Files(#[source] DriverError),
    /// A device was asked for that is not there.
    #[error("device error")]
    Device(#[source] UnknownDevice),
    /// MIG's configuration was asked for and cannot be given.
    #[error("{option} error")]
    Mig {
        /// `mig-config` or `mig-monitor`.
        option: &'static str,
        /// Why.
        source: mig::NotAll,
    },
    /// The image needs another host.
    #[error("requirement error")]
    Require(#[source] RequireError),
    /// The container could not be configured.
    #[error(transparent)]
    Configure(configure::ConfigureError),
    /// The log cannot be written.
    #[error("cannot write the log {}", path.display())]
    Log {
        /// Where.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The result cannot be written.
    #[error("cannot write to standard output")]
    Output(#[source] std::io::Error),
}

impl CliError {
    /// What to do about it, where that is not said already.
    fn fix(&self) -> Option<String> {
        Some(match self {
            CliError::Device(_) => format!("{NAME} info names the devices of this host"),
            CliError::Require(error) => error.fix(),
            CliError::Configure(error) => error.fix()?.into(),
            _ => return None,
        })
    }
}

/// Runs the program. The first argument is the name it was called by.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    // Help and errors name the program, not the way in which it was called.
    let words = std::iter::once(OsString::from(NAME)).chain(arguments.into_iter().skip(1));
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        // NVIDIA's has no name before it.
        Err(error) if error.kind() == ErrorKind::DisplayVersion => return ended(print(args::VERSION)),
        Err(error) => {
            // Nobody may be there to read it; the exit code says the same.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    ended(
        Log::open(cli.global.debug.as_deref())
            .and_then(|log| command(&cli, &log).inspect_err(|error| log.failed(error))),
    )
}

/// The exit code; an error is told on standard error.
fn ended(result: Result<(), CliError>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    let mut text = format!("{NAME}: {}\n", chain(&error));
    if let Some(fix) = error.fix() {
        text += &format!("{NAME}: fix: {fix}\n");
    }
    // Nobody may be there to read it.
    let _ = std::io::stderr().write_all(text.as_bytes());
    ExitCode::FAILURE
}

fn command(cli: &Cli, log: &Log) -> Result<(), CliError> {
    let global = &cli.global;
    match &cli.command {
        Command::Info(info) => print(&info::page(&find(global, log)?, info.csv)),
        Command::List(list) => print(&list::page(&find(global, log)?, &list.clone().or_everything(), global)?),
        Command::Configure(arguments) => configure::run(global, arguments, log),
    }
}

fn find(global: &Global, log: &Log) -> Result<Driver, CliError> {
    // Its nodes, too, unless only the host has them, as the wrapper decides; where nobody has them yet, whoever asks for
    // them to be made means the root's /dev, if there is one.
    let has = |root: &Path| root.join("dev/nvidiactl").exists();
    let is_theirs = has(&global.root) || (!has(Path::new("/")) && global.root.join("dev").is_dir());
    let devices = if is_theirs { &global.root } else { Path::new("/") };
    let root = DriverRoot::at(&global.root, Some(devices));
    if global.load_kmods {
        kmods::load(&root, log);
    }
    let driver = Driver::find(&root).map_err(CliError::Driver)?;
    log.say(format_args!("driver {} below {}, {} GPUs", driver.version, root.files.display(), driver.gpus.len()));
    Ok(driver)
}

fn print(page: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    out.write_all(page.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Output)
}

/// An error and its causes on one line.
fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error: &&dyn Error| (*error).source());
    causes.map(|error| error.to_string()).collect::<Vec<_>>().join(": ")
}
