//! The program `nvidia-ctk-installer`: what the GPU Operator's toolkit container runs.
//!
//! Source: `cmd/nvidia-ctk-installer` of NVIDIA Container Toolkit 1.20; `assets/state-container-toolkit` of the GPU
//! Operator.

mod cdi;
mod engine;
mod error;
mod flags;
mod place;
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
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The program's row. `nvidia-toolkit` is what the GPU Operator calls.
pub const PROGRAM: Program = Program {
    own: "installer",
    nvidia: &["nvidia-ctk-installer", "nvidia-toolkit"],
    about: "installs the programs on a host and tells its engine: for the GPU Operator's toolkit container",
    run: main,
    command: Some(flags::command),
};

fn main(arguments: Vec<OsString>) -> ExitCode {
    let variable = |name: &str| std::env::var_os(name);
    // A user who only tries this program must not find its work done.
    if !flags::says(&arguments, variable) && !Path::new(flags::HOST).is_dir() {
        told(format!(
            "nothing is asked for, by no flag and no variable, and this is no toolkit container: there is no {}. \
             To install on this machine, name its engine, e.g. --runtime=docker\n\n{}\n\n\
             `nvidia-ctk-installer --help` tells more.",
            flags::HOST,
            flags::command().render_usage()
        ));
        return ExitCode::from(2);
    }
    let words = [OsString::from("nvidia-ctk-installer")].into_iter().chain(arguments.into_iter().skip(1)).collect();
    let options = match Options::read(words, variable) {
        Ok(options) => options,
        Err(told) if told.kind() == ErrorKind::DisplayVersion => {
            return output::page("nvidia-ctk-installer", &program::version("nvidia-ctk-installer"));
        }
        Err(told) => return program::refused(&told),
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            told(chain_without_repeats(&error).to_string());
            ExitCode::FAILURE
        }
    }
}

fn told(line: String) {
    output::say(format!("nvidia-ctk-installer: {line}"));
}

fn run(options: &Options) -> Result<(), InstallError> {
    check(options)?;
    let host = Host::of(options)?;
    let _lock = Lock::take(Path::new(options.text("pid-file")), Duration::ZERO).map_err(|error| match error {
        LockError::Held { path, .. } => InstallError::Busy(path),
        LockError::Unusable { path, source } => InstallError::Place { path, source },
    })?;
    // From here on a signal waits for the end of a step.
    let ends = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];
    let mut signals = Signals::new(ends).map_err(InstallError::Signals)?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in ends {
        signal_hook::flag::register(signal, ended.clone()).map_err(InstallError::Signals)?;
    }
    let told_to_end = ended.clone();
    let ended = || told_to_end.load(Ordering::SeqCst);

    let folder = Path::new(options.text("toolkit-install-dir")).join("toolkit");
    let configures = !options.on("no-runtime-config");
    let said = if configures { host.said(options, &told)? } else { Default::default() };
    let mut low = options.list("nvidia-container-runtime.runtimes");
    if low.is_empty() {
        // Who was killed has left ours as the default one, and no file tells which one was before. Containers run on,
        // and another runtime than the one that made them would say that they do not exist.
        let ours = said.default.as_ref().and_then(|(name, _)| said.program(name));
        if ours.is_some_and(|program| Path::new(program).starts_with(&folder)) {
            low = place::low_before(&folder);
        }
        for other in said.low_programs().into_iter().chain(["runc", "crun"].map(String::from)) {
            if !low.contains(&other) {
                low.push(other);
            }
        }
    }
    if let Some(own) = low.iter().find(|program| Path::new(program).starts_with(&folder)) {
        return Err(InstallError::Asked(format!(
            "{own} is what this installs: --nvidia-container-runtime.runtimes must name a runtime such as runc"
        )));
    }
    let bears = |done: Result<(), InstallError>| match done {
        Err(error) if options.on("ignore-errors") => {
            told(format!("passed over: {}", chain_without_repeats(&error)));
            Ok(())
        }
        other => other,
    };
    bears(place::install(&folder, options, &low, &told))?;
    if options.on("cdi-enabled") && !options.text("cdi-output-dir").is_empty() {
        bears(cdi::write(&folder, options, &told))?;
    }
    if ended() {
        told("told to end before the engine's files were changed".into());
        return Ok(());
    }
    if configures {
        host.set_up(&folder, options, &said, &ended, &told)?;
    }
    if options.on("no-daemon") {
        return Ok(());
    }
    told("done; waiting for a signal".into());
    signals.forever().next();
    // Another one ends the wait for an engine that does not answer.
    told_to_end.store(false, Ordering::SeqCst);
    match configures {
        true => host.clean_up(&folder, options, &ended, &told),
        false => Ok(()),
    }
}

/// Refuses wrong options before anything is done.
fn check(options: &Options) -> Result<(), InstallError> {
    let asked = |text: &str| Err(InstallError::Asked(text.into()));
    if !Path::new(options.text("toolkit-install-dir")).is_absolute() {
        return asked("--toolkit-install-dir must begin with a slash");
    }
    if Path::new(options.text("pid-file")).file_name().is_none_or(|name| name != "toolkit.pid") {
        return asked("--pid-file must name a file toolkit.pid");
    }
    if options.on("enable-nri-plugin") {
        return asked(
            "--enable-nri-plugin (ENABLE_NRI_PLUGIN): there is no NRI plug-in in this program. Set cdi.nriPluginEnabled=false \
             in the GPU Operator's values, and the engine is configured instead",
        );
    }
    if options.on("use-legacy-config") {
        return asked(
            "--use-legacy-config (CONTAINERD_USE_LEGACY_CONFIG) is for containerd before 1.3, which is not supported",
        );
    }
    cdi::kind(options)?;
    cdi::nodes(options)?;
    for flag in options.passed_over() {
        told(format!("--{flag} is passed over: it has no meaning here"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
