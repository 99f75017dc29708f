//! What a program within the executable is.
//!
//! Owns the row that each program has. Which rows there are is `names`' business.

use std::ffi::OsString;
use std::process::ExitCode;

/// One program within the executable.
pub struct Program {
    /// What comes after `mpu-container`.
    pub own: &'static str,
    /// What NVIDIA calls it: names that a link to the executable can have.
    pub nvidia: &'static [&'static str],
    /// What it is, for `--help`.
    pub about: &'static str,
    /// Runs it. The first argument is the name it was called by.
    pub run: fn(Vec<OsString>) -> ExitCode,
    /// Its command line, if that is not somebody else's to define.
    pub command: Option<fn() -> clap::Command>,
}
