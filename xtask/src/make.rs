//! The verb `kernels`: prepares a guest's kernel, or builds a module for one. Other verbs do both by themselves.

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

use crate::arch::Arch;
use crate::kernels::{debian, ready};
use crate::outcome::Outcome;
use crate::{modules, setup};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Makes kernels ready: all of Debian's, or those named
    Fetch { names: Vec<String> },
    /// Builds an out-of-tree module: kernel, source folder, output folder, and arguments for make
    Build { kernel: String, source: PathBuf, out: PathBuf, make_args: Vec<String> },
}

pub fn make(args: &Args) -> Result<Outcome> {
    match &args.what {
        Verb::Fetch { names } => {
            setup::require(setup::KERNELS)?;
            for name in if names.is_empty() { debian(Arch::Amd64)? } else { names.clone() } {
                let kernel = ready(&name)?;
                println!("{name}: {} in {}", kernel.release, kernel.dir.display());
            }
            Ok(Outcome::Passed)
        }
        Verb::Build { kernel, source, out, make_args } => {
            setup::require(setup::KERNELS)?;
            let built = modules::build(&ready(kernel)?, source, out, make_args)?;
            for line in &built.complaints {
                println!("{line}");
            }
            for file in &built.files {
                println!("{}", file.display());
            }
            Ok(Outcome::of(built.is_clean()))
        }
    }
}
