//! Raises the module engine: checks, builds if needed, loads, and sees that it is at work.
//!
//! Owns the order of things: everything that can fail without a trace comes before the first change. Each step is its
//! own module's.

use super::build::Store;
use super::checks;
use super::error::ModuleError;
use super::installed;
use super::load::{self, Kernel};
use super::load_error::LoadError;
use super::sources::{self, Sources};
use super::state::{self, Instance, Phase, State};
use super::swap::{swap, Replaced};
use crate::signing::{self, Signer};
use clap::ValueHint;
use mpu_host::config::Drivers;
use mpu_host::driver::Driver;
use mpu_host::host::{Host, CAP_SYS_MODULE};
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
    if !host.has_capability(CAP_SYS_MODULE) {
        return Err(checks::Unfit::NotRoot.into());
    }
    let release = checks::kernel(host)?;
    let given = match (&options.module, &options.source) {
        (Some(path), _) => Some(sources::inspect(path, &release)?),
        (None, Some(_)) => None,
        (None, None) => installed::find(host, &release),
    };
    let given_path = given.as_ref().map(|built| built.path.as_path());
    let signed = match &given {
        Some(built) => built.signed,
        None => will_be_signed(host, &release, options),
    };
    checks::permission(host, signed, || signing::advice(host, &release, given_path))?;
    options.drivers.take(driver)?;
    let site = Site { host, kernel, leftover, replaces, policy: &options.policy };
    let raised = match given {
        Some(built) => site.insert(&built.path, None),
        None => site.build_and_insert(&release, &sources_of(options)?),
    };
    match raised {
        Ok((state, module, built_in, replaced)) => {
            let state = load::attached(host, kernel, state, driver)?;
            Ok(Raised::Loaded { state, module, built_in, replaced })
        }
        // Another `mpu up` was quicker.
        Err(error) if errno_of_insert(&error) == Some(libc::EEXIST) => match state::read(host)? {
            Some(state) => already(state),
            None => Err(error),
        },
        Err(error) => Err(error),
    }
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
fn is_in_place(state: &State) -> bool {
    state.version == env!("CARGO_PKG_VERSION") && state.instance == Instance::Mpu
}

/// Whether a loaded module does nothing, and will not until it is loaded anew.
pub(super) fn is_of_no_use(state: &State, driver: Option<&Driver>) -> bool {
    matches!(state.phase, Phase::Refused { .. } | Phase::Retired) || state.phase == Phase::Waiting && driver.is_some()
}

/// Whether what is built here will carry a signature, or does so already.
pub(super) fn will_be_signed(host: &Host, release: &str, options: &ModuleOptions) -> bool {
    let kept = || Store::kept(host, release, &sources_of(options).ok()?);
    Signer::find(host, release).is_some() || kept().is_some_and(|kept| signing::is_signed(&kept.path))
}

pub(super) fn sources_of(options: &ModuleOptions) -> Result<Sources, ModuleError> {
    Ok(match &options.source {
        Some(dir) => Sources::in_directory(dir)?,
        None => Sources::carried()?,
    })
}

/// The kernel's word about an insertion, if that is what failed.
fn errno_of_insert(error: &ModuleError) -> Option<i32> {
    match error {
        ModuleError::Load(LoadError::Insert { source, .. }) => source.raw_os_error(),
        _ => None,
    }
}

/// Where a module goes in.
struct Site<'a> {
    host: &'a Host,
    kernel: &'a dyn Kernel,
    /// A module of no use is in its place.
    leftover: bool,
    /// The module that this one takes over from.
    replaces: Option<State>,
    policy: &'a str,
}

type Inserted = (State, PathBuf, Option<Duration>, Option<Replaced>);

impl Site<'_> {
    fn build_and_insert(&self, release: &str, sources: &Sources) -> Result<Inserted, ModuleError> {
        let tools = match (checks::toolchain(self.host, release), Store::kept(self.host, release, sources)) {
            (Ok(tools), _) => tools,
            // It cannot be built here any more, but it was.
            (Err(_), Some(kept)) => return self.insert(&kept.path, None),
            (Err(unfit), None) => return Err(unfit.into()),
        };
        load::same_host(self.host, self.kernel)?;
        let store = Store::open(self.host, release)?;
        let ready = store.module(sources, &tools)?;
        match self.insert(&ready.path, ready.took) {
            // A kept module can fall behind its kernel in ways that no key foresees. Once, the answer is a new one.
            Err(error) if ready.took.is_none() && does_not_fit(errno_of_insert(&error)) => {
                store.forget();
                let ready = store.module(sources, &tools)?;
                self.insert(&ready.path, ready.took)
            }
            inserted => inserted,
        }
    }

    fn insert(&self, path: &Path, built_in: Option<Duration>) -> Result<Inserted, ModuleError> {
        load::same_host(self.host, self.kernel)?;
        if let Some(old) = &self.replaces {
            let (state, replaced) = swap(self.host, self.kernel, old, path, self.policy)?;
            return Ok((state, path.to_path_buf(), built_in, Some(replaced)));
        }
        for instance in Instance::ALL.into_iter().filter(|i| self.leftover && i.is_loaded(self.host)) {
            load::remove(self.host, self.kernel, instance, LEFTOVER_PATIENCE, "mpu up")?;
        }
        let state = load::insert(self.host, self.kernel, Instance::Mpu, path, self.policy)?;
        Ok((state, path.to_path_buf(), built_in, None))
    }
}

fn does_not_fit(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::ENOEXEC | libc::EINVAL | libc::ENOENT))
}

#[cfg(any(test, feature = "fake"))]
pub mod fake {
    //! A host in order with sources at hand, for tests that raise.

    use super::super::load::fake::FakeKernel;
    use super::super::sources;
    use super::super::state::ARMED;
    use super::ModuleOptions;
    use mpu_host::host::fake::FakeHost;

    const BUILDS: &str = r#"for a; do case $a in M=*) echo module >"${a#M=}/mpu.ko";; esac; done"#;

    /// The host and its sources.
    pub struct Setup {
        /// The host.
        pub fake: FakeHost,
        /// The sources.
        pub sources: tempfile::TempDir,
    }

    impl Setup {
        /// With a make that builds.
        pub fn new() -> Setup {
            let fake = FakeHost::in_order();
            fake.tool("make", BUILDS);
            Setup { fake, sources: sources::fake::directory() }
        }

        /// To build from the sources.
        pub fn options(&self) -> ModuleOptions {
            let source = Some(self.sources.path().to_path_buf());
            ModuleOptions { source, ..ModuleOptions::default() }
        }

        /// A kernel whose module arms itself.
        pub fn kernel(&self) -> FakeKernel<'_> {
            FakeKernel::taking(&self.fake, ARMED)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fake::Setup;
    use super::*;
    use crate::module::load::fake::FakeKernel;
    use mpu_host::exit::Exit;
    use mpu_host::explain::Explain;

    /// What became of it, in a word, and whether it was built.
    fn up(host: &Host, kernel: &dyn Kernel, options: &ModuleOptions) -> Result<(&'static str, bool), ModuleError> {
        Ok(match raise(host, kernel, options, Driver::loaded(host).as_ref())? {
            Raised::Loaded { built_in, .. } => ("loaded", built_in.is_some()),
            Raised::Already { .. } => ("already", false),
            Raised::Built { built_in, .. } => ("built", built_in.is_some()),
        })
    }

    #[test]
    fn another_version_that_is_up_is_left_alone() {
        let s = Setup::new();
        s.fake.write("/sys/module/mpu/parameters/state", "version=0.0.9\nstate=armed\n");
        let error = up(&s.fake.host(), &s.kernel(), &s.options()).expect_err("another version");
        assert_eq!((error.code(), error.exit()), ("other_version_up", Exit::Failed));
        assert!(error.fix().contains("mpu up --replace"));
    }

    #[test]
    fn a_stuck_module_is_neither_up_nor_replaced() {
        let s = Setup::new();
        s.fake.write("/sys/module/mpu/parameters/state", "version=0.1.0\nabi=2\nstate=stuck\n");
        let kernel = s.kernel();
        for replace in [false, true] {
            let options = ModuleOptions { replace, ..s.options() };
            let error = up(&s.fake.host(), &kernel, &options).expect_err("stuck");
            assert_eq!((error.code(), error.exit(), kernel.calls.get()), ("stuck", Exit::Failed, (0, 0)));
        }
    }

    #[test]
    fn a_module_that_was_refused_is_loaded_anew() {
        let s = Setup::new();
        s.fake.write("/sys/module/mpu/parameters/state", "version=0.1.0\nstate=refused\nrefused=os_find_ns_pid:16\n");
        let kernel = s.kernel();
        let done = up(&s.fake.host(), &kernel, &s.options()).expect("up");
        assert_eq!((done, kernel.calls.get()), (("loaded", true), (1, 1)));

        s.fake.write("/sys/module/mpu/parameters/state", "version=0.1.0\nstate=waiting\n");
        let done = up(&s.fake.host(), &kernel, &s.options()).expect("up");
        assert_eq!((done, kernel.calls.get()), (("loaded", false), (2, 2)), "it waited beside a driver");
    }

    #[test]
    fn a_driver_that_the_module_does_not_find_is_no_reason_to_wait() {
        let s = Setup::new();
        let kernel = FakeKernel::taking(&s.fake, "version=0.1.0\nstate=waiting\nhooks=\ninside=0\n");
        let error = up(&s.fake.host(), &kernel, &s.options()).expect_err("unattached");
        assert_eq!((error.code(), kernel.calls.get()), ("driver_not_found", (1, 1)));
        assert!(error.to_string().contains("550.163.01"), "{error}");
    }

    #[test]
    fn a_kept_module_that_does_not_fit_is_built_anew_once() {
        let s = Setup::new();
        up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
        s.fake.remove("/sys/module/mpu");
        let kernel = s.kernel();
        kernel.inserts.borrow_mut().push(libc::ENOEXEC);
        let done = up(&s.fake.host(), &kernel, &s.options()).expect("up at the second try");
        assert_eq!((done, kernel.calls.get()), (("loaded", true), (2, 0)));

        s.fake.remove("/sys/module/mpu");
        let kernel = s.kernel();
        kernel.inserts.borrow_mut().extend([libc::ENOEXEC, libc::ENOEXEC]);
        let error = up(&s.fake.host(), &kernel, &s.options()).expect_err("no third try");
        assert_eq!((error.code(), kernel.calls.get()), ("load_failed", (2, 0)));
    }

    #[test]
    fn what_dkms_built_is_taken_without_tools() {
        let s = Setup::new();
        s.fake.remove("/usr/bin/make");
        let path = format!("/lib/modules/{}/updates/dkms/mpu.ko", mpu_host::host::fake::RELEASE);
        s.fake.write(&path, "");
        let mut bytes = sources::fake::module(mpu_host::host::fake::RELEASE);
        bytes.extend_from_slice(format!("version={}\0", env!("CARGO_PKG_VERSION")).as_bytes());
        std::fs::write(s.fake.host().at(&path), bytes).expect("a module");
        let done = up(&s.fake.host(), &s.kernel(), &ModuleOptions::default()).expect("up");
        assert_eq!(done, ("loaded", false));
    }

    #[test]
    fn what_a_locked_kernel_gets_is_signed_with_the_owners_key() {
        const BUILDS_BOTH: &str =
            r#"for a; do case $a in M=*) for m in mpu mpu_next; do echo $m >"${a#M=}/$m.ko"; done;; esac; done"#;
        let s = Setup::new();
        let host = s.fake.host();
        s.fake.tool("make", BUILDS_BOTH);
        let code = || up(&host, &s.kernel(), &s.options()).map_err(|error| error.code());
        s.fake.write("/sys/module/module/parameters/sig_enforce", "Y\n");
        assert_eq!(code(), Err("signatures_enforced"));
        s.fake.write("/var/lib/dkms/mok.key", "private");
        s.fake.write("/var/lib/dkms/mok.pub", "certificate");
        assert_eq!(code(), Err("signatures_enforced"), "nothing to sign with");
        s.fake.tool("kmodsign", "echo 'bad key' >&2; exit 1");
        assert_eq!(code(), Err("sign_failed"));
        assert_eq!(code(), Err("sign_failed"), "what is not signed is not kept");
        s.fake.tool("kmodsign", "printf '~Module signature appended~\\n' >>\"$4\"");
        assert_eq!(code(), Ok(("loaded", true)));
        let store = host.at("/var/lib/mpu").join(mpu_host::host::fake::RELEASE);
        assert!(["mpu.ko", "mpu_next.ko"].iter().all(|name| signing::is_signed(&store.join(name))));

        s.fake.remove("/sys/module/mpu");
        assert_eq!(code(), Ok(("loaded", false)));
        s.fake.remove("/sys/module/mpu");
        s.fake.write("/var/lib/dkms/mok.pub", "another");
        assert_eq!(code(), Ok(("loaded", true)), "another key asks for another module");
        s.fake.remove("/sys/module/mpu");
        s.fake.remove("/usr/bin/kmodsign");
        s.fake.remove("/usr/bin/make");
        assert_eq!(code(), Ok(("loaded", false)), "a signed one is kept");
    }

    #[test]
    fn a_signature_that_the_kernel_does_not_know_is_told_with_its_cure() {
        let s = Setup::new();
        s.fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
        s.fake.write("/var/lib/dkms/mok.key", "private");
        s.fake.write("/var/lib/dkms/mok.pub", "certificate");
        s.fake.tool("kmodsign", "printf '~Module signature appended~\\n' >>\"$4\"");
        let kernel = s.kernel();
        kernel.inserts.borrow_mut().push(libc::ENOKEY);
        let error = up(&s.fake.host(), &kernel, &s.options()).expect_err("no key");
        assert_eq!((error.code(), error.exit()), ("load_failed", Exit::Refused));
        assert!(error.fix().starts_with("mokutil --import /var/lib/dkms/mok.pub"), "{}", error.fix());
    }

    #[test]
    fn a_kept_module_needs_no_tools() {
        let s = Setup::new();
        up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
        s.fake.remove("/sys/module/mpu");
        s.fake.remove("/usr/bin/gcc-12");
        s.fake.remove("/usr/bin/make");
        let done = up(&s.fake.host(), &s.kernel(), &s.options()).expect("up without a compiler");
        assert_eq!(done, ("loaded", false));
        s.fake.remove("/sys/module/mpu");
        let error = up(&s.fake.host(), &s.kernel(), &ModuleOptions { build_only: true, ..s.options() })
            .expect_err("cannot build");
        assert_eq!(error.code(), "no_compiler");
    }

    #[test]
    fn the_slower_of_two_finds_it_up() {
        struct Raced<'a>(FakeKernel<'a>);
        impl Kernel for Raced<'_> {
            fn insert(&self, instance: Instance, module: &std::fs::File, with: &std::ffi::CStr) -> std::io::Result<()> {
                self.0.insert(instance, module, with)?;
                Err(std::io::Error::from_raw_os_error(libc::EEXIST))
            }
            fn remove(&self, instance: Instance) -> std::io::Result<()> {
                self.0.remove(instance)
            }
            fn mark_log(&self) -> Option<std::fs::File> {
                None
            }
            fn is_for(&self, _: &Host) -> bool {
                true
            }
        }
        let s = Setup::new();
        let done = up(&s.fake.host(), &Raced(s.kernel()), &s.options()).expect("up");
        assert_eq!(done, ("already", false));
        assert!(s.fake.host().at("/sys/module/mpu").exists(), "the other's module stays");
    }
}
