//! Raises the module engine: checks, builds if needed, loads, and sees that it is at work.
//!
//! Owns the order of things: everything that can fail without a trace comes before the first change. Each step is its
//! own module's.

use super::build::{BuildError, Store};
use super::checks;
use super::error::ModuleError;
use super::foreign;
use super::installed;
use super::load::{self, Kernel, Parameters};
use super::load_error::LoadError;
use super::packed;
use super::prebuilt::{self, PassedOver};
use super::record::Record;
use super::sources::{self, Built, SourceError, Sources};
use super::state::{self, Instance, Phase, State};
use super::swap::{swap, Replaced};
use super::which::{self, Origin, ReadyMade};
use crate::signing::{self, Signer};
use clap::ValueHint;
use mpu_host::config::{Drivers, Modules, Redirect};
use mpu_host::driver::Driver;
use mpu_host::exit::Exit;
use mpu_host::explain::{causes, Explain};
use mpu_host::host::{Host, CAP_SYS_MODULE};
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the caller wants of it: options of `mpu up`, and what the configuration says.
#[derive(Debug, Clone, Default, clap::Args)]
#[group(skip)]
pub struct ModuleOptions {
    /// Load this module, which was built and perhaps signed before, instead of building one
    #[arg(long, value_name = "FILE.ko", value_hint = ValueHint::FilePath, conflicts_with_all = ["source", "build_only"])]
    pub module: Option<PathBuf>,

    /// Build from the sources in this directory instead of those that mpu carries
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub source: Option<PathBuf>,

    /// Build the module and print its path, without loading it
    #[arg(long)]
    pub build_only: bool,

    /// Let this version take over from another one that is up, without a gap
    #[arg(long)]
    pub replace: bool,

    /// With which releases of the driver.
    #[arg(skip)]
    pub drivers: Drivers,

    /// Which module files are taken.
    #[arg(skip)]
    pub modules: Modules,

    /// How it redirects.
    #[arg(skip)]
    pub redirect: Redirect,

    /// Rules for the module, as `config::rules::compile` makes them.
    #[arg(skip)]
    pub policy: String,
}

/// What became of it.
#[derive(Debug)]
pub enum Raised {
    /// The module was loaded.
    Loaded {
        /// What it says.
        state: State,
        /// Its file.
        module: PathBuf,
        /// Where that comes from.
        origin: Origin,
        /// Modules that were there, and could not be used.
        passed_over: Vec<PassedOver>,
        /// How long building it took, if it was built now.
        built_in: Option<Duration>,
        /// Whom it took over from.
        replaced: Option<Replaced>,
    },
    /// It was up before.
    Already {
        /// What it says.
        state: State,
    },
    /// It was built and nothing more.
    Built {
        /// Its file.
        module: PathBuf,
        /// How long that took, if it was built now.
        built_in: Option<Duration>,
    },
}

/// A module that redirects nothing has nobody inside.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(5);

/// Raises it.
pub fn raise(
    host: &Host,
    kernel: &dyn Kernel,
    options: &ModuleOptions,
    driver: Option<&Driver>,
) -> Result<Raised, ModuleError> {
    if options.build_only {
        let release = checks::kernel(host)?;
        let sources = sources_of(options)?;
        let tools = checks::toolchain(host, &release)?;
        let ready = Store::open(host, &tools.release)?.module(&sources, &tools)?;
        return Ok(Raised::Built { module: ready.path, built_in: ready.took });
    }
    let found = state::read(host)?;
    if found.as_ref().is_some_and(|state| state.phase == Phase::Stuck) {
        return Err(LoadError::Stuck.into());
    }
    let leftover = found.as_ref().is_some_and(|state| is_of_no_use(state, driver));
    let mut replaces = None;
    if let Some(state) = found.filter(|_| !leftover) {
        if !options.replace || is_in_place(&state) {
            return already(state);
        }
        replaces = Some(state);
    }
    foreign::names_are_free(host)?;
    if !host.has_capability(CAP_SYS_MODULE) {
        return Err(checks::Unfit::NotRoot.into());
    }
    let release = checks::kernel(host)?;
    let ready = match (&options.module, &options.source) {
        (Some(path), _) => {
            let file = Some((Origin::Given, given(host, path, &release)?));
            ReadyMade { file, passed_over: Vec::new(), wants_signature: false }
        }
        (None, Some(_)) => ReadyMade { file: None, passed_over: Vec::new(), wants_signature: false },
        (None, None) => which::ready_made(host, &release, options.modules),
    };
    let ReadyMade { file, mut passed_over, wants_signature } = ready;
    let after = |error: ModuleError, passed_over: &[PassedOver]| error.after(passed_over.to_vec());
    may_load(host, &release, options, file.as_ref().map(|(_, built)| built), wants_signature)
        .map_err(|error| after(error, &passed_over))?;
    options.drivers.take(driver)?;
    let parameters = Parameters { policy: &options.policy, redirect: options.redirect };
    let site = Site { host, kernel, release: &release, leftover, replaces, parameters };
    let raised = match file {
        Some((Origin::Prebuilt, built)) => site.insert_prebuilt(&release, options, &built, &mut passed_over),
        Some((origin, built)) => site.insert(&built.path, None, origin),
        None => sources_of(options).and_then(|sources| site.build_and_insert(&release, &sources)),
    };
    match raised.map_err(|error| after(error, &passed_over)) {
        Ok((state, module, built_in, replaced, origin)) => {
            let state = load::attached(host, kernel, state, driver)?;
            Ok(Raised::Loaded { state, module, origin, passed_over, built_in, replaced })
        }
        // Another `mpu up` was quicker.
        Err(error) if errno_of_insert(&error) == Some(libc::EEXIST) => match state::read(host)? {
            Some(state) => already(state),
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

fn no_prebuilt(release: &str) -> ModuleError {
    checks::Unfit::NoPrebuilt { release: release.to_string(), hint: prebuilt::advice(release, false) }.into()
}

/// Whether this kernel lets us load what is at hand, or what will be built.
pub(super) fn may_load(
    host: &Host,
    release: &str,
    options: &ModuleOptions,
    file: Option<&Built>,
    wants_signature: bool,
) -> Result<(), ModuleError> {
    let only_prebuilt = options.modules == Modules::Prebuilt && options.source.is_none();
    if file.is_none() && only_prebuilt && !wants_signature {
        return Err(no_prebuilt(release));
    }
    let signed = match file {
        Some(built) => built.signed,
        None => !only_prebuilt && will_be_signed(host, release, options),
    };
    let path = file.map(|built| built.path.as_path());
    checks::permission(host, signed, || match wants_signature {
        true => prebuilt::advice(release, true),
        false => signing::advice(host, release, path),
    })?;
    Ok(())
}

/// A module that is up is fine, unless it is another version's.
fn already(state: State) -> Result<Raised, ModuleError> {
    let this = env!("CARGO_PKG_VERSION");
    if state.version == this {
        Ok(Raised::Already { state })
    } else {
        Err(LoadError::OtherVersion { loaded: state.version, this }.into())
    }
}

/// Whether what is up is this version, and under its own name.
pub(super) fn is_in_place(state: &State) -> bool {
    state.version == env!("CARGO_PKG_VERSION") && state.instance == Instance::Mpu
}

/// Whether a loaded module does nothing, and will not until it is loaded anew.
pub(super) fn is_of_no_use(state: &State, driver: Option<&Driver>) -> bool {
    matches!(state.phase, Phase::Refused | Phase::Retired) || state.phase == Phase::Waiting && driver.is_some()
}

/// Whether a loaded module translates, or will when its driver comes.
pub(crate) fn is_at_work(state: &State, driver: Option<&Driver>) -> bool {
    state.phase != Phase::Stuck && !is_of_no_use(state, driver)
}

/// Whether what is built here will carry a signature, or does so already.
fn will_be_signed(host: &Host, release: &str, options: &ModuleOptions) -> bool {
    let kept = || Store::kept(host, release, &sources_of(options).ok()?);
    Signer::find(host, release).is_some() || kept().is_some_and(|kept| signing::is_signed(&kept.path))
}

/// The module that somebody named, which may be packed.
fn given(host: &Host, path: &Path, release: &str) -> Result<Built, ModuleError> {
    // Opening waits for nobody, whatever stands there.
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let plain = opened.and_then(|file| match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a plain file")),
    });
    let file = plain.map_err(|source| SourceError::Module { path: path.to_path_buf(), source })?;
    let bytes = packed::contents(host, file, packed::packing(path).1);
    let bytes = bytes.map_err(|why| BuildError::Unpack { path: path.to_path_buf(), why })?;
    Ok(sources::look(&bytes, path, "mpu", release, std::env::consts::ARCH)?)
}

pub(super) fn sources_of(options: &ModuleOptions) -> Result<Sources, ModuleError> {
    Ok(match &options.source {
        Some(dir) => Sources::in_directory(dir)?,
        None => Sources::carried()?,
    })
}

/// The kernel's word about an insertion, if that is what failed.
fn errno_of_insert(error: &ModuleError) -> Option<i32> {
    match error.plain() {
        ModuleError::Load(LoadError::Insert { source, .. }) => source.raw_os_error(),
        _ => None,
    }
}

/// Where a module goes in.
struct Site<'a> {
    host: &'a Host,
    kernel: &'a dyn Kernel,
    /// The release of its kernel.
    release: &'a str,
    /// A module of no use is in its place.
    leftover: bool,
    /// The module that this one takes over from.
    replaces: Option<State>,
    parameters: Parameters<'a>,
}

type Inserted = (State, PathBuf, Option<Duration>, Option<Replaced>, Origin);

impl Site<'_> {
    fn build_and_insert(&self, release: &str, sources: &Sources) -> Result<Inserted, ModuleError> {
        let tools = match (checks::toolchain(self.host, release), Store::kept(self.host, release, sources)) {
            (Ok(tools), _) => tools,
            // It cannot be built here any more, but it was.
            (Err(_), Some(kept)) => return self.insert(&kept.path, None, Origin::Kept),
            (Err(unfit), None) => return Err(unfit.into()),
        };
        load::same_host(self.host, self.kernel)?;
        let store = Store::open(self.host, release)?;
        let ready = store.module(sources, &tools)?;
        let origin = if ready.took.is_some() { Origin::Built } else { Origin::Kept };
        match self.insert(&ready.path, ready.took, origin) {
            // A kept module can fall behind its kernel in ways that no key foresees. Once, the answer is a new one.
            Err(error) if ready.took.is_none() && does_not_fit(errno_of_insert(&error)) => {
                store.forget();
                let ready = store.module(sources, &tools)?;
                self.insert(&ready.path, ready.took, Origin::Built)
            }
            inserted => inserted,
        }
    }

    /// Whether the module that is to be replaced, if there is one, is still there.
    fn is_untouched(&self) -> bool {
        self.replaces.as_ref().is_none_or(|old| old.instance.is_loaded(self.host))
    }

    /// Loads what was built elsewhere. If the kernel refuses that file, the host's own module is next; where there can be none, and the
    /// kernel does not believe the signature, that is what a person must hear.
    fn insert_prebuilt(
        &self,
        release: &str,
        options: &ModuleOptions,
        built: &Built,
        passed_over: &mut Vec<PassedOver>,
    ) -> Result<Inserted, ModuleError> {
        let refused = match self.insert(&built.path, None, Origin::Prebuilt) {
            // Half-way through a change of versions there is no way back to begin another.
            Err(error) if is_refused_file(&error) && self.is_untouched() => error,
            other => return other,
        };
        let instead = match options.modules {
            Modules::Prebuilt => Err(no_prebuilt(release)),
            Modules::Any => match self.installed(release, passed_over) {
                Some(installed) => may_load(self.host, release, options, Some(&installed), false)
                    .and_then(|()| self.insert(&installed.path, None, Origin::Installed)),
                None => may_load(self.host, release, options, None, false)
                    .and_then(|()| self.build_and_insert(release, &sources_of(options)?)),
            },
        };
        match instead {
            Err(ModuleError::Unfit(_) | ModuleError::Source(_)) if refused.exit() == Exit::Refused => Err(refused),
            other => {
                let why = format!(
                    "is refused by the kernel: {}",
                    causes(&refused).last().map_or(String::new(), ToString::to_string)
                );
                passed_over.push(PassedOver { path: built.path.clone(), why });
                other
            }
        }
    }

    fn installed(&self, release: &str, passed_over: &mut Vec<PassedOver>) -> Option<Built> {
        let found = installed::find(self.host, release);
        passed_over.extend(found.passed_over);
        found.taken
    }

    fn insert(&self, path: &Path, built_in: Option<Duration>, origin: Origin) -> Result<Inserted, ModuleError> {
        load::same_host(self.host, self.kernel)?;
        let plain = match origin {
            Origin::Prebuilt => packed::plain(self.host, self.release, path, "prebuilt")?,
            Origin::Installed => packed::plain(self.host, self.release, path, "installed")?,
            Origin::Given => packed::plain(self.host, self.release, path, "given")?,
            Origin::Kept | Origin::Built => path.to_path_buf(),
        };
        let path = plain.as_path();
        if let Some(old) = &self.replaces {
            let swapped = swap(self.host, self.kernel, old, path, self.parameters);
            let (state, replaced) = swapped.inspect_err(|_| self.by_any_way(path, origin))?;
            return Ok((state, path.to_path_buf(), built_in, Some(replaced), origin));
        }
        for instance in Instance::ALL.into_iter().filter(|i| self.leftover && i.is_loaded(self.host)) {
            load::remove(self.host, self.kernel, instance, LEFTOVER_PATIENCE, "mpu up")?;
        }
        let state = load::insert(self.host, self.kernel, Instance::Mpu, path, self.parameters)?;
        Ok((state, path.to_path_buf(), built_in, None, origin))
    }
}

impl Site<'_> {
    /// After a change of versions that left nothing loaded: the way to redirect that the configuration asks for may be the only thing that
    /// is not to be had here. An instance that is up cannot hand over to one that was told to take another way, so it had to go first. A
    /// host that translates by the other way is better than one that does not; the reason is said in any case.
    fn by_any_way(&self, path: &Path, origin: Origin) {
        if self.parameters.redirect == Redirect::Auto || state::is_loaded(self.host) {
            return;
        }
        let parameters = Parameters { redirect: Redirect::Auto, ..self.parameters };
        if load::insert(self.host, self.kernel, Instance::Mpu, path, parameters).is_ok() {
            // Who raises it now is who raised the one before: a later agent asks.
            let by_agent = Record::read(self.host).is_some_and(|record| record.by_agent);
            let record = Record::now(path, Some(origin), env!("CARGO_PKG_VERSION"));
            Record { by_agent, ..record }.write(self.host);
        }
    }
}

/// Whether the kernel had something against the file itself: its format, or its signature.
fn is_refused_file(error: &ModuleError) -> bool {
    does_not_fit(errno_of_insert(error)) || errno_of_insert(error).is_some() && error.exit() == Exit::Refused
}

fn does_not_fit(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::ENOEXEC | libc::EINVAL | libc::ENOENT))
}

#[cfg(any(test, feature = "fake"))]
pub mod fake;

#[cfg(test)]
mod tests;
