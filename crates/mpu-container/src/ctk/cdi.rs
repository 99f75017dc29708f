//! `nvidia-ctk cdi`: list and transform; `generate` has a module of its own.

use super::context::{Context, Failure, print, write_spec};
use super::generate::Generate;
use crate::cdi::file::{self, Format, ReadError};
use crate::cdi::transform::{self, Relative};
use crate::cdi::{Registry, registry, validate};
use crate::chain::chain_without_repeats;
use crate::engines::command::{non_empty, path_parser};
use crate::text_file;
use clap::{Args, Subcommand};
use mpu_os::file::read_all;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Writes a CDI file that describes this host's GPUs
    Generate(Box<Generate>),
    /// Lists the devices that CDI files describe
    List(List),
    /// Changes a CDI file
    #[command(subcommand)]
    Transform(Transform),
}

impl Verb {
    pub(super) fn run(&self, context: &Context) -> Result<(), Failure> {
        match self {
            Verb::Generate(verb) => verb.run(context),
            Verb::List(verb) => verb.run(context),
            Verb::Transform(Transform::Root(verb)) => verb.run(),
        }
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "One name a line on standard output. Files that cannot be used are reported on standard error, and
the others are listed all the same."
)]
pub(super) struct List {
    /// A directory of CDI files; of several, a later one overrides an earlier
    #[arg(long, env = "NVIDIA_CTK_CDI_SPEC_DIRS", value_delimiter = ',', value_name = "DIR",
        default_values = registry::DIRECTORIES)]
    spec_dir: Vec<PathBuf>,
}

impl List {
    fn run(&self, context: &Context) -> Result<(), Failure> {
        let registry = Registry::read(&self.spec_dir);
        for failure in registry.failures() {
            crate::output::eprint_line(format!("nvidia-ctk: warning: {}", chain_without_repeats(failure)));
        }
        for conflict in registry.conflicts() {
            crate::output::eprint_line(format!("nvidia-ctk: warning: {conflict}"));
        }
        let names: String = registry.devices().map(|name| format!("{name}\n")).collect();
        print(&names)?;
        context.note(format_args!("found {} CDI devices", registry.devices().count()));
        Ok(())
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum Transform {
    /// Replaces the root directory of the paths in a CDI file
    Root(Root),
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  nvidia-ctk cdi transform root --input=a.yaml --output=b.yaml --from=/run/nvidia/driver --to=/")]
pub(super) struct Root {
    /// The root of the paths to change
    #[arg(long, value_parser = path_parser(), value_name = "DIR", default_value = "/")]
    from: PathBuf,
    /// The new root
    #[arg(long, value_parser = path_parser(), value_name = "DIR", default_value = "/")]
    to: PathBuf,
    /// The file to read; - is standard input
    #[arg(long, value_name = "FILE", default_value = "-")]
    input: PathBuf,
    /// The file to write; standard output if none
    #[arg(long, value_parser = path_parser(), value_name = "FILE")]
    output: Option<PathBuf>,
    /// Which paths change
    #[arg(long, default_value = "host")]
    relative_to: Relative,
}

impl Root {
    fn run(&self) -> Result<(), Failure> {
        let output = non_empty(&self.output);
        let bytes = match self.input.to_str() {
            Some("-") => read_all(std::io::stdin().lock(), file::MAX_SIZE),
            _ => text_file::read_file_or_pipe(&self.input, file::MAX_SIZE),
        };
        let spec = bytes.map_err(ReadError::from).and_then(|bytes| file::parse_named(&bytes, &self.input));
        let mut spec = spec.map_err(|error| format!("{}: {error}", self.input.display()))?;
        transform::change_root(&mut spec, &self.from, &self.to, self.relative_to);
        validate::check(&spec)?;
        write_spec(&spec, output, output.and_then(Format::of_path).unwrap_or(Format::Yaml))?;
        Ok(())
    }
}
