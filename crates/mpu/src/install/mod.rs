//! Installs, upgrades and removes MPU on this host: completely or not at all.
//!
//! [`layout`] lists the files, and [`plan`] lists the steps with their undo commands. [`carry_out`] runs the steps, and
//! [`journal`] undoes them.

mod error;
pub mod journal;
pub mod layout;
pub mod plan;
mod record;
#[cfg(test)]
mod tests;

use crate::probe;
use journal::Journal;
use layout::{Documents, Layout, VERSION};
use mpu_engine::module::load::Kernel;
use mpu_engine::module::sources::Sources;
use mpu_engine::module::state::{self, Phase};
use mpu_engine::module::{plan as module_plan, raise};
use mpu_engine::{down, up};
use mpu_host::config::{Config, EngineSetting, Modules};
use mpu_host::driver::Driver;
use mpu_host::explain::{Explained, chain};
use mpu_host::host::{CAP_SYS_MODULE, Host};
use mpu_host::kernel_release::numbers;
use mpu_host::progress::Progress;
use mpu_notify::{self as notify, client};
use mpu_os::file::{Mode, replace_file_atomically};
use plan::{Action, HostTools, Step, StepView};
use schemars::JsonSchema;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use error::InstallError;
pub use record::{Installed, RECORD, Record};

const NOT_BUILT: &str = "the module is not built by DKMS, because this host cannot use it now: `mpu doctor` says why; the notify engine is used";
const NO_DKMS: &str = "no DKMS: the module is built at the first `mpu up` after a kernel update, not with it";
const NO_SYSTEMD: &str =
    "no systemd: start it at boot yourself, with `mpu up` (or `modprobe mpu` for an installed module)";

/// Options of `mpu install`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct InstallOptions {
    /// Say what would be done, in order, and do nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Leave the engine as it is; the next boot starts this version
    #[arg(long)]
    pub no_start: bool,

    /// Build from the sources in this directory instead of those that mpu carries
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub source: Option<PathBuf>,

    /// The executable to install in place of this one.
    #[arg(skip)]
    pub executable: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum InstallResult {
    Installed,
    Upgraded,
    Uninstalled,
    Unchanged,
    Planned,
}

/// The result for the host.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Installation")]
pub struct Outcome {
    /// `installed`, `upgraded`, `uninstalled`, `unchanged` or `planned` (with --dry-run).
    pub result: InstallResult,
    /// The version that this executable installs; for an uninstallation, the removed one.
    pub version: String,
    /// The version before.
    pub before: Option<String>,
    /// Every step, in order.
    pub steps: Vec<StepView>,
    /// What this host will not do by itself, as sentences.
    pub missing: Vec<&'static str>,
}

/// Installs this executable's version, or upgrades to it.
pub fn install(
    host: &Host,
    kernel: &dyn Kernel,
    options: &InstallOptions,
    documents: &Documents,
) -> Result<Outcome, Explained> {
    let journal = begin_change(host, kernel, options.dry_run, |package| package.upgrade)?;
    let old = Record::read(host);
    if let Some(old) = old.as_ref().filter(|old| numbers(&old.version) > numbers(VERSION)) {
        return Err(InstallError::Newer { installed: old.version.clone() }.into());
    }
    let sources = options.source.as_deref().map_or_else(Sources::embedded, Sources::in_directory)?;
    let items = layout::items(Layout::Local, executable(options.executable.as_deref())?, &sources, documents);
    let foreign = plan::foreign_files(host, &items, old.as_ref());
    if !foreign.is_empty() {
        return Err(InstallError::Foreign { paths: foreign }.into());
    }
    // If the module cannot be built here, DKMS would fail, too. The next `mpu up` checks again.
    let config = Config::of(host).unwrap_or_default();
    let module = raise::ModuleOptions {
        source: options.source.clone(),
        modules: config.modules,
        ..raise::ModuleOptions::default()
    };
    let planned = module_plan::preflight(host, &module, Driver::loaded(host).as_ref());
    let uses_notify = module_plan::unfit(host, &planned).is_some()
        && (config.engine == EngineSetting::Notify
            || config.engine == EngineSetting::Auto && notify::raise::unfit(host).is_none());
    let tools = HostTools::of(host);
    let builds_with_dkms = !sources.files.is_empty() && !uses_notify && config.modules != Modules::Prebuilt;
    let steps = plan::install(host, items, tools.dkms && builds_with_dkms, old.as_ref(), !options.no_start);
    let missing = [(!tools.dkms, NO_DKMS), (!tools.systemd, NO_SYSTEMD), (uses_notify, NOT_BUILT)];
    let before = old.map(|old| old.version);
    let changes = |step: &Step| match &step.action {
        Action::Write(_) | Action::Remove(_) => true,
        Action::Run(command) => command.first().is_some_and(|program| program == "dkms"),
        _ => false,
    };
    // Any user may do a dry run, but only root can read an engine's state.
    let is_up = !options.dry_run
        && (state::read(host)?.is_some_and(|state| state.version == VERSION)
            || client::state(host)?.is_some_and(|state| state.version == VERSION && state.state == Phase::Armed));
    let result = match before.as_deref() {
        _ if options.dry_run => InstallResult::Planned,
        Some(VERSION) if (is_up || options.no_start) && !steps.iter().any(changes) => InstallResult::Unchanged,
        None | Some(VERSION) => InstallResult::Installed,
        Some(_) => InstallResult::Upgraded,
    };
    let views = steps.iter().filter_map(Step::view).collect();
    let missing = missing.into_iter().filter_map(|(is_missing, sentence)| is_missing.then_some(sentence)).collect();
    let outcome = Outcome { result, version: VERSION.to_string(), before, steps: views, missing };
    match journal {
        Some(journal) if result != InstallResult::Unchanged => {
            carry_out(host, kernel, &steps, options.source.as_deref(), journal, || ())?;
        }
        _ => {}
    }
    Ok(outcome)
}

/// Removes the installation, and all files that MPU made since.
pub fn uninstall(host: &Host, kernel: &dyn Kernel, dry_run: bool, purge: bool) -> Result<Outcome, Explained> {
    let journal = begin_change(host, kernel, dry_run, |package| package.remove)?;
    let record = Record::read(host).ok_or(InstallError::NotInstalled)?;
    let steps = plan::uninstall(host, &record, purge);
    if let Some(journal) = journal {
        carry_out(host, kernel, &steps, None, journal, || {
            // Built modules and records are useless without MPU.
            remove_siblings(&host.at(journal::DIR));
            // A supervisor with containers continues from memory, and removes its own files.
            if matches!(client::state(host), Ok(None)) {
                clear_run(host);
            }
        })?;
    }
    let (version, steps) = (record.version, steps.iter().filter_map(Step::view).collect());
    let result = if dry_run { InstallResult::Planned } else { InstallResult::Uninstalled };
    Ok(Outcome { result, before: Some(version.clone()), version, steps, missing: Vec::new() })
}

/// Puts the files of a package below `root`, for the package's build.
pub fn stage(root: &Path, documents: &Documents) -> Result<(), Explained> {
    for item in layout::items(Layout::Package, executable(None)?, &Sources::embedded()?, documents) {
        let at = Host::below(root).at(&item.path);
        let folder = if item.bytes.is_some() { at.parent().unwrap_or(root) } else { &at };
        let written = fs::create_dir_all(folder).and_then(|()| match &item.bytes {
            None => Ok(()),
            Some(bytes) => replace_file_atomically(&at, bytes, Mode::Of(item.mode)).map(drop),
        });
        written.map_err(|source| InstallError::File { path: at, source })?;
    }
    Ok(())
}

fn executable(path: Option<&Path>) -> Result<Vec<u8>, InstallError> {
    let read = path.map_or_else(|| fs::read("/proc/self/exe"), fs::read);
    read.map_err(|source| InstallError::Executable { source })
}

/// Checks the rights, and begins a change. A dry run has no journal, and does not wait for another change.
fn begin_change<'a>(
    host: &'a Host,
    kernel: &dyn Kernel,
    dry_run: bool,
    instead: impl FnOnce(Package) -> String,
) -> Result<Option<Journal<'a>>, Explained> {
    if !dry_run && !host.has_capability(CAP_SYS_MODULE) {
        return Err(InstallError::NotRoot.into());
    }
    if let Some(package) = package(host) {
        return Err(InstallError::Packaged { manager: package.manager, command: instead(package) }.into());
    }
    if !dry_run && !kernel.is_for(host) {
        return Err(InstallError::OtherRoot { root: host.at("/") }.into());
    }
    if dry_run { Ok(None) } else { Ok(Some(Journal::begin(host)?)) }
}

/// Carries out a plan completely or not at all, then runs `last`, which cannot be undone.
fn carry_out(
    host: &Host,
    kernel: &dyn Kernel,
    steps: &[Step],
    source: Option<&Path>,
    mut journal: Journal<'_>,
    last: impl FnOnce(),
) -> Result<(), Explained> {
    for step in steps {
        // Another process may have started or stopped an engine since the plan was made.
        let is_undone = match &step.action {
            Action::Raise => !plan::engine_is_up(host),
            Action::Lower => plan::engine_is_up(host),
            _ => true,
        };
        let undo = step.undo.as_ref().filter(|_| is_undone).map_or(Ok(()), |undo| journal.record_undo_command(undo));
        if let Err(error) =
            undo.map_err(Explained::from).and_then(|()| perform(host, kernel, &step.action, source, &mut journal))
        {
            let what = step.view().map_or(String::new(), |view| view.what);
            let (reason, fix) = (chain(&error), error.fix());
            return Err(InstallError::RolledBack { what, reason, failures: journal.roll_back(), fix }.into());
        }
    }
    Ok(journal.commit(last)?)
}

fn perform(
    host: &Host,
    kernel: &dyn Kernel,
    action: &Action,
    source: Option<&Path>,
    journal: &mut Journal<'_>,
) -> Result<(), Explained> {
    match action {
        Action::Write(item) => journal.write(&item.path, item.mode, item.bytes.as_deref())?,
        Action::Remove(path) => journal.remove(path)?,
        Action::Keep(_) | Action::Nothing => {}
        Action::Run(command) => {
            let _progress = Progress::of(command.join(" "));
            journal::run(host, command)?;
        }
        Action::Raise => {
            let source = source.map(Path::to_path_buf);
            let module = raise::ModuleOptions { replace: true, source, ..raise::ModuleOptions::default() };
            up::up(
                host,
                kernel,
                &up::UpOptions { module, probe: Some(probe::call_driver), ..up::UpOptions::default() },
            )?;
        }
        Action::Lower => drop(down::down(host, kernel, Duration::from_secs(30))?),
        Action::Verify => match state::read(host)? {
            Some(state) if state.phase.is_placed() || state.phase == Phase::Waiting => {}
            _ if client::state(host)?.is_some_and(|state| state.state == Phase::Armed) => {}
            state => {
                let why = state.map_or("the engine is not up".into(), |state| format!("{:?}", state.phase));
                return Err(InstallError::Failed { command: "mpu status".into(), why }.into());
            }
        },
    }
    Ok(())
}

/// Clears /run/mpu, as the packages' scripts do (`packaging/scripts/mpu.sh`). Agents and NRI plugins in pods continue without
/// this installation, so their files stay, and the record of an engine that an agent raised.
fn clear_run(host: &Host) {
    // A folder is removed only if it is empty.
    for folder in ["/run/mpu/agents", "/run/mpu/nri"] {
        let _ = fs::remove_dir(host.at(folder));
    }
    if !host.at("/run/mpu/agents").exists() {
        remove_siblings(&host.at("/run/mpu/nri"));
        let _ = fs::remove_dir(host.at("/run/mpu"));
    }
}

fn remove_siblings(retained: &Path) {
    for entry in retained.parent().map(fs::read_dir).into_iter().flatten().flatten().flatten() {
        let path = entry.path();
        if path != retained && fs::remove_dir_all(&path).is_err() {
            let _ = fs::remove_file(&path);
        }
    }
}

/// MPU as a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Who manages it: dpkg or rpm.
    pub manager: &'static str,
    /// The command that upgrades it.
    pub upgrade: String,
    /// The command that removes it.
    pub remove: String,
}

/// The package that MPU was installed from, if any.
pub fn package(host: &Host) -> Option<Package> {
    let exists = |sign: &str| host.text(sign).is_some();
    // Until a purge, dpkg keeps a removed package's file list, but not its checksums. rpm's database is not read: only
    // an RPM puts the licence there.
    let (manager, name) = match exists("/var/lib/dpkg/info/mpu.md5sums") {
        true => ("dpkg", "mpu"),
        false if !exists("/usr/share/licenses/mpu/LICENSE") => return None,
        false if has_dkms_sources(host) => ("rpm", "mpu"),
        false => ("rpm", "mpu-nodkms"),
    };
    let by_hand = || (format!("{manager} -i FILE"), format!("{manager} --remove {name}"));
    let (upgrade, remove) = host.package_hints(name).unwrap_or_else(by_hand);
    Some(Package { manager, upgrade, remove })
}

fn has_dkms_sources(host: &Host) -> bool {
    let mut ours = host.names("/usr/src").into_iter().filter(|name| name.starts_with("mpu-"));
    ours.any(|name| host.at("/usr/src").join(name).join("dkms.conf").is_file())
}
