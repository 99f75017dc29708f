//! `nvidia-cdi-hook`: the hooks in CDI files.
//!
//! Names and arguments are NVIDIA's, so that CDI files of either program work with the other. A runtime starts a hook with the
//! container's state on standard input, mostly as a `createContainer` hook: in the container's mount namespace, with the host's
//! root still as `/`. The container's root is untrusted and is only accessed through `beneath`. The environment can be the
//! image's, so it controls only verbosity.
//!
//! Hooks are idempotent.
//!
//! Source: NVIDIA Container Toolkit, `cmd/nvidia-cdi-hook`; OCI runtime specification, "POSIX-platform Hooks".

pub mod compat;
mod gpus;
mod memory;
mod outcome;
pub mod params;
pub(crate) mod profile;
mod sequence;
pub mod state;
#[cfg(test)]
mod tests;

use crate::beneath::Root;
use crate::chain::chain;
use crate::output;
use crate::program::{self, Program};
use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use sequence::RootCache;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub use outcome::HookError;
use outcome::{Log, NAME};
pub use sequence::{IN_TURN, SEPARATOR};

pub const PROGRAM: Program = Program {
    name: "cdi-hook",
    nvidia_names: &["nvidia-cdi-hook"],
    about: "finishes a container's files",
    run: main,
    command: Some(Args::command),
};

/// Finishes the files of a container that has been given GPUs. A container runtime starts it, as listed in a CDI file
#[derive(Debug, Parser)]
#[command(
    name = NAME,
    version,
    args_override_self = true,
    after_help = "The container's state is read from standard input.

Examples, as they stand in a CDI file:
  nvidia-cdi-hook create-symlinks --link libcuda.so.1::/usr/lib64/libcuda.so
  nvidia-cdi-hook update-ldcache --ldconfig-path /sbin/ldconfig --folder /usr/lib64

By hand, for a bundle:
  nvidia-cdi-hook update-ldcache --folder /usr/lib64 <<< '{\"bundle\": \"/run/bundle\"}'"
)]
struct Args {
    /// Print what is done, on standard error
    #[arg(short, long, global = true, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", value_parser = BoolishValueParser::new(), hide_default_value = true,
        hide_possible_values = true)]
    debug: bool,
    /// Print errors only
    #[arg(long, global = true, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", value_parser = BoolishValueParser::new(), hide_default_value = true,
        hide_possible_values = true)]
    quiet: bool,
    /// A file with the container's state; empty or `-`: standard input
    #[arg(long, global = true, value_name = "FILE", default_value = "", hide_default_value = true)]
    container_spec: OsString,
    #[command(subcommand)]
    hook: Hook,
}

#[derive(Debug, Subcommand, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
enum Hook {
    /// Make symbolic links
    CreateSymlinks {
        /// A link as TARGET::LINK; what has the link's name is replaced
        #[arg(long = "link", value_name = "TARGET::LINK", value_delimiter = ',', allow_hyphen_values = true)]
        links: Vec<String>,
    },
    /// Make libraries known to the container's loader, with the host's ldconfig
    UpdateLdcache {
        /// A folder of the container with libraries
        #[arg(long = "folder", value_name = "FOLDER", value_delimiter = ',')]
        folders: Vec<String>,
        /// The host's ldconfig
        #[arg(long, value_name = "FILE", default_value = "/sbin/ldconfig")]
        ldconfig_path: PathBuf,
    },
    /// Prefer CUDA's compatibility libraries of the image, where they are newer than the host's driver
    EnableCudaCompat(compat::CompatArgs),
    /// Keep nvidia-smi and NVML from making device nodes in the container
    DisableDeviceNodeModification,
    /// Hide from /proc/driver/nvidia/gpus the GPUs whose nodes the container does not have
    HideOtherGpus,
    /// Set the mode of files and folders; skip those that do not exist
    Chmod {
        /// A path in the container
        #[arg(long = "path", value_name = "PATH", value_delimiter = ',')]
        paths: Vec<String>,
        /// The mode, in octal digits
        #[arg(long, value_name = "MODE")]
        mode: String,
    },
    /// Limit EGL and Vulkan to the container's own GPUs
    UpdateApplicationProfile,
    /// Limit the GPU memory of the container to what its NVIDIA_GPU_MEMORY_REQUEST and NVIDIA_GPU_MEMORY_LIMIT say, in MiB
    ApplyCudaMemoryLimits(memory::MemoryArgs),
    /// Nothing
    #[command(hide = true)]
    Noop,
    #[command(external_subcommand)]
    Unknown(Vec<OsString>),
}

pub fn main(arguments: Vec<OsString>) -> ExitCode {
    // NVIDIA's CDI files set these variables, older ones the second names.
    let is_on = |name| std::env::var(name).is_ok_and(|value| crate::config::edit::parse_bool(&value) == Some(true));
    let debug = ["NVIDIA_CTK_DEBUG", "NVIDIA_CDI_DEBUG"].into_iter().any(is_on);
    let quiet = ["NVIDIA_CTK_QUIET", "NVIDIA_CDI_QUIET"].into_iter().any(is_on);
    let calls = match parse_all(arguments) {
        Ok(calls) => calls,
        Err(code) => return code,
    };
    let roots = RootCache::default();
    for args in calls {
        let log = Log { debug: debug || args.debug, quiet: quiet || args.quiet };
        let name = args.hook.name();
        if let Err(error) = run(args, &roots, log) {
            output::eprint_line(format!("{NAME}: {name}: {}", chain(&error)));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Parses the arguments of all hooks before any of them runs.
fn parse_all(arguments: Vec<OsString>) -> Result<Vec<Args>, ExitCode> {
    let is_alone = arguments.get(1).is_none_or(|word| word != IN_TURN);
    sequence::split(arguments).into_iter().map(|hook| parse(hook, is_alone)).collect()
}

fn parse(arguments: Vec<OsString>, is_alone: bool) -> Result<Args, ExitCode> {
    match Args::try_parse_from(&arguments) {
        Ok(args) => Ok(args),
        Err(error) if error.kind() == ErrorKind::UnknownArgument && unknown_hook(&arguments).is_some() => {
            let words = unknown_hook(&arguments).into_iter().collect();
            Ok(Args { debug: false, quiet: false, container_spec: OsString::new(), hook: Hook::Unknown(words) })
        }
        // If help ended with success, the container would start without its other hooks.
        Err(error) if !error.use_stderr() && !is_alone => {
            output::eprint_line(format!(
                "{NAME}: help and version are not for one hook of several (see {NAME} --help)"
            ));
            Err(ExitCode::from(2))
        }
        Err(error) if error.kind() == ErrorKind::DisplayVersion => {
            Err(output::print_page(NAME, &program::version("NVIDIA CDI Hook")))
        }
        Err(error) if !error.use_stderr() => Err(program::print_clap_error(&error)),
        Err(error) => {
            output::eprint_line(format!("{NAME}: {} (see {NAME} --help)", one_line_message(&error)));
            Err(ExitCode::from(2))
        }
    }
}

/// Returns the name of an unknown hook, perhaps after unknown options: a call for a newer program.
fn unknown_hook(arguments: &[OsString]) -> Option<OsString> {
    let is_option = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    let word = arguments.iter().skip(1).find(|word| !is_option(word))?;
    let known = Args::command().get_subcommands().any(|hook| word == hook.get_name());
    (!known).then(|| word.clone())
}

/// clap's message on one line: its first line and the list below it. Without a hook, clap's message is the whole help.
fn one_line_message(error: &clap::Error) -> String {
    if matches!(error.kind(), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand) {
        return "no hook is named".to_owned();
    }
    let text = error.to_string();
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ");
    let details: Vec<&str> = lines.map_while(|line| line.strip_prefix("  ")).map(str::trim).collect();
    match details.is_empty() {
        true => first.trim_end_matches(':').to_owned(),
        false => format!("{first} {}", details.join(", ")),
    }
}

impl Hook {
    fn name(&self) -> &'static str {
        self.into()
    }
}

fn run(args: Args, roots: &RootCache, log: Log) -> Result<(), HookError> {
    let spec = args.container_spec;
    let root = || roots.of(&spec);
    match args.hook {
        Hook::CreateSymlinks { links } => {
            let links = parse_links(&links)?;
            create_links(&*root()?, &links, log)
        }
        Hook::UpdateLdcache { folders, ldconfig_path } => {
            Ok(crate::ldconfig::run(&*root()?, &ldconfig_path, &folders)?)
        }
        // Without a version of the host, there is nothing to compare.
        Hook::EnableCudaCompat(args) if args.is_empty() => Ok(()),
        Hook::EnableCudaCompat(args) => compat::enable(&*root()?, &args, log),
        Hook::DisableDeviceNodeModification => params::disable(Path::new(params::PARAMS), root, log),
        Hook::HideOtherGpus => {
            gpus::hide_other_gpus(&*root()?, log);
            Ok(())
        }
        Hook::Chmod { paths, mode } => {
            let mode = parse_mode(&mode)?;
            set_modes(&*root()?, &paths, mode, log)
        }
        Hook::UpdateApplicationProfile => profile::update(&*root()?, log),
        Hook::ApplyCudaMemoryLimits(args) => memory::apply(Path::new(&spec), &args, log),
        Hook::Noop => Ok(()),
        // As in NVIDIA's program, a CDI file for a newer program must not prevent containers from starting.
        Hook::Unknown(words) => {
            let name = words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
            log.warn(format!("there is no hook {name:?}; it is passed over (see {NAME} --help)"));
            Ok(())
        }
    }
}

fn parse_mode(text: &str) -> Result<u32, HookError> {
    let digits = text.trim();
    let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o7777 && !digits.starts_with('+'));
    mode.ok_or(HookError::Argument { what: "the mode", value: text.into(), expected: "an octal number up to 7777" })
}

/// Sets the mode of existing paths. Skips file systems that do not allow it, such as the host's `/dev`.
fn set_modes(root: &Root, paths: &[String], mode: u32, log: Log) -> Result<(), HookError> {
    if let Some(path) = paths.iter().find(|path| path.trim().is_empty()) {
        return Err(HookError::Argument { what: "the path", value: path.clone(), expected: "a path" });
    }
    for path in paths {
        let Some(found) = root.find(Path::new(path))? else {
            log.debug(|| format!("{path} is not there"));
            continue;
        };
        match found.set_mode(mode) {
            Ok(()) => log.debug(|| format!("{path} has mode {mode:o}")),
            Err(error) if error.is_denied() => log.debug(|| crate::chain::chain(&error)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Parses `TARGET::LINK` arguments.
fn parse_links(words: &[String]) -> Result<Vec<(PathBuf, PathBuf)>, HookError> {
    let link = |word: &String| match word.split("::").collect::<Vec<_>>()[..] {
        [target, link] if !target.is_empty() && !link.is_empty() => Ok((target.into(), link.into())),
        _ => Err(HookError::Argument { what: "the link", value: word.clone(), expected: "of the form TARGET::LINK" }),
    };
    words.iter().map(link).collect()
}

/// Creates the links below the container's root. Targets are not resolved.
fn create_links(root: &Root, links: &[(PathBuf, PathBuf)], log: Log) -> Result<(), HookError> {
    for (target, link) in links {
        let new = root.symlink(target, link)?;
        let action = if new { "made" } else { "found" };
        log.debug(|| format!("{action} {} -> {}", link.display(), target.display()));
    }
    Ok(())
}
