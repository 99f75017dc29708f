//! Does what a plan says, as one change: whatever fails, the host is as it was.
//!
//! Owns the order of journal, steps and record, and what a person hears of it.

use super::journal::{self, Journal};
use super::layout::{self, Documents, Item, Layout};
use super::plan::{self, Kind, Means, Step, StepView, Wishes};
use super::{package, InstallError, Package, Record, RECORD};
use crate::probe;
use crate::versions::is_newer;
use mpu_engine::module::load::Kernel;
use mpu_engine::module::sources::Sources;
use mpu_engine::module::state::{self, Phase};
use mpu_engine::module::{plan as module_plan, raise};
use mpu_engine::{down, up};
use mpu_host::config::{Asked, Modules};
use mpu_host::driver::Driver;
use mpu_host::exit::Exit;
use mpu_host::explain::{chain, Explain};
use mpu_host::host::{Host, CAP_SYS_MODULE};
use mpu_host::progress::Progress;
use mpu_notify::{self as notify, client};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Said where the module cannot be had.
const NOT_BUILT: &str = "the module is not built by DKMS, because this host cannot use it now: `mpu doctor` says why; the notify engine is used";

/// Options of `mpu install` and `mpu upgrade`.
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

    /// An older version must be there.
    #[arg(skip)]
    pub upgrade: bool,

    /// The executable to install in place of this one.
    #[arg(skip)]
    pub executable: Option<PathBuf>,
}

/// What was done.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The steps, in order.
    pub steps: Vec<StepView>,
    /// The version that was there before.
    pub before: Option<String>,
    /// What will not happen by itself.
    pub missing: Vec<&'static str>,
    /// Whether nothing had to be done.
    pub nothing: bool,
}

/// Installs this executable's version, over an older one if that is there.
pub fn install(
    host: &Host,
    kernel: &dyn Kernel,
    options: &InstallOptions,
    documents: &Documents,
) -> Result<Outcome, InstallError> {
    needs_root(host, options.dry_run)?;
    if let Some(Package { manager, upgrade: command, .. }) = package(host) {
        return Err(InstallError::Packaged { manager, command });
    }
    may_change(host, kernel, options.dry_run)?;
    let journal = begin(host, options.dry_run)?;
    let old = Record::read(host);
    match &old {
        None if options.upgrade => return Err(InstallError::NotInstalled),
        Some(old) if is_newer(&old.version, layout::VERSION) => {
            let installed = old.version.clone();
            return Err(InstallError::Newer { installed, this: layout::VERSION });
        }
        _ => {}
    }
    let sources = match &options.source {
        Some(dir) => Sources::in_directory(dir)?,
        None => Sources::carried()?,
    };
    let executable = options.executable.clone().map_or_else(std::env::current_exe, Ok).and_then(std::fs::read);
    let executable = executable.map_err(|source| InstallError::Executable { source })?;
    let items = layout::items(Layout::Local, executable, &sources, documents);
    let means = Means::of(host);
    // Whatever keeps the module from being built would keep DKMS from building it; the next `mpu up` finds out anew.
    let config = mpu_host::config::Config::of(host).unwrap_or_default();
    let modules = config.modules;
    let module = raise::ModuleOptions { source: options.source.clone(), modules, ..raise::ModuleOptions::default() };
    let planned = module_plan::preflight(host, &module, Driver::loaded(host).as_ref());
    let fits = module_plan::unfit(host, &planned).is_none();
    let by_notify =
        config.engine == Asked::Notify || config.engine == Asked::Auto && !fits && notify::raise::unfit(host).is_none();
    let wishes = Wishes { no_start: options.no_start, no_module: by_notify && !fits || modules == Modules::Prebuilt };
    let steps = plan::install(host, items.clone(), &sources, means, old.as_ref(), wishes);
    let outcome = Outcome {
        steps: Step::views(&steps),
        before: old.as_ref().map(|old| old.version.clone()),
        missing: means.missing().into_iter().chain(by_notify.then_some(NOT_BUILT).filter(|_| !fits)).collect(),
        nothing: false,
    };
    let Some(journal) = journal else { return Ok(outcome) };
    let only_looks = |step: &Step| match step {
        Step::Write(_) | Step::Folder(_) | Step::Remove(_) | Step::RemoveDirectory(_) => false,
        // It came, or can build only now: the first time was without it.
        Step::Run(command, _) => command.first().is_none_or(|program| program != "dkms"),
        _ => true,
    };
    let is_up = state::read(host)?.is_some_and(|state| state.version == layout::VERSION)
        || client::state(host)?.is_some_and(|state| state.version == layout::VERSION && state.state == Phase::Armed);
    if old.is_some() && steps.iter().all(only_looks) && (is_up || options.no_start) {
        return Ok(Outcome { nothing: true, ..outcome });
    }
    let directories = directories_to_make(host, &items, old.as_ref());
    let record =
        plan::record(&items, Layout::Local, means, !sources.files.is_empty() && !wishes.no_module, directories);
    let recorded = |journal: &mut Journal<'_>| {
        let text = serde_json::to_vec_pretty(&record).map_err(std::io::Error::from);
        let text = text.map_err(|source| InstallError::Write { path: RECORD.into(), source })?;
        journal.write(Path::new(RECORD), 0o644, &text)
    };
    perform(host, kernel, &steps, options.source.as_deref(), journal, recorded, || ())?;
    Ok(outcome)
}

/// Puts the files of a package below `root`: what the package's build takes.
pub fn stage(root: &Path, documents: &Documents) -> Result<(), InstallError> {
    let host = Host::below(root);
    let executable = std::env::current_exe().and_then(std::fs::read);
    let executable = executable.map_err(|source| InstallError::Executable { source })?;
    for folder in layout::FOLDERS {
        let at = host.at(folder);
        std::fs::create_dir_all(&at).map_err(|source| InstallError::Write { path: at, source })?;
    }
    for item in layout::items(Layout::Package, executable, &Sources::carried()?, documents) {
        let at = host.at(&item.path);
        let written = at.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| {
            std::fs::write(&at, &item.bytes)?;
            std::fs::set_permissions(&at, std::fs::Permissions::from_mode(item.mode))
        });
        written.map_err(|source| InstallError::Write { path: at, source })?;
    }
    Ok(())
}

/// Removes what `mpu install` installed, and everything that MPU made since.
pub fn uninstall(host: &Host, kernel: &dyn Kernel, dry_run: bool, purge: bool) -> Result<Outcome, InstallError> {
    needs_root(host, dry_run)?;
    if let Some(Package { manager, remove: command, .. }) = package(host) {
        return Err(InstallError::Packaged { manager, command });
    }
    may_change(host, kernel, dry_run)?;
    let journal = begin(host, dry_run)?;
    let record = Record::read(host).ok_or(InstallError::NotInstalled)?;
    let mut steps = plan::uninstall(host, &record, Means::of(host), purge);
    steps.push(Step::Remove(RECORD.into()));
    let outcome = Outcome {
        steps: Step::views(&steps),
        before: Some(record.version.clone()),
        missing: Vec::new(),
        nothing: false,
    };
    let Some(journal) = journal else { return Ok(outcome) };
    perform(
        host,
        kernel,
        &steps,
        None,
        journal,
        |_| Ok(()),
        || {
            // What is left are built modules and records of the day: made by MPU, and of no use without it.
            journal::clear_beside(host);
            // A supervisor that containers still need goes on from memory; it takes its own files with it.
            if matches!(client::state(host), Ok(None)) {
                clear_the_day(host);
            }
        },
    )?;
    Ok(outcome)
}

/// Takes away the records of the day, as the packages' scripts do (`packaging/scripts/mpu.sh`): agents and NRI plugins in pods live on
/// without this installation, and keep their names there. What an agent has brought up is recorded beside its name.
fn clear_the_day(host: &Host) {
    // A folder goes only if nobody has a name in it.
    for folder in ["/run/mpu/agents", "/run/mpu/nri"] {
        let _ = std::fs::remove_dir(host.at(folder));
    }
    if host.at("/run/mpu/agents").exists() {
        return;
    }
    for entry in std::fs::read_dir(host.at("/run/mpu")).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name() != "nri" && std::fs::remove_dir_all(&path).is_err() {
            let _ = std::fs::remove_file(&path);
        }
    }
    let _ = std::fs::remove_dir(host.at("/run/mpu"));
}

/// Whoever lacks rights hears of that before anything else.
fn needs_root(host: &Host, dry_run: bool) -> Result<(), InstallError> {
    match dry_run || host.has_capability(CAP_SYS_MODULE) {
        true => Ok(()),
        false => Err(InstallError::NotRoot),
    }
}

fn may_change(host: &Host, kernel: &dyn Kernel, dry_run: bool) -> Result<(), InstallError> {
    if dry_run {
        return Ok(());
    }
    if !kernel.is_for(host) {
        return Err(InstallError::OtherRoot { root: host.at("/") });
    }
    Ok(())
}

/// Before anything is looked at: what another process does now is not planned upon. A dry run changes nothing, and waits for nobody.
fn begin(host: &Host, dry_run: bool) -> Result<Option<Journal<'_>>, InstallError> {
    match dry_run {
        true => Ok(None),
        false => Journal::begin(host).map(Some),
    }
}

/// Directories that the files need and that are not there: they go with them again.
fn directories_to_make(host: &Host, items: &[Item], old: Option<&Record>) -> Vec<PathBuf> {
    let mut made: BTreeSet<PathBuf> =
        old.map(|old| old.directories.iter().filter(|d| host.at(d).exists()).cloned().collect()).unwrap_or_default();
    let above = items.iter().flat_map(|item| item.path.ancestors().skip(1));
    let needed = above.chain(layout::FOLDERS.into_iter().flat_map(|folder| Path::new(folder).ancestors()));
    made.extend(needed.filter(|folder| !host.at(folder).exists()).map(Path::to_path_buf));
    made.into_iter().collect()
}

/// Does the steps and what comes `last`, all or nothing; then what cannot be undone, before anybody else begins.
fn perform(
    host: &Host,
    kernel: &dyn Kernel,
    steps: &[Step],
    source: Option<&Path>,
    mut journal: Journal<'_>,
    last: impl FnOnce(&mut Journal<'_>) -> Result<(), InstallError>,
    after: impl FnOnce(),
) -> Result<(), InstallError> {
    for step in steps {
        if let Err(error) = one(host, kernel, step, source, &mut journal) {
            return Err(undone(journal, &step.view(), &error));
        }
    }
    if let Err(error) = last(&mut journal) {
        let view = StepView { kind: Kind::Write, what: RECORD.to_string(), note: String::new() };
        return Err(undone(journal, &view, &error));
    }
    // Files of a removal are gone by now; directories can go only when nothing can fail any more.
    journal.commit(|| {
        for step in steps {
            if let Step::RemoveDirectory(path) = step {
                let _ = std::fs::remove_dir(host.at(path));
            }
        }
        after();
    })
}

fn undone(journal: Journal<'_>, step: &StepView, error: &InstallError) -> InstallError {
    let left = journal.roll_back();
    InstallError::RolledBack { step: format!("`{}`", step.what), reason: chain(error), left, fix: error.fix() }
}

fn one(
    host: &Host,
    kernel: &dyn Kernel,
    step: &Step,
    source: Option<&Path>,
    journal: &mut Journal<'_>,
) -> Result<(), InstallError> {
    match step {
        Step::Write(item) => Ok(journal.write(&item.path, item.mode, &item.bytes)?),
        Step::Folder(path) => Ok(journal.folder(path)?),
        Step::AtLast(command) => Ok(journal.will_undo(command.clone())?),
        Step::Remove(path) => Ok(journal.remove(path)?),
        Step::Keep(_) | Step::RemoveDirectory(_) => Ok(()),
        Step::Run(command, undo) => {
            let _progress = Progress::of(command.join(" "));
            Ok(journal.run(command, undo.clone())?)
        }
        Step::Raise => {
            if !plan::engine_is_up(host) {
                journal.will_undo(vec![own_name(), "down".into()])?;
            }
            let module = raise::ModuleOptions {
                replace: true,
                source: source.map(Path::to_path_buf),
                ..raise::ModuleOptions::default()
            };
            up::up(host, kernel, &up::UpOptions { module, ask: Some(probe::ask), ..up::UpOptions::default() })?;
            Ok(())
        }
        Step::Lower(program) => {
            if plan::engine_is_up(host) {
                journal.will_undo(vec![program.display().to_string(), "up".into()])?;
            }
            down::down(host, kernel, Duration::from_secs(30))?;
            Ok(())
        }
        Step::Verify => match state::read(host)? {
            Some(state) if state.phase.is_placed() || state.phase == Phase::Waiting => Ok(()),
            _ if client::state(host)?.is_some_and(|state| state.state == Phase::Armed) => Ok(()),
            state => Err(InstallError::Failed {
                command: "mpu status".into(),
                status: Exit::Failed.name().into(),
                said: state.map_or("the engine is not up".into(), |state| format!("{:?}", state.phase)),
            }),
        },
    }
}

/// This executable, for undoing what it did when a later start finds that it was killed.
fn own_name() -> String {
    std::env::current_exe().map_or_else(|_| "mpu".to_string(), |path| path.display().to_string())
}

#[cfg(test)]
mod tests;
