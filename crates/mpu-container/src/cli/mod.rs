//! `nvidia-container-cli`: prints information about the driver, lists its files, and puts it into a container.
//!
//! Source: libnvidia-container, `src/cli` (commands, options, output formats, error messages).

mod args;
mod cgroup;
mod configure;
mod error;
mod info;
pub(crate) mod kmods;
mod list;
mod log;
mod mig;
mod process;
mod user;

use crate::chain::{chain, printable};
use crate::driver::{Driver, DriverRoot, Selection};
use crate::output;
use crate::program::{self, NVIDIA_RELEASE, Program};
use crate::require::check_all;
use args::{Cli, Command, Configure, Global};
use clap::{CommandFactory, Parser, error::ErrorKind};
use configure::Inputs;
use error::CliError;
use log::{Log, NAME};
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use user::User;

pub const PROGRAM: Program = Program {
    name: "cli",
    nvidia_names: &[NAME],
    about: "lists the driver's parts, and puts them into a container",
    run,
    command: Some(Cli::command),
};

pub fn run(arguments: Vec<OsString>) -> ExitCode {
    // Help and errors always show NVIDIA's name of the program.
    let words = std::iter::once(OsString::from(NAME)).chain(arguments.into_iter().skip(1));
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) if error.kind() == ErrorKind::DisplayVersion => return exit_code(print(&version())),
        Err(error) => return program::print_clap_error(&error),
    };
    exit_code(open_log(cli.global.debug.as_deref()).and_then(|log| {
        command(&cli, &log).inspect_err(|error| log.write_line(format_args!("failed: {}", chain(error))))
    }))
}

/// The output of `--version`. As in NVIDIA's program, two lines without a program name come first.
fn version() -> String {
    let own_version = env!("CARGO_PKG_VERSION");
    format!("cli-version: {NVIDIA_RELEASE}\nlib-version: {NVIDIA_RELEASE}\nmpu-container: {own_version}\n")
}

fn open_log(path: Option<&Path>) -> Result<Log, CliError> {
    Log::open(path).map_err(|source| CliError::Log { path: path.unwrap_or(Path::new("")).into(), source })
}

fn exit_code(result: Result<(), CliError>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    let mut text = format!("{NAME}: {}\n", chain(&error));
    if let Some(fix) = error.fix() {
        text += &format!("{NAME}: fix: {}\n", printable(&fix));
    }
    // There may be no reader.
    let _ = std::io::stderr().write_all(text.as_bytes());
    ExitCode::FAILURE
}

fn command(cli: &Cli, log: &Log) -> Result<(), CliError> {
    let global = &cli.global;
    let user = global.user.as_deref().map(user::parse_user).transpose().map_err(CliError::User)?.flatten();
    match &cli.command {
        Command::Info(info) => {
            let driver = find_driver(global, log)?;
            print(&user::run_as(user, || info::page(&driver, info.csv)).map_err(CliError::User)?)
        }
        Command::List(list) => print(&list::page(&find_driver(global, log)?, &list.clone().or_everything(), global)?),
        Command::Configure(arguments) => configure(global, arguments, user, log),
    }
}

fn configure(global: &Global, arguments: &Configure, user: Option<User>, log: &Log) -> Result<(), CliError> {
    let driver = find_driver(global, log)?;
    let selection = driver.select(&arguments.device).map_err(CliError::Device)?;
    let mig = |option, words: &[String]| {
        mig::gpus(option, words, &driver, &selection, &arguments.device)
            .map_err(|source| CliError::Mig { option, source })
    };
    require(&driver, &selection, &arguments.require, user)?;
    let config = mig("mig-config", &arguments.mig_config)?;
    let monitor = mig("mig-monitor", &arguments.mig_monitor)?;
    if global.load_kmods && !global.no_create_imex_channels {
        kmods::create_channels(&driver, &arguments.imex_channel, log);
    }
    let files = driver.files_by_cache(arguments.capabilities(), global.ldcache.as_deref());
    let files = files.map_err(CliError::Files)?;
    let inputs = Inputs {
        driver: &driver,
        files: &files,
        selection: &selection,
        config: &config,
        monitor: &monitor,
        arguments,
        no_pivot: global.no_pivot,
    };
    configure::configure(&inputs, log).map_err(CliError::Configure)
}

/// Checks the image's requirements against every GPU that the container gets.
fn require(
    driver: &Driver,
    selection: &Selection<'_>,
    requirements: &[String],
    user: Option<User>,
) -> Result<(), CliError> {
    // A query can initialize a GPU, which takes long.
    if requirements.is_empty() {
        return Ok(());
    }
    let query = || selection.gpus.iter().map(|gpu| driver.gpu_facts(gpu)).collect::<Vec<_>>();
    let gpus = user::run_as(user, query).map_err(CliError::User)?;
    check_all(requirements, &driver.facts(), &gpus).map_err(CliError::Require)
}

fn find_driver(global: &Global, log: &Log) -> Result<Driver, CliError> {
    // As in the wrapper, the nodes are below the driver's root, unless only the host has them. If neither has nodes yet, new ones are
    // created below the root's /dev, if that exists.
    let has = |root: &Path| root.join("dev/nvidiactl").exists();
    let in_root = has(&global.root) || (!has(Path::new("/")) && global.root.join("dev").is_dir());
    let devices = if in_root { &global.root } else { Path::new("/") };
    let root = DriverRoot::at(&global.root, Some(devices));
    if global.load_kmods {
        kmods::load(&root, log);
    }
    let driver = Driver::find(&root).map_err(CliError::Driver)?;
    log.write_line(format_args!(
        "driver {} below {}, {} GPUs",
        driver.version,
        root.files.display(),
        driver.gpus.len()
    ));
    Ok(driver)
}

fn print(page: &str) -> Result<(), CliError> {
    output::print(page).map_err(CliError::Output)
}
