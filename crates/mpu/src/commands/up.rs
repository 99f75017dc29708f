//! `mpu up`: build if needed, load, and see that it works.
//!
//! Owns the order of things: everything that can fail without a trace comes before the first change.

use super::{DriverView, Lines, Report, StateView, Style};
use crate::driver::Driver;
use crate::engine::module::build::Store;
use crate::engine::module::checks;
use crate::engine::module::load::{self, Kernel, LoadError};
use crate::engine::module::sources::{self, Sources};
use crate::engine::module::state::{self, Phase, State};
use crate::engine::{self, Asked, Engine};
use crate::error::Error;
use crate::exit::Exit;
use crate::host::Host;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What the caller wants.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which engine.
    pub engine: Asked,
    /// A module that is built already.
    pub module: Option<PathBuf>,
    /// Sources to use in place of those that this executable carries.
    pub source: Option<PathBuf>,
    /// Build, and leave the kernel alone.
    pub build_only: bool,
    /// Go on with a driver release that is not known.
    pub any_driver: bool,
}

/// What was done.
#[derive(Debug, Clone, Serialize)]
pub struct Done {
    /// `loaded`, `already_up` or `built`.
    pub result: &'static str,
    /// The engine.
    pub engine: Engine,
    /// Why this engine.
    pub engine_because: &'static str,
    /// The module file.
    pub module: Option<PathBuf>,
    /// Seconds that building it took; null if it was built before.
    pub build_seconds: Option<f64>,
    /// What the loaded module says.
    pub module_state: Option<StateView>,
    /// The driver.
    pub driver: Option<DriverView>,
    /// Seconds that all of it took.
    pub seconds: f64,
}

/// What `mpu up` leaves for `mpu status`; it goes with the next boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Seconds since 1970 at which the module was loaded.
    pub since: u64,
    /// The file that was loaded.
    pub module: PathBuf,
}

/// Where the record lies.
pub const RECORD: &str = "/run/mpu/up.json";

/// A module that redirects nothing has nobody inside.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(5);

/// Brings MPU up.
pub fn up(host: &Host, kernel: &dyn Kernel, options: &Options) -> Result<Done, Error> {
    let began = Instant::now();
    let choice = engine::choose(options.engine);
    let driver = Driver::loaded(host);
    let mut done = Done {
        result: "loaded",
        engine: choice.engine,
        engine_because: choice.why,
        module: None,
        build_seconds: None,
        module_state: None,
        driver: driver.as_ref().map(DriverView::from),
        seconds: 0.0,
    };
    match choice.engine {
        Engine::Module => module_up(host, kernel, options, driver.as_ref(), &mut done)?,
    }
    done.seconds = began.elapsed().as_secs_f64();
    Ok(done)
}

fn module_up(
    host: &Host,
    kernel: &dyn Kernel,
    options: &Options,
    driver: Option<&Driver>,
    done: &mut Done,
) -> Result<(), Error> {
    let mut leftover = false;
    if !options.build_only {
        if let Some(state) = state::read(host)? {
            leftover = is_of_no_use(&state, driver);
            if !leftover {
                same_version(&state)?;
                done.result = "already_up";
                done.module = Record::read(host).map(|record| record.module);
                done.module_state = Some(StateView::from(&state));
                return Ok(());
            }
        }
    }
    let release = checks::kernel(host)?;
    let given = options.module.as_deref().map(|path| sources::inspect(path, &release)).transpose()?;
    if !options.build_only {
        checks::permission(host, given.as_ref().is_some_and(|built| built.signed))?;
        if !options.any_driver {
            checks::known_driver(driver)?;
        }
    }
    let state = match given {
        Some(built) => {
            load::same_host(host, kernel)?;
            done.module = Some(built.path.clone());
            insert(host, kernel, &built.path, leftover)?
        }
        None => match build_and_insert(host, kernel, options, &release, leftover, done)? {
            Some(state) => state,
            None => return Ok(()),
        },
    };
    let state = load::attached(host, kernel, state, driver)?;
    done.module_state = Some(StateView::from(&state));
    if let Some(module) = &done.module {
        Record::now(module).write(host);
    }
    Ok(())
}

/// Whether a loaded module does nothing, and will not until it is loaded anew.
fn is_of_no_use(state: &State, driver: Option<&Driver>) -> bool {
    matches!(state.phase, Phase::Refused { .. }) || state.phase == Phase::Waiting && driver.is_some()
}

/// A module that is up is fine, unless it is another version's.
fn same_version(state: &State) -> Result<(), LoadError> {
    match state.version.as_str() {
        env!("CARGO_PKG_VERSION") => Ok(()),
        loaded => Err(LoadError::OtherVersion { loaded: loaded.to_string(), this: env!("CARGO_PKG_VERSION") }),
    }
}

fn build_and_insert(
    host: &Host,
    kernel: &dyn Kernel,
    options: &Options,
    release: &str,
    leftover: bool,
    done: &mut Done,
) -> Result<Option<State>, Error> {
    let sources = match &options.source {
        Some(dir) => Sources::in_directory(dir)?,
        None => Sources::carried()?,
    };
    let tools = checks::toolchain(host, release)?;
    if !options.build_only {
        load::same_host(host, kernel)?;
    }
    let store = Store::open(host, release)?;
    let ready = store.module(&sources, &tools)?;
    done.module = Some(ready.path.clone());
    done.build_seconds = ready.took.map(|took| took.as_secs_f64());
    if options.build_only {
        done.result = "built";
        return Ok(None);
    }
    match insert(host, kernel, &ready.path, leftover) {
        // A kept module can fall behind its kernel in ways that no key foresees. Once, the answer is a new one.
        Err(Error::Load(LoadError::Insert { source, .. })) if ready.took.is_none() && does_not_fit(&source) => {
            store.forget();
            let ready = store.module(&sources, &tools)?;
            done.build_seconds = ready.took.map(|took| took.as_secs_f64());
            load::insert(host, kernel, &ready.path).map(Some)
        }
        other => other.map(Some),
    }
}

/// Puts a module in, in the place of one that is of no use.
fn insert(host: &Host, kernel: &dyn Kernel, path: &Path, leftover: bool) -> Result<State, Error> {
    if leftover {
        load::remove(host, kernel, LEFTOVER_PATIENCE)?;
    }
    load::insert(host, kernel, path)
}

fn does_not_fit(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOEXEC | libc::EINVAL | libc::ENOENT))
}

impl Record {
    fn now(module: &Path) -> Record {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        Record { since, module: module.to_path_buf() }
    }

    /// Best effort: without it `mpu status` does not know since when, and says so.
    fn write(&self, host: &Host) {
        let path = host.at(RECORD);
        let _ = path.parent().map(std::fs::create_dir_all);
        if let Ok(text) = serde_json::to_string(self) {
            let _ = std::fs::write(path, text);
        }
    }

    /// The record of the module that is loaded, if `mpu up` loaded it.
    pub fn read(host: &Host) -> Option<Record> {
        host.text(RECORD).and_then(|text| serde_json::from_str(&text).ok())
    }

    /// Takes the record away.
    pub fn remove(host: &Host) {
        let _ = std::fs::remove_file(host.at(RECORD));
    }
}

impl Report for Done {
    const COMMAND: &'static str = "up";

    fn exit(&self) -> Exit {
        Exit::Ok
    }

    fn text(&self, style: Style) -> String {
        let mut lines = Lines::new(style);
        let module = self.module.as_deref().map(|path| path.display().to_string());
        match (self.result, &module) {
            ("built", Some(path)) => {
                lines.plain(format!("built {path}; the kernel is left alone"));
                return lines.text;
            }
            ("already_up", _) => lines.plain("MPU is up already; nothing was changed"),
            _ => lines.plain(format!("MPU is up, after {:.1} s", self.seconds)),
        };
        lines.put("engine", format!("{} ({})", self.engine.name(), self.engine_because));
        if let Some(state) = &self.module_state {
            lines.put("state", state.line(style));
            lines
                .put("redirects", if state.hooks.is_empty() { "none yet".to_string() } else { state.hooks.join(", ") });
        }
        lines.put("driver", self.driver.as_ref().map_or("none is loaded".to_string(), DriverView::line));
        if let Some(path) = module {
            let how = match (self.result, self.build_seconds) {
                ("already_up", _) => String::new(),
                (_, Some(seconds)) => format!(" (built in {seconds:.1} s)"),
                (_, None) => " (built before)".to_string(),
            };
            lines.put("module", format!("{path}{how}"));
        }
        lines.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::module::load::fake::FakeKernel;
    use crate::engine::module::state::ARMED;
    use crate::error::Explain;
    use crate::host::fake::{FakeHost, RELEASE};

    const BUILDS: &str = r#"for a; do case $a in M=*) echo module >"${a#M=}/mpu.ko";; esac; done"#;

    struct Setup {
        fake: FakeHost,
        sources: tempfile::TempDir,
    }

    impl Setup {
        fn new() -> Setup {
            let fake = FakeHost::in_order();
            fake.tool("make", BUILDS);
            Setup { fake, sources: sources::fake::directory() }
        }
        fn options(&self) -> Options {
            let source = Some(self.sources.path().to_path_buf());
            Options { engine: Asked::Auto, module: None, source, build_only: false, any_driver: false }
        }
        fn kernel(&self) -> FakeKernel<'_> {
            FakeKernel::taking(&self.fake, ARMED)
        }
    }

    #[test]
    fn up_builds_loads_and_reports() {
        let s = Setup::new();
        let done = up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
        assert_eq!((done.result, done.engine), ("loaded", Engine::Module));
        assert!(done.build_seconds.is_some() && done.driver.as_ref().is_some_and(|d| d.era == Some(1)));
        super::super::documented::check("`mpu up --json`", &super::super::json(&done));
        assert_eq!(done.module_state.as_ref().map(|s| s.state.as_str()), Some("armed"));
        let text = done.text(Style::Plain);
        assert!(
            text.starts_with("MPU is up") && text.contains("os_find_ns_pid") && text.contains("550.163.01"),
            "{text}"
        );
        let record = Record::read(&s.fake.host()).expect("a record");
        assert!(record.since > 1_700_000_000 && record.module.ends_with(format!("{RELEASE}/mpu.ko")));
    }

    #[test]
    fn a_second_up_changes_nothing() {
        let s = Setup::new();
        up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
        let before = s.fake.snapshot();
        let kernel = s.kernel();
        let done = up(&s.fake.host(), &kernel, &s.options()).expect("up");
        assert_eq!((done.result, kernel.calls.get()), ("already_up", (0, 0)));
        assert_eq!(s.fake.snapshot(), before);
    }

    #[test]
    fn another_version_that_is_up_is_left_alone() {
        let s = Setup::new();
        s.fake.write("/sys/module/mpu/parameters/state", "version=0.0.9\nstate=armed\n");
        let error = up(&s.fake.host(), &s.kernel(), &s.options()).expect_err("another version");
        assert_eq!((error.code(), error.exit()), ("other_version_up", Exit::Failed));
        assert!(error.fix().contains("mpu down"));
    }

    #[test]
    fn a_module_that_was_refused_is_loaded_anew() {
        let s = Setup::new();
        s.fake.write("/sys/module/mpu/parameters/state", "version=0.1.0\nstate=refused\nrefused=os_find_ns_pid:16\n");
        let kernel = s.kernel();
        let done = up(&s.fake.host(), &kernel, &s.options()).expect("up");
        assert_eq!((done.result, kernel.calls.get()), ("loaded", (1, 1)));

        s.fake.write("/sys/module/mpu/parameters/state", "version=0.1.0\nstate=waiting\n");
        let done = up(&s.fake.host(), &kernel, &s.options()).expect("up");
        assert_eq!((done.result, kernel.calls.get()), ("loaded", (2, 2)), "it waited beside a driver");
    }

    #[test]
    fn without_a_driver_it_waits() {
        let s = Setup::new();
        s.fake.remove("/sys/module/nvidia");
        let kernel = FakeKernel::taking(&s.fake, "version=0.1.0\nstate=waiting\nhooks=\ninside=0\n");
        let done = up(&s.fake.host(), &kernel, &s.options()).expect("up");
        assert_eq!(done.exit(), Exit::Ok);
        let text = done.text(Style::Plain);
        assert!(text.contains("waiting: the NVIDIA driver is not loaded") && text.contains("none yet"), "{text}");
    }

    #[test]
    fn a_driver_that_the_module_does_not_find_is_no_reason_to_wait() {
        let s = Setup::new();
        let kernel = FakeKernel::taking(&s.fake, "version=0.1.0\nstate=waiting\nhooks=\ninside=0\n");
        let error = up(&s.fake.host(), &kernel, &s.options()).expect_err("unattached");
        assert_eq!((error.code(), kernel.calls.get()), ("driver_not_found", (1, 1)));
        assert!(error.to_string().contains("550.163.01"), "{error}");
        assert_eq!(Record::read(&s.fake.host()), None);
    }

    #[test]
    fn a_refused_redirect_leaves_nothing_loaded_and_no_record() {
        let s = Setup::new();
        let kernel = FakeKernel::taking(&s.fake, "version=0.1.0\nstate=refused\nrefused=nvidia_unlocked_ioctl:16\n");
        let error = up(&s.fake.host(), &kernel, &s.options()).expect_err("refused");
        assert_eq!((error.code(), kernel.calls.get()), ("redirect_refused", (1, 1)));
        assert_eq!(Record::read(&s.fake.host()), None);
    }

    #[test]
    fn a_kept_module_that_does_not_fit_is_built_anew_once() {
        let s = Setup::new();
        up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
        s.fake.remove("/sys/module/mpu");
        let kernel = s.kernel();
        kernel.inserts.borrow_mut().push(libc::ENOEXEC);
        let done = up(&s.fake.host(), &kernel, &s.options()).expect("up at the second try");
        assert!(done.build_seconds.is_some());
        assert_eq!(kernel.calls.get(), (2, 0));

        s.fake.remove("/sys/module/mpu");
        let kernel = s.kernel();
        kernel.inserts.borrow_mut().extend([libc::ENOEXEC, libc::ENOEXEC]);
        let error = up(&s.fake.host(), &kernel, &s.options()).expect_err("no third try");
        assert_eq!((error.code(), kernel.calls.get()), ("load_failed", (2, 0)));
    }

    #[test]
    fn building_alone_needs_no_rights_and_loads_nothing() {
        let s = Setup::new();
        s.fake.write("/proc/self/status", "CapEff:\t0000000000000000\n");
        s.fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
        let kernel = s.kernel();
        let options = Options { build_only: true, ..s.options() };
        let done = up(&s.fake.host(), &kernel, &options).expect("built");
        assert_eq!((done.result, kernel.calls.get()), ("built", (0, 0)));
        assert!(done.text(Style::Plain).starts_with("built "));
    }

    #[test]
    fn a_given_module_is_loaded_without_tools() {
        let s = Setup::new();
        s.fake.remove("/usr/bin/make");
        let path = s.sources.path().join("mpu.ko");
        std::fs::write(&path, sources::fake::module(RELEASE)).expect("a module");
        let options = Options { module: Some(path.clone()), source: None, ..s.options() };
        let done = up(&s.fake.host(), &s.kernel(), &options).expect("up");
        assert_eq!((done.module, done.build_seconds), (Some(path), None));
    }

    #[test]
    fn an_unknown_driver_wants_a_word() {
        let s = Setup::new();
        s.fake.write("/sys/module/nvidia/version", "700.10\n");
        let before = s.fake.snapshot();
        let error = up(&s.fake.host(), &s.kernel(), &s.options()).expect_err("unknown");
        assert_eq!((error.code(), error.exit()), ("unknown_driver", Exit::NotReady));
        assert_eq!(s.fake.snapshot(), before);
        let done = up(&s.fake.host(), &s.kernel(), &Options { any_driver: true, ..s.options() }).expect("up");
        assert!(done.driver.is_some_and(|driver| !driver.known));
    }
}
