//! What all verbs of `nvidia-ctk` share: the options that hold for each, how an option is read, how a failure is told.

use clap::Args;
use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;

/// What holds for every verb.
#[derive(Debug, Args)]
pub(super) struct Context {
    /// Accepted for scripts; it has no effect
    #[arg(long, short, env = "NVIDIA_CTK_DEBUG", value_parser = truth(), hide = true, global = true)]
    debug: bool,
    /// Print errors only
    #[arg(long, env = "NVIDIA_CTK_QUIET", value_parser = truth(), global = true)]
    quiet: bool,
    /// The runtime's configuration [default: /etc/nvidia-container-runtime/config.toml]
    #[arg(long, env = "NVIDIA_CTK_CONFIG", value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

impl Context {
    pub(super) fn note(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            crate::output::say(format!("nvidia-ctk: {text}"));
        }
    }
}

/// Why a verb was not carried out; the chain of reasons is printed as one line.
pub(super) type Failure = Box<dyn Error>;

/// A flag's variable: anything but a word for no is yes, as scripts set them.
pub(super) fn truth() -> clap::builder::FalseyValueParser {
    clap::builder::FalseyValueParser::new()
}

/// The first of these variables of our own environment that is set to something.
pub(super) fn variable(names: &[&str]) -> Option<OsString> {
    names.iter().find_map(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
}
