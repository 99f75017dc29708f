//! `nvidia-container-runtime-hook`: the prestart hook of mode `legacy`, and of `docker run --gpus`.
//!
//! Reads a container's state and executes the container CLI with its arguments. Does nothing for a container that requests no GPU.
//!
//! Source: OCI runtime specification, `runtime.md` (state, hooks); NVIDIA Container Toolkit 1.20,
//! `cmd/nvidia-container-runtime-hook`.

mod arguments;
mod flags;
mod state;

use crate::chain::{chain, printable};
use crate::config::{self, Config, ConfigError, Loaded, Mode};
use crate::driver::{DriverRoot, LimitError};
use crate::limits;
use crate::output::{eprint_line, print_page};
use crate::program::{self, Program};
use crate::request::{self, Annotations, RequestError, Strictness};
use crate::spec::{Spec, SpecError};
use flags::Flags;
use state::State;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

pub const PROGRAM: Program = Program {
    name: "hook",
    nvidia_names: &[NAME, "nvidia-container-toolkit"],
    about: "the prestart hook: hands a container to the container CLI",
    run,
    command: None,
};

const NAME: &str = "nvidia-container-runtime-hook";
const CLI: &str = "nvidia-container-cli";

const USAGE: &str = "Usage of nvidia-container-runtime-hook:
  -config FILE
        configuration file (default: $NVIDIA_CTK_CONFIG_FILE_PATH, else
        $XDG_CONFIG_HOME or /etc, and nvidia-container-runtime/config.toml)
  -debug
        enable debug output, also the container CLI's
  -version
        print the version

Commands:
  prestart
        give the container whose state is on the standard input what it asks for
  poststart
        no-op
  poststop
        no-op

Examples:
  nvidia-container-runtime-hook prestart < state.json
  nvidia-container-runtime-hook -debug -config ./config.toml prestart < state.json

Exit codes: 0 done, or nothing to do; 1 refused or failed; 2 a mistake in the
arguments; any other is the container CLI's.
";

#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error("error getting hook config")]
    Config(#[source] ConfigError),
    #[error("could not decode container state")]
    State(#[source] state::StateError),
    #[error("could not open OCI spec")]
    Open(#[source] SpecError),
    #[error("could not decode OCI spec")]
    Decode(#[source] SpecError),
    #[error("{0} is empty in OCI spec")]
    MissingField(&'static str),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(
        "invoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag) is not supported. \
         Please use the NVIDIA Container Runtime (e.g. specify the --runtime=nvidia flag) instead: {0}"
    )]
    Mode(&'static str),
    /// The container requests a limit of GPU memory that cannot be enforced.
    #[error("the container asks for a limit of GPU memory, which would not hold")]
    Limits(#[from] LimitError),
    #[error("exec failed: {}", program.display())]
    Exec { program: PathBuf, source: io::Error },
}

impl HookError {
    fn fix(&self) -> &'static str {
        match self {
            HookError::Config(error) => error.fix(),
            HookError::State(_) => {
                "the OCI runtime writes the state on the hook's standard input: run the hook through one"
            }
            HookError::Open(_) | HookError::Decode(_) | HookError::MissingField(_) => {
                "the state's bundle must be a directory with a config.json that the OCI runtime accepts"
            }
            HookError::Request(error) => error.fix(),
            HookError::Limits(_) => {
                "take NVIDIA_GPU_MEMORY_LIMIT and NVIDIA_GPU_MEMORY_REQUEST away, or use a host whose driver can hold them"
            }
            HookError::Mode(_) => "or set mode = \"legacy\" in config.toml",
            HookError::Exec { .. } => "correct nvidia-container-cli.path in config.toml, or take it out",
        }
    }
}

fn run(arguments: Vec<OsString>) -> ExitCode {
    let flags = match Flags::parse(arguments.get(1..).unwrap_or_default()) {
        Ok(flags) => flags,
        Err(message) => {
            eprint_line(format!("{NAME}: {message}\n\n{}", USAGE.trim_end()));
            return ExitCode::from(2);
        }
    };
    if flags.help {
        return print_page(NAME, USAGE);
    }
    if flags.version {
        return print_page(NAME, &program::version("NVIDIA Container Runtime Hook"));
    }
    match flags.command.as_deref().and_then(OsStr::to_str) {
        Some("prestart") => match prestart(&flags) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprint_line(format!("{NAME}: {}\n{NAME}: fix: {}", chain(&error), error.fix()));
                ExitCode::from(1)
            }
        },
        Some("poststart" | "poststop") => ExitCode::SUCCESS,
        other => {
            let message = other.map_or("which command?".to_string(), |word| format!("there is no command '{word}'"));
            eprint_line(format!("{NAME}: {message}\n\n{}", USAGE.trim_end()));
            ExitCode::from(2)
        }
    }
}

/// Executes the container CLI if the container requests a GPU. Otherwise returns.
fn prestart(flags: &Flags) -> Result<(), HookError> {
    let debug = |text: &dyn std::fmt::Display| {
        if flags.debug {
            eprint_line(format!("{NAME}: {}", printable(&text.to_string())));
        }
    };
    let Loaded { config, path, notes } = load(flags.config.as_deref()).map_err(HookError::Config)?;
    let file = path.map_or("no file: the defaults".to_string(), |path| path.display().to_string());
    debug(&format_args!("configuration: {file}"));
    notes.iter().for_each(|note| debug(&format_args!("{file}, line {}: {}", note.line, note.message)));

    let state = State::read(io::stdin().lock()).map_err(HookError::State)?;
    let spec = Spec::load(&state.bundle).map_err(|error| match error {
        SpecError::Read(..) => HookError::Open(error),
        _ => HookError::Decode(error),
    })?;
    let tree = spec.tree();
    let is_present = |name: &str| tree.get(name).is_some_and(|value| !value.is_null());
    for (name, what) in [("ociVersion", "Version"), ("process", "Process"), ("root", "Root")] {
        if !is_present(name) {
            return Err(HookError::MissingField(what));
        }
    }
    let parsed = request::parse(tree, &config, Annotations::Skip, Strictness::Strict)?;
    parsed.notes.iter().for_each(|note| eprint_line(format!("{NAME}: warning: {}", printable(note))));
    let Some(request) = parsed.request else {
        debug(&"the container asks for no GPU: nothing to do");
        return Ok(());
    };
    require_legacy_mode(&config, request.only_cdi_names())?;

    let pid = state.pid.ok_or(HookError::State(state::StateError::NoProcess))?;
    let root = tree["root"].get("path").and_then(serde_json::Value::as_str).filter(|path| !path.is_empty());
    let root = state.within_bundle(root.ok_or(HookError::MissingField("root.path"))?);
    if let Some(limits) = request.memory {
        let root = config.cli.root.as_deref().map_or_else(DriverRoot::host, |root| DriverRoot::at(root, None));
        limits::apply(limits, pid, &root, &request.devices, &config)?;
    }
    let ldconfig = config.ldconfig(Path::new("/"));
    let arguments = arguments::build(&config, ldconfig, &request, pid, &root, flags.debug);
    let (program, name) = match &config.cli.path {
        Some(path) => (path.as_path(), path.as_os_str()),
        None => (Path::new("/proc/self/exe"), OsStr::new(CLI)),
    };
    debug(&format_args!("running {} {}", name.to_string_lossy(), joined(&arguments)));
    let mut command = Command::new(program);
    command.arg0(name).args(&arguments);
    for variable in &config.cli.environment {
        match variable.split_once('=') {
            Some((name, value)) if !name.is_empty() => drop(command.env(name, value)),
            _ => eprint_line(format!(
                "{NAME}: warning: nvidia-container-cli.environment: passing over {variable:?}: no NAME=value"
            )),
        }
    }
    Err(HookError::Exec { program: program.to_path_buf(), source: command.exec() })
}

/// A configuration file on the command line must exist. The default file may be missing.
fn load(named: Option<&OsStr>) -> Result<Loaded, ConfigError> {
    let (path, is_required) = match named.filter(|path| !path.is_empty()) {
        Some(path) => (PathBuf::from(path), true),
        None => config::path(|name| std::env::var_os(name)),
    };
    if is_required { Config::at(&path) } else { Config::at_or_default(&path) }
}

fn require_legacy_mode(config: &Config, only_cdi_names: bool) -> Result<(), HookError> {
    match config.runtime.mode {
        _ if config.hook.skip_mode_detection => Ok(()),
        Mode::Legacy => Ok(()),
        Mode::Auto if !only_cdi_names => Ok(()),
        Mode::Auto => Err(HookError::Mode("all devices are asked for by CDI names, so mode auto means cdi")),
        mode => Err(HookError::Mode(match mode {
            Mode::Csv => "the mode is csv",
            Mode::JitCdi => "the mode is jit-cdi",
            _ => "the mode is cdi",
        })),
    }
}

fn joined(arguments: &[OsString]) -> String {
    arguments.iter().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
