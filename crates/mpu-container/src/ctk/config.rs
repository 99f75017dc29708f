//! `nvidia-ctk config`.

use super::context::{Context, Failure, print};
use crate::config::edit::{self, EditError};
use crate::config::{self, ConfigError, keys};
use crate::lock::Lock;
use crate::text_file;
use clap::{Args, Subcommand};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  nvidia-ctk config                                            print the file
  nvidia-ctk config default                                    print every key with its default
  sudo nvidia-ctk config --in-place --set nvidia-container-runtime.mode=cdi
  sudo nvidia-ctk config -i --set nvidia-container-runtime.runtimes=crun:runc
  sudo nvidia-ctk config -i --set disable-require,nvidia-container-runtime.log-level=debug

Comments and the order of lines stay. A change that cannot be made leaves the file as it was. Changes that are made at
once wait for each other, for 10 seconds at most."
)]
pub(super) struct Config {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// The file [default: /etc/nvidia-container-runtime/config.toml]
    #[arg(long, visible_alias = "config", short = 'c', value_name = "FILE")]
    config_file: Option<PathBuf>,
    /// A change; a switch needs no value, a list's elements are separated by colons, several changes by commas
    #[arg(long, value_name = "KEY[=VALUE]")]
    set: Vec<String>,
    #[arg(long, default_value = ":", hide = true, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    set_list_separator: String,
    /// Write the file that was read
    #[arg(long, short)]
    in_place: bool,
    /// Write this file; otherwise the result is printed
    #[arg(long, short, value_name = "FILE", conflicts_with = "in_place")]
    output: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Prints every key with its default
    #[command(visible_aliases = ["create-default", "generate-default"])]
    Default {
        /// Write this file; otherwise the result is printed
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

impl Config {
    pub(super) fn run(&self, context: &Context) -> Result<(), Failure> {
        let default = || keys::default_text(&config::Config::of_host(Path::new("/")));
        if let Some(Verb::Default { output }) = &self.verb {
            return write_text(&default(), output.as_deref());
        }
        let path = match self.config_file.as_ref().or(context.config.as_ref()) {
            Some(path) => path.clone(),
            None => config::path(|name| std::env::var_os(name)).0,
        };
        let output = if self.in_place { Some(path.as_path()) } else { self.output.as_deref() };
        let output = output.filter(|path| !path.as_os_str().is_empty());
        // Locked before the read: otherwise, of two concurrent changes, the second would undo the first.
        let _lock = output.map(Lock::of).transpose()?;
        let text = match text_file::read(&path, config::MAX_FILE_SIZE) {
            Err(error) if error.kind() == ErrorKind::NotFound => default(),
            read => read.map_err(|error| format!("cannot read {}: {error}", path.display()))?,
        };
        let changed = edit::set(&text, &self.set, &self.set_list_separator).map_err(|error| match error {
            EditError::Malformed { line, message } => {
                Failure::from(ConfigError::Malformed { path: path.clone(), line, message })
            }
            error => error.into(),
        })?;
        write_text(&changed, output)
    }
}

fn write_text(text: &str, output: Option<&Path>) -> Result<(), Failure> {
    match output.filter(|path| !path.as_os_str().is_empty()) {
        Some(path) => {
            Ok(text_file::save(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?)
        }
        None => print(text),
    }
}
