//! The program `nvidia-container-runtime`: an engine calls it instead of runc.
//!
//! Source: NVIDIA Container Toolkit 1.20, "nvidia-container-runtime"; its modes are in [`mode`].

pub mod command;
mod log;
mod low_level;
mod merge;
mod mode;
mod program;

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mpu_seccomp as seccomp;
use thiserror::Error;

use crate::chain::{chain, printable};
use crate::config::{Config, ConfigError, Mode};
use crate::program::{Program, version};
use crate::spec::{Spec, SpecError};
use command::Command;
use log::Log;

pub use low_level::LowLevelError;
pub use mode::ModeError;

pub const PROGRAM: Program = Program {
    name: "runtime",
    nvidia_names: &["nvidia-container-runtime", "nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy"],
    about: "OCI runtime: gives containers the GPUs they ask for, and hands on to runc or crun",
    run,
    command: None,
};

/// The supported release of OCI's runtime specification.
const OCI: &str = "1.3.0";

const HELP: &str = "\
Gives a container the GPUs it asks for, then becomes the OCI runtime that does the rest.

Engines call it in place of runc, with runc's arguments:

  nvidia-container-runtime create --bundle /run/…/BUNDLE ID    a GPU is added if the container asks for one
  nvidia-container-runtime state ID                            handed on, like every other command
  nvidia-container-runtime --version                           our version, then the runtime's

A container asks by its environment, as in `NVIDIA_VISIBLE_DEVICES=all` or `=0,2`, or by CDI names. Which
runtime follows and how a GPU gets in is in config.toml: `nvidia-ctk config` prints it.

  docker run --rm --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=all debian nvidia-smi

Called as nvidia-container-runtime.cdi or nvidia-container-runtime.legacy, the mode is that one.
";

#[derive(Debug, Error)]
pub enum RuntimeError {
    #[error("the configuration cannot be used")]
    Config(#[from] ConfigError),
    #[error("there is no OCI runtime behind this wrapper")]
    LowLevel(#[from] LowLevelError),
    #[error("the container's configuration is not usable")]
    Spec(#[from] SpecError),
    #[error("the container cannot have the GPU that it asks for")]
    Mode(#[from] ModeError),
}

impl RuntimeError {
    fn fix(&self) -> Option<String> {
        match self {
            RuntimeError::Config(error) => Some(error.fix().into()),
            RuntimeError::LowLevel(_) => {
                Some("install runc or crun, or name yours in config.toml: nvidia-container-runtime.runtimes".into())
            }
            RuntimeError::Spec(_) => None,
            RuntimeError::Mode(error) => error.fix(),
        }
    }
}

/// Runs the wrapper. The first argument is the program's name, which may select the mode. Returns only after an error, or after `--help`
/// under our own name.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    let name = arguments.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    let first = arguments.get(1).and_then(|word| word.to_str());
    if name == "runtime" && matches!(first, None | Some("--help" | "-h" | "help")) {
        return crate::output::print_page("mpu-container", HELP);
    }
    let command = Command::read(&arguments);
    let mut log = Log::open_engine_log(&command);
    let Err(error) = start(&arguments, mode_of_name(name), &command, &mut log);
    let fix = error.fix().map(|fix| format!("; to fix it: {}", printable(&fix))).unwrap_or_default();
    let line = chain(&error) + &fix;
    log.error(&line);
    // The engine may have closed the stream.
    let _ = writeln!(std::io::stderr(), "nvidia-container-runtime: {line}");
    ExitCode::FAILURE
}

fn start(
    arguments: &[OsString],
    by_name: Option<Mode>,
    command: &Command,
    log: &mut Log,
) -> Result<Infallible, RuntimeError> {
    if command.version {
        let _ = write!(std::io::stdout(), "{}spec: {OCI}\n\n", version("NVIDIA Container Runtime"));
    }
    let loaded = Config::load()?;
    let config = &loaded.config;
    log.open_own_log(command, &config.runtime);
    for note in &loaded.notes {
        log.info(&format!("config.toml, line {}: {}", note.line, note.message));
    }
    let path = std::env::var_os("PATH");
    let runtime = low_level::find(&config.runtime.runtimes, path.as_deref())?;
    if command.creates {
        let bundle = command.bundle.clone().unwrap_or_else(|| PathBuf::from("."));
        let mut spec = Spec::load(&bundle)?;
        let mode = by_name.unwrap_or(config.runtime.mode);
        let requests_gpu = mode::edit(&mut spec, mode, config, log)?;
        // Also without a request: if the engine reads CDI files itself, it has already added the nodes.
        let listener = seccomp::add_listener(spec.tree_mut(), &config.notify);
        match &listener {
            Ok(()) => log.info("the notify engine receives the container's calls"),
            Err(why) if why.is_ordinary() => log.debug(&without_engine(why)),
            Err(why) => log.info(&without_engine(why)),
        }
        let stored = if requests_gpu || listener.is_ok() { spec.store() } else { Ok(()) };
        match stored {
            Err(error) if requests_gpu => return Err(error.into()),
            // A container without a request must not fail here; its file is unchanged.
            Err(error) => log.info(&format!("the container starts without the notify engine: {}", chain(&error))),
            Ok(()) => {}
        }
    }
    log.info(&format!("handing on to {}", runtime.display()));
    Err(low_level::exec(&runtime, arguments).into())
}

fn without_engine(why: &seccomp::NoListener) -> String {
    format!("the container starts without the notify engine: {}", chain(why))
}

/// Two of the program's names select a mode.
fn mode_of_name(name: &std::ffi::OsStr) -> Option<Mode> {
    match name.to_str() {
        Some("nvidia-container-runtime.cdi") => Some(Mode::Cdi),
        Some("nvidia-container-runtime.legacy") => Some(Mode::Legacy),
        _ => None,
    }
}
