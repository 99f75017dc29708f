//! What a program within the executable is.

use std::ffi::OsString;
use std::process::ExitCode;

pub struct Program {
    /// What comes after `mpu-container`.
    pub own: &'static str,
    /// What NVIDIA calls it: names that a link to the executable can have.
    pub nvidia: &'static [&'static str],
    pub about: &'static str,
    pub run: fn(Vec<OsString>) -> ExitCode,
    /// Its command line, if clap defines it.
    pub command: Option<fn() -> clap::Command>,
}

/// Ends a program whose command line was not understood, or asked for help. There may be no reader.
pub fn refused(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// The release of NVIDIA's toolkit, and of libnvidia-container, that these programs stand in for.
pub const NVIDIA_RELEASE: &str = "1.20.0";

/// What `--version` prints under NVIDIA's name for a program: scripts compare that number. Ours stands below it.
pub fn version(name: &str) -> String {
    format!("{name} version {NVIDIA_RELEASE}\nmpu-container: {}\n", env!("CARGO_PKG_VERSION"))
}

pub fn help(programs: &[Program]) -> String {
    let mut text = String::from(
        "Puts NVIDIA GPUs into containers.\n\nUsage: mpu-container PROGRAM [ARGUMENTS]\n\n\
         Programs (each also answers to NVIDIA's names, by a link):\n",
    );
    for program in programs {
        let names = program.nvidia.iter().map(|name| format!("\n              {name}"));
        text.push_str(&format!("  {:<11} {}{}\n", program.own, program.about, names.collect::<String>()));
    }
    text.push_str("\n`mpu-container PROGRAM --help` tells more.\n");
    text
}
