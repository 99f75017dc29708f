//! The program `nvidia-ctk-installer`, which the GPU Operator's toolkit container runs.
//!
//! Source: `cmd/nvidia-ctk-installer` of NVIDIA Container Toolkit 1.20; `assets/state-container-toolkit` of the GPU
//! Operator.

mod cdi;
mod engine;
mod error;
mod flags;
mod note;
mod programs;
mod restart;
mod sys;

use crate::chain::chain_without_repeats;
use crate::lock::{Lock, LockError};
use crate::output;
use crate::program::{self, Program};
use clap::error::ErrorKind;
use engine::Host;
use error::InstallError;
use flags::Options;
use note::note;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// The GPU Operator calls the program as `nvidia-toolkit`.
pub const PROGRAM: Program = Program {
    name: "installer",
    nvidia_names: &["nvidia-ctk-installer", "nvidia-toolkit"],
    about: "installs the programs on a host and configures its engine: for the GPU Operator's toolkit container",
    run: main,
    command: Some(flags::command),
};

fn main(arguments: Vec<OsString>) -> ExitCode {
    let variable = |name: &str| std::env::var_os(name);
    // A bare call by a user must not install anything.
    if !flags::has_any(&arguments, variable) && !Path::new(flags::HOST_MOUNT).is_dir() {
        note(format!(
            "no flag and no variable requests an installation, and this is no toolkit container: there is no {}. \
             To install on this machine, name its engine, e.g. --runtime=docker\n\n{}\n\n\
             `nvidia-ctk-installer --help` shows the options.",
            flags::HOST_MOUNT,
            flags::command().render_usage()
        ));
        return ExitCode::from(2);
    }
    let words = [OsString::from("nvidia-ctk-installer")].into_iter().chain(arguments.into_iter().skip(1)).collect();
    let options = match Options::read(words, variable) {
        Ok(options) => options,
        Err(error) if error.kind() == ErrorKind::DisplayVersion => {
            return output::print_page("nvidia-ctk-installer", &program::version("nvidia-ctk-installer"));
        }
        Err(error) => return program::print_clap_error(&error),
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(chain_without_repeats(&error));
            match error {
                InstallError::Usage(_) | InstallError::Config(_) => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn run(options: &Options) -> Result<(), InstallError> {
    check(options)?;
    let host = Host::of(options)?;
    let _lock = Lock::take(Path::new(options.text("pid-file")), Duration::ZERO).map_err(|error| match error {
        LockError::Held { path, .. } => InstallError::Busy(path),
        LockError::Unusable { path, source } => InstallError::File { path, source },
    })?;
    // From here on, a signal takes effect after the current step.
    let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]).map_err(InstallError::Signals)?;
    let (signals, signalled) = (RefCell::new(signals), Cell::new(false));
    // Takes one signal: a second one is left for the clean-up.
    let should_stop = || {
        signalled.set(signalled.get() || signals.borrow_mut().pending().next().is_some());
        signalled.get()
    };

    let folder = Path::new(options.text("toolkit-install-dir")).join("toolkit");
    let configures = !options.is_on("no-runtime-config");
    let effective = if configures { host.effective_before(options)? } else { Default::default() };
    let mut runtimes = options.list("nvidia-container-runtime.runtimes");
    if runtimes.is_empty() {
        // If our runtime is already the default, a killed installer left it, and the earlier default is not recorded. Its configuration
        // has the low-level runtimes. Running containers need the runtime that created them.
        let default_program = effective.default.as_ref().and_then(|(name, _)| effective.program(name));
        if default_program.is_some_and(|program| Path::new(program).starts_with(&folder)) {
            runtimes = programs::previous_runtimes(&folder);
        }
        for other in effective.low_level_programs().into_iter().chain(["runc", "crun"].map(String::from)) {
            if !runtimes.contains(&other) {
                runtimes.push(other);
            }
        }
    }
    if let Some(own) = runtimes.iter().find(|program| Path::new(program).starts_with(&folder)) {
        return Err(InstallError::Usage(format!(
            "{own} is what this installs: --nvidia-container-runtime.runtimes must name a runtime such as runc"
        )));
    }
    let tolerate = |done: Result<(), InstallError>| match done {
        Err(error) if options.is_on("ignore-errors") => {
            note(format!("passed over: {}", chain_without_repeats(&error)));
            Ok(())
        }
        other => other,
    };
    tolerate(programs::install(&folder, options, &runtimes))?;
    if options.is_on("cdi-enabled") && !options.text("cdi-output-dir").is_empty() {
        tolerate(cdi::write(&folder, options))?;
    }
    if should_stop() {
        note("a signal came before the engine's files were changed; ending".into());
        return Ok(());
    }
    if configures {
        host.set_up(&folder, options, &effective, &should_stop)?;
    }
    if options.is_on("no-daemon") {
        return Ok(());
    }
    note("done; waiting for a signal".into());
    if !should_stop() {
        signals.borrow_mut().forever().next();
    }
    // A second signal ends the wait for an engine that does not answer.
    signalled.set(false);
    match configures {
        true => host.clean_up(&folder, options, &should_stop),
        false => Ok(()),
    }
}

/// Refuses invalid options before any change.
fn check(options: &Options) -> Result<(), InstallError> {
    let refused = |text: &str| Err(InstallError::Usage(text.into()));
    if !Path::new(options.text("toolkit-install-dir")).is_absolute() {
        return refused("--toolkit-install-dir must begin with a slash");
    }
    if Path::new(options.text("pid-file")).file_name().is_none_or(|name| name != "toolkit.pid") {
        return refused("--pid-file must name a file toolkit.pid");
    }
    if options.is_on("enable-nri-plugin") {
        return refused(
            "--enable-nri-plugin (ENABLE_NRI_PLUGIN): there is no NRI plug-in in this program. Set cdi.nriPluginEnabled=false \
             in the GPU Operator's values, and the engine is configured instead",
        );
    }
    if options.is_on("use-legacy-config") {
        return refused(
            "--use-legacy-config (CONTAINERD_USE_LEGACY_CONFIG) is for containerd before 1.3, which is not supported",
        );
    }
    cdi::kind(options)?;
    cdi::nodes(options)?;
    for flag in options.ignored() {
        note(format!("--{flag} is passed over: it has no meaning here"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
