//! A program in this executable.

use crate::output::eprint_line;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::ExitCode;

pub struct Program {
    /// Its name as the first argument of `mpu-container`.
    pub name: &'static str,
    /// NVIDIA's names for it. Links to the executable can have these names.
    pub nvidia_names: &'static [&'static str],
    pub about: &'static str,
    pub run: fn(Vec<OsString>) -> ExitCode,
    /// Its command line, if clap defines it.
    pub command: Option<fn() -> clap::Command>,
}

/// Prints clap's error or help. Returns the exit code.
pub fn print_clap_error(error: &clap::Error) -> ExitCode {
    match error.print() {
        Err(source) if !error.use_stderr() && source.kind() != ErrorKind::BrokenPipe => {
            eprint_line(format!("mpu-container: cannot write standard output: {source}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)),
    }
}

/// The release of NVIDIA's toolkit and libnvidia-container that these programs replace.
pub const NVIDIA_RELEASE: &str = "1.20.0";

/// Output of `--version` under an NVIDIA name: NVIDIA's version, which scripts compare, then ours.
pub fn version(name: &str) -> String {
    format!("{name} version {NVIDIA_RELEASE}\nmpu-container: {}\n", env!("CARGO_PKG_VERSION"))
}

pub fn help(programs: &[Program]) -> String {
    let mut text = String::from(
        "Puts NVIDIA GPUs into containers.\n\nUsage: mpu-container PROGRAM [ARGUMENTS]\n\n\
         Programs (each also answers to NVIDIA's names, by a link):\n",
    );
    for program in programs {
        let names = program.nvidia_names.iter().map(|name| format!("\n              {name}"));
        text.push_str(&format!("  {:<11} {}{}\n", program.name, program.about, names.collect::<String>()));
    }
    text.push_str("\n`mpu-container PROGRAM --help` shows the options.\n");
    text
}
