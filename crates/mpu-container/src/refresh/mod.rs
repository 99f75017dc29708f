//! The program `refresh`: keeps this host's CDI file up to date.
//!
//! No event covers all changes of drivers, MIG devices and libraries. So a few files of `/proc` and `/dev` are read every two seconds,
//! and the driver's other files are looked up. That costs the driver nothing and does not keep it loaded.

mod watch;

use crate::cdi::error::GenerateError;
use crate::cdi::extra::Mode;
use crate::cdi::file::{self, Format};
use crate::cdi::generate::{self, Naming, Request, generate};
use crate::cdi::inject::Options;
use crate::cdi::name::Kind;
use crate::driver::{DriverError, DriverRoot};
use crate::edits::Spec;
use crate::executable;
use crate::output;
use crate::program::{self, Program};
use crate::text_file;
use clap::{CommandFactory, Parser};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

pub const PROGRAM: Program = Program {
    name: "refresh",
    nvidia_names: &[],
    about: "keeps the CDI file of this host true",
    run: main,
    command: Some(Args::command),
};

/// The first line of our files. Files without it stay unchanged.
const HEADER: &str = "# Written by mpu-container refresh; it is written again when the driver or its devices change.\n";

/// Limit of the file's size, larger than any file of ours.
const MAX_BYTES: u64 = 16 << 20;

/// Keeps the CDI file of this host's GPUs true
#[derive(Debug, Parser)]
#[command(
    name = "mpu-container refresh",
    bin_name = "mpu-container refresh",
    after_help = "Examples:
  mpu-container refresh            write the file once, or remove it where there is no driver
  mpu-container refresh --watch    and again whenever driver, GPUs, MIG devices or libraries change
  mpu-container refresh --remove   remove the file"
)]
struct Args {
    /// The file
    #[arg(long, value_name = "FILE", default_value = "/var/run/cdi/nvidia.yaml")]
    output: PathBuf,
    /// The root of the driver's files, if it is not `/`
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    driver_root: PathBuf,
    /// Keep running, and follow every change
    #[arg(long)]
    watch: bool,
    /// Remove the file, if it is ours
    #[arg(long, conflicts_with = "watch")]
    remove: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum RefreshError {
    #[error("{} was written by another tool: disable that (nvidia-cdi-refresh?) and remove the file", .0.display())]
    Foreign(PathBuf),
    #[error("cannot change {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Write(#[from] file::WriteError),
    #[error(transparent)]
    Generate(#[from] GenerateError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Unchanged,
    Written,
    Removed,
}

fn main(arguments: Vec<OsString>) -> ExitCode {
    let args = match Args::try_parse_from(arguments) {
        Ok(args) => args,
        Err(error) => return program::print_clap_error(&error),
    };
    let root = DriverRoot::at(&args.driver_root, None);
    if args.watch {
        watch::run(&root, &args.output, Duration::from_secs(2));
    }
    let done = if args.remove { remove(&args.output) } else { refresh(&root, &args.output) };
    let path = args.output.display();
    match done {
        Ok(Outcome::Unchanged) if !args.output.exists() && args.remove => {
            output::eprint_line(format!("{path} is not there"))
        }
        Ok(Outcome::Unchanged) if !args.output.exists() => {
            output::eprint_line(format!("{path} is not there: there is no driver to describe"));
        }
        Ok(Outcome::Unchanged) if args.remove => {
            output::eprint_line(format!("{path} was written by another tool: it stays"))
        }
        Ok(Outcome::Unchanged) => output::eprint_line(format!("{path} is as it should be")),
        Ok(Outcome::Written) => output::eprint_line(format!("{path} was written")),
        Ok(Outcome::Removed) => output::eprint_line(format!("{path} was removed")),
        Err(error) => {
            output::eprint_line(format!("mpu-container: refresh: {error}"));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

pub fn refresh(root: &DriverRoot, output: &Path) -> Result<Outcome, RefreshError> {
    let old = own_text(output)?;
    let spec = match generate_spec(root) {
        Ok(spec) => spec,
        Err(GenerateError::Driver(DriverError::NotLoaded { .. }) | GenerateError::Nothing(_)) => return remove(output),
        Err(error) => return Err(error.into()),
    };
    let text = format!("{HEADER}{}", file::serialize(&spec, Format::Yaml));
    let outcome = match old.as_deref() == Some(text.as_str()) {
        true => Outcome::Unchanged,
        false => file::write(output, text.as_bytes()).map(|()| Outcome::Written)?,
    };
    for warning in generate::warnings(&spec, Mode::Nvml) {
        output::eprint_line(format!("mpu-container: refresh: {warning}"));
    }
    Ok(outcome)
}

/// The spec that `nvidia-ctk cdi generate` writes without options.
fn generate_spec(root: &DriverRoot) -> Result<Spec, GenerateError> {
    let program = executable::path().unwrap_or_else(|_| PathBuf::from("/usr/bin/mpu-container"));
    let request = Request {
        kind: Kind::new("nvidia.com", "gpu").expect("a valid kind"),
        mode: Mode::Nvml,
        names: vec![Naming::Index, Naming::Uuid],
        devices: vec!["all".into()],
        all: true,
        edits: Options::new(program),
    };
    generate(root, &request)
}

pub fn remove(output: &Path) -> Result<Outcome, RefreshError> {
    match own_text(output) {
        Ok(None) | Err(RefreshError::Foreign(_)) => Ok(Outcome::Unchanged),
        Ok(Some(_)) => match std::fs::remove_file(output) {
            Ok(()) => Ok(Outcome::Removed),
            Err(source) => Err(RefreshError::Io { path: output.to_path_buf(), source }),
        },
        Err(error) => Err(error),
    }
}

fn own_text(output: &Path) -> Result<Option<String>, RefreshError> {
    match text_file::read(output, MAX_BYTES) {
        Ok(text) if text.starts_with(HEADER) => Ok(Some(text)),
        Ok(_) => Err(RefreshError::Foreign(output.to_path_buf())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(RefreshError::Io { path: output.to_path_buf(), source }),
    }
}

#[cfg(test)]
mod tests;
