//! Options and helpers that all verbs of `nvidia-ctk` share.

use crate::cdi::file::{self, Format};
use crate::edits::Spec;
use crate::output;
use clap::Args;
use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What holds for every verb.
#[derive(Debug, Args)]
pub(super) struct Context {
    /// Accepted for scripts; it has no effect
    #[arg(long, short, env = "NVIDIA_CTK_DEBUG", value_parser = env_switch(), hide = true, global = true)]
    debug: bool,
    /// Print errors only
    #[arg(long, env = "NVIDIA_CTK_QUIET", value_parser = env_switch(), global = true)]
    quiet: bool,
    /// The runtime's configuration [default: /etc/nvidia-container-runtime/config.toml]
    #[arg(long, env = "NVIDIA_CTK_CONFIG", value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

impl Context {
    pub(super) fn note(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            output::eprint_line(format!("nvidia-ctk: {text}"));
        }
    }
}

/// A verb's error; printed with its causes on one line.
pub(super) type Failure = Box<dyn Error>;

/// Parses a switch's environment variable as scripts set it: everything except a false value means true.
pub(super) fn env_switch() -> clap::builder::FalseyValueParser {
    clap::builder::FalseyValueParser::new()
}

/// The first of these environment variables that is set and not empty.
pub(super) fn first_set(names: &[&str]) -> Option<OsString> {
    names.iter().find_map(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
}

/// Prints a verb's result.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    output::print(text).map_err(|error| format!("cannot write standard output: {error}").into())
}

/// Writes a spec to a file or to standard output. Appends the format's extension to a file name without `.json` or `.yaml`: engines read
/// only such files.
pub(super) fn write_spec(spec: &Spec, output: Option<&Path>, format: Format) -> Result<Option<PathBuf>, Failure> {
    let text = file::serialize(spec, format);
    let Some(path) = output else {
        print(&text)?;
        return Ok(None);
    };
    let mut path = path.as_os_str().to_owned();
    match (Path::new(&path).extension().and_then(|end| end.to_str()), format) {
        (Some("json" | "yaml"), _) => {}
        (_, Format::Json) => path.push(".json"),
        (_, Format::Yaml) => path.push(".yaml"),
    }
    let path = PathBuf::from(path);
    file::write(&path, text.as_bytes())?;
    Ok(Some(path))
}
