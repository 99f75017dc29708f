//! Decides what `mpu up` does about the module, before anything is built or changed. Facts that only loading shows (a redirect that
//! another module has) are left out.

use super::build::Store;
use super::checks::{self, Toolchain, Unfit};
use super::error::{BuildError, ModuleError};
use super::load_error::LoadError;
use super::prebuilt::{self, SearchResult};
use super::sources::{self, Built, PassedOver, SourceError, Sources};
use super::state::{self, Instance, Phase, State};
use super::{compression, foreign};
use crate::signing::{self, Signer};
use clap::ValueHint;
use mpu_host::config::{Drivers, Modules, Redirect};
use mpu_host::driver::Driver;
use mpu_host::host::{CAP_SYS_MODULE, Host};
use mpu_os::file::{Links, open_regular};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Settings for the module: options of `mpu up`, and the configuration.
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

    #[arg(skip)]
    pub drivers: Drivers,

    #[arg(skip)]
    pub modules: Modules,

    #[arg(skip)]
    pub redirect: Redirect,

    // Compiled by `config::rules::of_host`.
    #[arg(skip)]
    pub policy: String,
}

/// The origin of a module's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Named on the command line.
    Given,
    /// Built elsewhere, and brought here.
    Prebuilt,
    /// Installed among the kernel's modules, by DKMS or a person.
    Installed,
    /// Built here by an earlier `mpu up`.
    Kept,
    /// Built now.
    Built,
}

impl Origin {
    pub fn in_words(self) -> &'static str {
        match self {
            Origin::Given => "named on the command line",
            Origin::Prebuilt => "built elsewhere",
            Origin::Installed => "installed among the kernel's modules",
            Origin::Kept => "built before",
            Origin::Built => "built now",
        }
    }
}

/// The decision.
#[derive(Debug)]
pub enum Plan {
    /// Only build.
    Build(Sources, Toolchain),
    /// Do nothing: it is up.
    Keep(State),
    Load(Box<Load>),
}

/// How to load a module.
#[derive(Debug)]
pub struct Load {
    /// The kernel's release.
    pub release: String,
    /// A loaded module that does nothing must be unloaded first.
    pub leftover: bool,
    /// The module that it replaces.
    pub replaces: Option<State>,
    pub file: ModuleFile,
    /// Module files that cannot be used.
    pub passed_over: Vec<PassedOver>,
}

#[derive(Debug)]
pub enum ModuleFile {
    Ready(Origin, Built),
    /// Build from these sources, unless the store has the module.
    Build(Sources, Toolchain),
}

/// Makes the plan. Every check that changes nothing on the host is made here.
///
/// # Errors
/// If this host cannot run the module, or must not. A module to be replaced is then still up.
pub fn preflight(host: &Host, options: &ModuleOptions, driver: Option<&Driver>) -> Result<Plan, ModuleError> {
    if options.build_only {
        let release = checks::kernel(host)?;
        return Ok(Plan::Build(sources_of(options)?, checks::toolchain(host, &release)?));
    }
    let found = state::read(host)?;
    if found.as_ref().is_some_and(|state| state.phase == Phase::Stuck) {
        return Err(LoadError::Stuck.into());
    }
    let leftover = found.as_ref().is_some_and(|state| is_useless(state, driver));
    let replaces = match found.filter(|_| !leftover) {
        Some(state) if !options.replace || is_in_place(&state) => return accept_same_version(state).map(Plan::Keep),
        found => found,
    };
    match load(host, options, driver) {
        Ok(load) => Ok(Plan::Load(Box::new(Load { leftover, replaces, ..load }))),
        Err(error) => Err(match replaces {
            Some(old) => error.replacing(Some(old.version)),
            None => error,
        }),
    }
}

/// How to load a module if none works now.
fn load(host: &Host, options: &ModuleOptions, driver: Option<&Driver>) -> Result<Load, ModuleError> {
    foreign::check_names_are_free(host)?;
    if !host.has_capability(CAP_SYS_MODULE) {
        return Err(Unfit::NotRoot.into());
    }
    let release = checks::kernel(host)?;
    let ready = match (&options.module, &options.source) {
        (Some(path), _) => {
            ReadyMade { file: Some((Origin::Given, named_module(host, path, &release)?)), ..ReadyMade::default() }
        }
        (None, Some(_)) => ReadyMade::default(),
        (None, None) => ready_made(host, &release, options.modules),
    };
    let passed_over = ready.passed_over.clone();
    check_may_load(host, &release, options, &ready).map_err(|error| error.after(passed_over.clone()))?;
    options.drivers.take(driver)?;
    let file = module_file(host, &release, options, ready).map_err(|error| error.after(passed_over.clone()))?;
    Ok(Load { release, leftover: false, replaces: None, file, passed_over })
}

/// Why this host, without a running module, cannot run the module. Missing rights do not count: every engine needs them. An unknown
/// driver release does not count: no engine knows it.
pub fn unfit<'a>(host: &Host, plan: &'a Result<Plan, ModuleError>) -> Option<&'a ModuleError> {
    let error = plan.as_ref().err().filter(|error| !matches!(error, ModuleError::Replacing { .. }))?;
    (matches!(error.innermost(), ModuleError::Unfit(_)) && host.has_capability(CAP_SYS_MODULE)).then_some(error)
}

/// Accepts a running module, unless it is another version.
pub(super) fn accept_same_version(state: State) -> Result<State, ModuleError> {
    let this = env!("CARGO_PKG_VERSION");
    match state.version == this {
        true => Ok(state),
        false => Err(LoadError::OtherVersion { loaded: state.version, this }.into()),
    }
}

/// Whether the running module is this version, under its own name.
fn is_in_place(state: &State) -> bool {
    state.version == env!("CARGO_PKG_VERSION") && state.instance == Instance::Mpu
}

/// Whether a loaded module does nothing until it is loaded anew.
fn is_useless(state: &State, driver: Option<&Driver>) -> bool {
    matches!(state.phase, Phase::Refused | Phase::Retired) || state.phase == Phase::Waiting && driver.is_some()
}

/// Whether a loaded module translates, or will with its driver.
pub(super) fn is_working(state: &State, driver: Option<&Driver>) -> bool {
    state.phase != Phase::Stuck && !is_useless(state, driver)
}

/// The modules for a kernel that need no build.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadyMade {
    pub file: Option<(Origin, Built)>,
    /// Modules that cannot be used.
    pub passed_over: Vec<PassedOver>,
    /// Whether one of them only lacks a signature.
    needs_signature: bool,
}

/// Looks for a module that needs no build: first one that was built elsewhere, then one that DKMS installed. If the kernel demands
/// signatures, an unsigned prebuilt module is passed over: one may be built and signed here.
pub fn ready_made(host: &Host, release: &str, modules: Modules) -> ReadyMade {
    const UNSIGNED: &str = "carries no signature, and this kernel accepts signed modules only";
    let demanded = signing::demanded(host);
    let SearchResult { usable, passed_over } = prebuilt::find(host, release, |built| match demanded && !built.signed {
        true => Err(UNSIGNED.to_string()),
        false => Ok(()),
    });
    let needs_signature = passed_over.iter().any(|over| over.why == UNSIGNED);
    match usable {
        Some(built) => ReadyMade { file: Some((Origin::Prebuilt, built)), passed_over, needs_signature },
        None => {
            let of_host = installed_module(host, release, modules);
            let passed_over = [passed_over, of_host.passed_over].concat();
            ReadyMade { file: of_host.file, passed_over, needs_signature }
        }
    }
}

/// An installed module that was not built elsewhere, unless only prebuilt ones are configured.
pub(super) fn installed_module(host: &Host, release: &str, modules: Modules) -> ReadyMade {
    let SearchResult { usable, passed_over } = match modules {
        Modules::Any => prebuilt::find_installed(host, release),
        Modules::Prebuilt => SearchResult::default(),
    };
    ReadyMade { file: usable.map(|built| (Origin::Installed, built)), passed_over, needs_signature: false }
}

/// Whether this kernel permits loading the module at hand, or the one to be built.
pub(super) fn check_may_load(
    host: &Host,
    release: &str,
    options: &ModuleOptions,
    ready: &ReadyMade,
) -> Result<(), ModuleError> {
    let only_prebuilt = options.modules == Modules::Prebuilt && options.source.is_none();
    let file = ready.file.as_ref().map(|(_, built)| built);
    if file.is_none() && only_prebuilt && !ready.needs_signature {
        let hint = prebuilt::advice(release, false);
        return Err(Unfit::NoPrebuilt { release: release.to_string(), hint }.into());
    }
    let signed = match file {
        Some(built) => built.signed,
        None => !only_prebuilt && will_be_signed(host, release, options),
    };
    checks::permission(host, signed, || match ready.needs_signature {
        true => prebuilt::advice(release, true),
        false => signing::advice(host, release, file.map(|built| built.path.as_path())),
    })?;
    Ok(())
}

/// The module at hand, else sources and tools to build one, else a stored one that was built before the tools were removed.
pub(super) fn module_file(
    host: &Host,
    release: &str,
    options: &ModuleOptions,
    ready: ReadyMade,
) -> Result<ModuleFile, ModuleError> {
    if let Some((origin, built)) = ready.file {
        return Ok(ModuleFile::Ready(origin, built));
    }
    match (checks::toolchain(host, release), stored_module(host, release, options)) {
        (Ok(tools), _) => Ok(ModuleFile::Build(sources_of(options)?, tools)),
        (Err(_), Some(stored)) => Ok(ModuleFile::Ready(Origin::Kept, stored)),
        (Err(unfit), None) => Err(unfit.into()),
    }
}

fn stored_module(host: &Host, release: &str, options: &ModuleOptions) -> Option<Built> {
    let path = Store::stored(host, release, &sources_of(options).ok()?)?.path;
    Some(Built { signed: signing::is_signed(&path), path })
}

/// Whether the module to be built will be signed, or the stored one is.
fn will_be_signed(host: &Host, release: &str, options: &ModuleOptions) -> bool {
    Signer::find(host, release).is_some() || stored_module(host, release, options).is_some_and(|stored| stored.signed)
}

/// The module that the administrator named. It may be packed.
fn named_module(host: &Host, path: &Path, release: &str) -> Result<Built, ModuleError> {
    let opened = open_regular(path, Links::Followed);
    let file = opened.map_err(|source| SourceError::Module { path: path.to_path_buf(), source })?;
    let bytes = compression::read_module(host, file, compression::compression_of(path).1);
    let bytes = bytes.map_err(|why| BuildError::Unpack { path: path.to_path_buf(), why })?;
    Ok(sources::check_module(&bytes, path, "mpu", release, std::env::consts::ARCH)?)
}

fn sources_of(options: &ModuleOptions) -> Result<Sources, SourceError> {
    options.source.as_deref().map_or_else(Sources::embedded, Sources::in_directory)
}

#[cfg(test)]
mod tests {
    use super::super::raise::fake::Setup;
    use super::*;
    use mpu_host::exit::Exit;
    use mpu_host::explain::Explain;
    use mpu_host::host::fake::{CONFIG, RELEASE};

    fn why(setup: &Setup) -> Option<(&'static str, Exit)> {
        let host = setup.fake.host();
        let plan = preflight(&host, &setup.options(), Driver::loaded(&host).as_ref());
        plan.err().map(|error| (error.code(), error.exit()))
    }

    #[test]
    fn broken_host_is_refused_with_reason() {
        use Exit::{NotReady, Refused};
        assert_eq!(why(&Setup::new()), None);
        let build = format!("/lib/modules/{RELEASE}/build");
        let (config, utsrelease) =
            (format!("/boot/config-{RELEASE}"), format!("{build}/include/generated/utsrelease.h"));
        let without_kprobes = CONFIG.replace("CONFIG_KPROBES=y\n", "# CONFIG_KPROBES is not set\n");
        let lockdown = "/sys/kernel/security/lockdown";
        for (file, text, expect) in [
            ("/proc/self/status", Some("CapEff:\t0000000000000000\n"), Some(("not_root", Refused))),
            ("/proc/sys/kernel/osrelease", None, Some(("no_release", NotReady))),
            (lockdown, Some("none [integrity] confidentiality"), Some(("locked_down", Refused))),
            (lockdown, Some("none integrity [confidentiality]"), Some(("locked_down", Refused))),
            ("/sys/module/module/parameters/sig_enforce", Some("Y\n"), Some(("signatures_enforced", Refused))),
            ("/proc/sys/kernel/modules_disabled", Some("1\n"), Some(("modules_disabled", Refused))),
            ("/proc/sys/kernel/ftrace_enabled", Some("0\n"), Some(("ftrace_disabled", Refused))),
            (&config, Some(&without_kprobes), Some(("missing_kernel_option", NotReady))),
            (&config, Some("CONFIG_MODULES=y\n"), Some(("missing_kernel_option", NotReady))),
            (&build, None, Some(("no_headers", NotReady))),
            (&utsrelease, Some("#define UTS_RELEASE \"6.1.0-27-amd64\"\n"), Some(("other_headers", NotReady))),
            ("/usr/bin/make", None, Some(("no_make", NotReady))),
            ("/usr/bin/gcc-12", None, Some(("no_compiler", NotReady))),
            ("/sys/module/nvidia/version", Some("700.10"), None),
            ("/sys/module/mpu/initstate", Some("live"), Some(("foreign_module", Refused))),
            ("/sys/module/mpu_next/initstate", Some("live"), Some(("foreign_module", Refused))),
        ] {
            let s = Setup::new();
            text.map_or_else(|| s.fake.remove(file), |text| s.fake.write(file, text));
            assert_eq!(why(&s), expect, "{file}");
        }
    }

    #[test]
    fn working_module_is_kept_on_unfit_host() {
        let s = Setup::new();
        s.fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
        s.fake.write("/sys/module/mpu/parameters/state", state::ARMED);
        assert_eq!(why(&s), None);
        s.fake.write("/sys/module/mpu/parameters/state", "version=0.1.0\nstate=refused\nrefused=os_is_init_ns:16\n");
        assert_eq!(why(&s), Some(("locked_down", Exit::Refused)), "one that does nothing would have to be loaded anew");
    }
}
