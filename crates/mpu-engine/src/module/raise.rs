//! Carries out a plan: builds if needed, loads, and checks that the module works.

use super::build::Store;
use super::checks::Toolchain;
use super::compression;
use super::error::ModuleError;
use super::load::{self, Kernel, Parameters};
use super::load_error::LoadError;
pub use super::plan::ModuleOptions;
use super::plan::{self, Load, ModuleFile, Origin, Plan, is_working};
use super::record::Record;
use super::sources::{self, Built, PassedOver, Sources};
use super::state::{self, Instance, State};
use super::swap::{Replaced, swap};
use mpu_host::config::Redirect;
use mpu_host::driver::Driver;
use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, causes};
use mpu_host::host::Host;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The result of raising an engine.
// Comments on the variants that rustdoc sees would go into the schema of reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum How {
    Loaded,
    // The notify engine's supervisor was started.
    Started,
    // A retired engine accepts containers again.
    Resumed,
    // This version replaced another.
    Replaced,
    #[default]
    AlreadyUp,
    // The module was built, not loaded.
    Built,
}

/// The result for the module.
#[derive(Debug, Default)]
pub struct Raised {
    pub how: How,
    /// Its state; none if it was only built.
    pub state: Option<State>,
    pub module: Option<PathBuf>,
    pub origin: Option<Origin>,
    /// Module files that could not be used.
    pub passed_over: Vec<PassedOver>,
    /// The build's duration, if it was built now.
    pub built_in: Option<Duration>,
    pub replaced: Option<Replaced>,
}

/// A module without redirects has no caller inside.
const LEFTOVER_UNLOAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Carries out a plan.
pub fn raise(
    host: &Host,
    kernel: &dyn Kernel,
    plan: Plan,
    options: &ModuleOptions,
    driver: Option<&Driver>,
) -> Result<Raised, ModuleError> {
    let load = match plan {
        Plan::Build(sources, tools) => {
            let ready = Store::open(host, &tools.release)?.module(&sources, &tools)?;
            let (module, built_in) = (Some(ready.path), ready.took);
            return Ok(Raised { how: How::Built, module, built_in, ..Raised::default() });
        }
        Plan::Keep(state) => return Ok(raised_from_record(host, state)),
        Plan::Load(load) => *load,
    };
    let Load { release, leftover, replaces, file, mut passed_over } = load;
    let parameters = Parameters { policy: &options.policy, redirect: options.redirect };
    let site = LoadContext { host, kernel, release: &release, leftover, replaces, parameters };
    let raised = match file {
        ModuleFile::Ready(Origin::Prebuilt, built) => site.insert_prebuilt(options, &built, &mut passed_over),
        file => site.insert_file(file),
    };
    match raised {
        Ok(raised) => match raised.state.map(|state| load::check_attached(host, kernel, state, driver)).transpose() {
            Ok(state) => Ok(Raised { state, passed_over, ..raised }),
            Err(error) => Err(error.after(passed_over)),
        },
        // Another `mpu up` was faster.
        Err(error) if insert_errno(&error) == Some(libc::EEXIST) => match state::read(host)? {
            Some(state) => plan::accept_same_version(state).map(|state| raised_from_record(host, state)),
            None => Err(error.after(passed_over)),
        },
        Err(error) => Err(error.after(passed_over)),
    }
}

/// The module that was up before, with its record.
fn raised_from_record(host: &Host, state: State) -> Raised {
    let (module, origin) = Record::read(host).map(|record| (record.module, record.origin)).unzip();
    Raised { how: How::AlreadyUp, state: Some(state), module, origin: origin.flatten(), ..Raised::default() }
}

/// The errno of a failed insertion.
fn insert_errno(error: &ModuleError) -> Option<i32> {
    match error.innermost() {
        ModuleError::Load(LoadError::Insert { source, .. }) => source.raw_os_error(),
        _ => None,
    }
}

/// The common parameters of load attempts: see [`Load`].
struct LoadContext<'a> {
    host: &'a Host,
    kernel: &'a dyn Kernel,
    release: &'a str,
    leftover: bool,
    replaces: Option<State>,
    parameters: Parameters<'a>,
}

impl LoadContext<'_> {
    fn insert_file(&self, file: ModuleFile) -> Result<Raised, ModuleError> {
        match file {
            ModuleFile::Ready(origin, built) => self.insert(&built.path, None, origin),
            ModuleFile::Build(sources, tools) => self.build_and_insert(&sources, &tools),
        }
    }

    fn build_and_insert(&self, sources: &Sources, tools: &Toolchain) -> Result<Raised, ModuleError> {
        load::check_is_running_kernel(self.host, self.kernel)?;
        let store = Store::open(self.host, self.release)?;
        let ready = store.module(sources, tools)?;
        let origin = if ready.took.is_some() { Origin::Built } else { Origin::Kept };
        match self.insert(&ready.path, ready.took, origin) {
            // The key does not cover every reason why a stored module no longer fits its kernel. Build it anew, once.
            Err(error) if ready.took.is_none() && is_file_errno(insert_errno(&error)) => {
                store.invalidate();
                let ready = store.module(sources, tools)?;
                self.insert(&ready.path, ready.took, Origin::Built)
            }
            inserted => inserted,
        }
    }

    /// Whether the module to be replaced is still there, if there is one.
    fn is_untouched(&self) -> bool {
        self.replaces.as_ref().is_none_or(|old| old.instance.is_loaded(self.host))
    }

    /// Loads a prebuilt module. If the kernel refuses the file, the host's own module is next. If there can be none, and the kernel does not
    /// trust the signature, that is the error to report.
    fn insert_prebuilt(
        &self,
        options: &ModuleOptions,
        built: &Built,
        passed_over: &mut Vec<PassedOver>,
    ) -> Result<Raised, ModuleError> {
        let refused = match self.insert(&built.path, None, Origin::Prebuilt) {
            // Once a replacement has begun, no other file is tried.
            Err(error) if is_refused_file(&error) && self.is_untouched() => error,
            other => return other,
        };
        let ready = plan::installed_module(self.host, self.release, options.modules);
        passed_over.extend(ready.passed_over.clone());
        let instead = plan::check_may_load(self.host, self.release, options, &ready)
            .and_then(|()| plan::module_file(self.host, self.release, options, ready))
            .and_then(|file| self.insert_file(file));
        match instead {
            Err(ModuleError::Unfit(_) | ModuleError::Source(_)) if refused.exit() == Exit::Refused => Err(refused),
            other => {
                let cause = causes(&refused).last().map_or(String::new(), ToString::to_string);
                passed_over
                    .push(PassedOver { path: built.path.clone(), why: format!("is refused by the kernel: {cause}") });
                other
            }
        }
    }

    fn insert(&self, path: &Path, built_in: Option<Duration>, origin: Origin) -> Result<Raised, ModuleError> {
        load::check_is_running_kernel(self.host, self.kernel)?;
        let plain = |folder| compression::uncompressed_path(self.host, self.release, path, folder);
        let path = match origin {
            Origin::Prebuilt => plain("prebuilt")?,
            Origin::Installed => plain("installed")?,
            Origin::Given => plain("given")?,
            Origin::Kept | Origin::Built => path.to_path_buf(),
        };
        let (how, state, replaced) = match &self.replaces {
            Some(old) => {
                let swapped = swap(self.host, self.kernel, old, &path, self.parameters);
                let (state, replaced) = swapped.inspect_err(|_| self.load_with_any_redirect(&path, origin))?;
                (How::Replaced, state, Some(replaced))
            }
            None => {
                for instance in Instance::ALL.into_iter().filter(|i| self.leftover && i.is_loaded(self.host)) {
                    load::remove(self.host, self.kernel, instance, LEFTOVER_UNLOAD_TIMEOUT, "mpu up")?;
                }
                let state = load::insert(self.host, self.kernel, Instance::Mpu, &path, self.parameters)?;
                (How::Loaded, state, None)
            }
        };
        let (state, module, origin) = (Some(state), Some(path), Some(origin));
        Ok(Raised { how, state, module, origin, passed_over: Vec::new(), built_in, replaced })
    }

    /// After a failed replacement that left nothing loaded, loads the module with any redirect method. The configured method may be the
    /// only obstacle: an instance cannot hand over to one with another method, so the old one was unloaded first. Translating by the
    /// other method is better than not translating. The failure is reported in any case.
    fn load_with_any_redirect(&self, path: &Path, origin: Origin) {
        if self.parameters.redirect == Redirect::Auto || state::is_loaded(self.host) {
            return;
        }
        let parameters = Parameters { redirect: Redirect::Auto, ..self.parameters };
        if load::insert(self.host, self.kernel, Instance::Mpu, path, parameters).is_ok() {
            // Keep `by_agent`: a later agent reads it.
            let by_agent = Record::read(self.host).is_some_and(|record| record.by_agent);
            let record = Record::now(path, Some(origin), env!("CARGO_PKG_VERSION"));
            Record { by_agent, ..record }.write(self.host);
        }
    }
}

/// The working module that is to be replaced.
#[derive(Debug)]
pub struct PreviousModule {
    version: String,
    record: Option<Record>,
    policy: String,
}

impl PreviousModule {
    /// Reads it; none if nothing is to be replaced.
    pub fn of(host: &Host, plan: &Plan) -> Option<PreviousModule> {
        let Plan::Load(load) = plan else { return None };
        let version = load.replaces.as_ref()?.version.clone();
        let policy = state::read_policy(host).ok().flatten().unwrap_or_default().join("\n");
        Some(PreviousModule { version, record: Record::read(host), policy })
    }

    /// Restores it if nothing is up. Returns the version that is up then.
    pub fn restore(&self, host: &Host, kernel: &dyn Kernel, driver: Option<&Driver>) -> Option<String> {
        let at_work = || -> Option<State> { state::read(host).ok()?.filter(|state| is_working(state, driver)) };
        if let Some(state) = at_work() {
            return Some(state.version);
        }
        // The new version may have replaced the file at this path.
        let version = |module| sources::modinfo(&std::fs::read(module).ok()?, "version");
        let record = self.record.as_ref().filter(|it| version(&it.module).as_ref() == Some(&self.version))?;
        let parameters = Parameters { policy: &self.policy, redirect: Redirect::Auto };
        load::insert(host, kernel, Instance::Mpu, &record.module, parameters).ok()?;
        let again = Record::now(&record.module, record.origin, &self.version);
        Record { by_agent: record.by_agent, ..again }.write(host);
        at_work().map(|state| state.version)
    }
}

/// Whether the kernel refused the file itself: its format, or its signature.
fn is_refused_file(error: &ModuleError) -> bool {
    is_file_errno(insert_errno(error)) || insert_errno(error).is_some() && error.exit() == Exit::Refused
}

fn is_file_errno(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::ENOEXEC | libc::EINVAL | libc::ENOENT))
}

#[cfg(any(test, feature = "fake"))]
pub mod fake;

#[cfg(test)]
mod tests;
