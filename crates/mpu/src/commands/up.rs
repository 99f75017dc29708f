//! `mpu up`: picks an engine, has it raised, and remembers when.
//!
//! Owns the report. How an engine is raised is the engine's business.

use super::down::lower_module;
use super::{DriverView, NotifyView, ProofView, StateView};
use crate::config::{rules, Asked, Config, Drivers};
use crate::driver::Driver;
use crate::engine::module::checks;
use crate::engine::module::load::{self, Kernel, LoadError};
use crate::engine::module::raise::{self, raise, Raised};
use crate::engine::module::record::Record;
use crate::engine::module::state::{self, State};
use crate::engine::notify;
use crate::engine::{self, Choice, Engine};
use crate::error::Error;
use crate::exit::Exit;
use crate::host::Host;
use crate::proof::{self, Ask, Proof};
use crate::report::{Lines, Report, Style};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What the caller wants.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Which engine, if not the one that the configuration names.
    pub engine: Option<Asked>,
    /// What the module engine is to do.
    pub module: raise::Options,
    /// Go on with a driver release that is not known, whatever the configuration says.
    pub any_driver: bool,
    /// The executable that keeps the notify engine's supervisor, if not this one.
    pub keeper: Option<PathBuf>,
    /// How the module that is up is asked whether it translates; none if somebody else asks.
    pub ask: Option<Ask>,
}

/// What was done.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Up")]
pub struct Done {
    /// `loaded`, `started`, `resumed`, `replaced`, `already_up` or `built`.
    #[schemars(extend("enum" = ["loaded", "started", "resumed", "replaced", "already_up", "built"]))]
    pub result: &'static str,
    /// The engine.
    pub engine: Engine,
    /// Why this engine.
    pub engine_because: String,
    /// What else the administrator may want to know, in sentences: what would let a better engine run, what became of another one.
    pub notes: Vec<String>,
    /// The module file.
    pub module: Option<PathBuf>,
    /// Seconds that building it took; null if it was built before.
    pub build_seconds: Option<f64>,
    /// The version that was up before, if this one took over from it.
    pub replaced_version: Option<String>,
    /// Whether every call during that was translated.
    pub gapless: Option<bool>,
    /// What the loaded module says.
    pub module_state: Option<StateView>,
    /// Whether it was seen to translate; null with the notify engine, while it waits for a driver, and where nobody asked.
    pub proof: Option<ProofView>,
    /// What the notify engine's supervisor says.
    pub notify_state: Option<NotifyView>,
    /// The driver.
    pub driver: Option<DriverView>,
    /// Seconds that all of it took.
    pub seconds: f64,
}

/// How long the driver may take for the question whether the module translates: the first client of a GPU waits for it
/// to start.
const ASK_PATIENCE: Duration = Duration::from_secs(120);

/// How long callers inside a module that is not needed any more are waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Brings MPU up.
pub fn up(host: &Host, kernel: &dyn Kernel, options: &Options) -> Result<Done, Error> {
    let began = Instant::now();
    if !options.module.build_only {
        checks::root(host)?;
    }
    let config = Config::of(host)?;
    let driver = Driver::loaded(host);
    let asked = options.engine.unwrap_or(config.engine);
    let choice = engine::choose(host, asked, &options.module, driver.as_ref())?;
    let drivers = if options.any_driver { Drivers::Any } else { config.drivers };
    let module = raise::Options { policy: rules::compile(&config), drivers, ..options.module.clone() };
    let mut done = Done::of(choice, driver.as_ref());
    match done.engine {
        Engine::Module => match raise(host, kernel, &module, driver.as_ref()) {
            Ok(raised) => {
                let (raised, proof) = proven(host, kernel, raised, options.ask)?;
                done.tell_of_module(host, raised);
                done.proof = proof.as_ref().map(ProofView::from);
                if done.result != "built" {
                    done.without_notify(host);
                }
            }
            Err(error) => {
                let choice = engine::after_refusal(host, asked, &module, &error).ok_or(error)?;
                done = Done::of(choice, driver.as_ref());
                done.by_notify(host, kernel, options, module, driver.as_ref())?;
            }
        },
        Engine::Notify => done.by_notify(host, kernel, options, module, driver.as_ref())?,
    }
    done.seconds = began.elapsed().as_secs_f64();
    Ok(done)
}

/// Has the module asked whether it translates. One that was loaded now and gets no calls does not stay.
fn proven(
    host: &Host,
    kernel: &dyn Kernel,
    raised: Raised,
    ask: Option<Ask>,
) -> Result<(Raised, Option<Proof>), Error> {
    let Some(ask) = ask else { return Ok((raised, None)) };
    let prove = |state: State| proof::prove(host, state, ask, ASK_PATIENCE);
    let not_entered = |state: &State| LoadError::NotEntered { hooks: state.hooks.join(", ") };
    Ok(match raised {
        Raised::Built { .. } => (raised, None),
        Raised::Already { state } => match prove(state)? {
            (state, Some(Proof::NotEntered)) => return Err(not_entered(&state).into()),
            (state, proof) => (Raised::Already { state }, proof),
        },
        Raised::Loaded { state, module, built_in, replaced } => match prove(state)? {
            (state, Some(Proof::NotEntered)) => {
                let error = not_entered(&state);
                // The reason is what the caller must hear, whatever becomes of this.
                let _ = load::remove(host, kernel, state.instance, PATIENCE, "mpu up");
                return Err(error.into());
            }
            (state, proof) => (Raised::Loaded { state, module, built_in, replaced }, proof),
        },
    })
}

impl Done {
    fn of(choice: Choice, driver: Option<&Driver>) -> Done {
        let better = choice.better.map(|fix| format!("for the module: {fix}"));
        Done {
            result: "loaded",
            engine: choice.engine,
            engine_because: choice.why,
            notes: better.into_iter().collect(),
            module: None,
            build_seconds: None,
            replaced_version: None,
            gapless: None,
            module_state: None,
            proof: None,
            notify_state: None,
            driver: driver.map(DriverView::from),
            seconds: 0.0,
        }
    }

    fn tell_of_module(&mut self, host: &Host, raised: Raised) {
        match raised {
            Raised::Loaded { state, module, built_in, replaced } => {
                if let Some(replaced) = replaced {
                    self.result = "replaced";
                    self.gapless = Some(replaced.gapless);
                    self.replaced_version = Some(replaced.version);
                }
                Record::now(&module).write(host);
                self.module_state = Some(StateView::of(host, &state));
                self.module = Some(module);
                self.build_seconds = built_in.map(|took| took.as_secs_f64());
            }
            Raised::Already { state } => {
                self.result = "already_up";
                self.module_state = Some(StateView::of(host, &state));
                self.module = Record::read(host).map(|record| record.module);
            }
            Raised::Built { module, built_in } => {
                self.result = "built";
                self.module = Some(module);
                self.build_seconds = built_in.map(|took| took.as_secs_f64());
            }
        }
    }

    fn by_notify(
        &mut self,
        host: &Host,
        kernel: &dyn Kernel,
        options: &Options,
        module: raise::Options,
        driver: Option<&Driver>,
    ) -> Result<(), Error> {
        load::same_host(host, kernel)?;
        let (replace, drivers) = (module.replace, module.drivers);
        let program = options.keeper.clone();
        let cpu_percent = Config::of(host)?.notify_cpu_percent;
        let wanted = notify::raise::Options { replace, drivers, policy: module.policy, cpu_percent, program };
        self.tell_of_notify(notify::raise::raise(host, &wanted, driver)?);
        self.without_module(host, kernel);
        Ok(())
    }

    fn tell_of_notify(&mut self, raised: notify::raise::Raised) {
        use notify::raise::Raised::{Already, Replaced, Resumed, Started};
        let (result, state) = match raised {
            Started(state) => ("started", state),
            Resumed(state) => ("resumed", state),
            Replaced(state, version) => {
                // Calls waited for the new one.
                self.gapless = Some(true);
                self.replaced_version = Some(version);
                ("replaced", state)
            }
            Already(state) => ("already_up", state),
        };
        self.result = result;
        self.notify_state = Some(NotifyView::from(&state));
    }

    /// The module is up: a supervisor is not needed any more. Both at once do no harm, so its failure is none of ours.
    fn without_notify(&mut self, host: &Host) {
        let note = match notify::client::state(host) {
            Ok(Some(state)) if state.state == "armed" => match notify::raise::lower(host) {
                Ok(None) => return,
                Ok(Some(lowered)) => format!("the notify engine, which was up before, {}", lowered.in_words()),
                Err(error) => {
                    format!("the notify engine is up, too, which does no harm, and could not be retired: {error}")
                }
            },
            _ => return,
        };
        self.notes.push(note);
    }

    /// The notify engine was chosen: the module goes.
    fn without_module(&mut self, host: &Host, kernel: &dyn Kernel) {
        if !state::is_loaded(host) {
            return;
        }
        self.notes.push(match lower_module(host, kernel, PATIENCE) {
            Ok(_) => "the module was unloaded: containers that run already, and were not started through the wrapper, see what the \
                      driver shows them by itself"
                .to_string(),
            Err(error) => format!("the module is up, too, which does no harm, and could not be unloaded: {error}"),
        });
    }
}

impl Report for Done {
    const COMMAND: &'static str = "up";

    fn exit(&self) -> Exit {
        match &self.proof {
            Some(proof) if proof.is_fault => Exit::Failed,
            _ => Exit::Ok,
        }
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
            ("resumed", _) => lines.plain("MPU is up: it was retired, and takes new containers again"),
            ("replaced", _) => {
                let how =
                    if self.gapless == Some(true) { "without a gap" } else { "with a gap: it could not hand over" };
                let old = self.replaced_version.as_deref().unwrap_or_default();
                lines.plain(format!("MPU is up, after {:.1} s, in the place of {old}, {how}", self.seconds))
            }
            _ => lines.plain(format!("MPU is up, after {:.1} s", self.seconds)),
        };
        lines.put("engine", format!("{} ({})", self.engine.name(), self.engine_because));
        if let Some(state) = &self.module_state {
            lines.put("state", state.line(style));
            if let Some(proof) = self.proof.as_ref().filter(|_| state.state == "placed") {
                lines.put("proof", proof.line(style));
            }
            if let Some(line) = state.argument_line(style).filter(|_| state.has_to_believe()) {
                lines.put("argument", line);
            }
            lines
                .put("redirects", if state.hooks.is_empty() { "none yet".to_string() } else { state.hooks.join(", ") });
        }
        if let Some(state) = &self.notify_state {
            lines.put("state", state.line(style));
        }
        lines.put("driver", self.driver.as_ref().map_or("none is loaded".to_string(), DriverView::line));
        for note in &self.notes {
            lines.put("note", note);
        }
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
    use crate::engine::module::raise::fake::Setup;
    use crate::engine::module::sources;
    use crate::engine::notify::fake::{self, FakeSupervisor};
    use crate::explain::Explain;
    use crate::host::fake::RELEASE;
    use crate::proof::fake::{cannot, misses, only_enters, translates};

    fn up(host: &Host, kernel: &dyn Kernel, module: &raise::Options) -> Result<Done, Error> {
        super::up(host, kernel, &Options { module: module.clone(), ..Options::default() })
    }

    #[test]
    fn up_builds_loads_and_reports() {
        let s = Setup::new();
        let done = up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
        assert_eq!((done.result, done.engine), ("loaded", Engine::Module));
        assert!(done.build_seconds.is_some() && done.driver.as_ref().is_some_and(|d| d.era == Some(1)));
        assert_eq!(done.module_state.as_ref().map(|s| s.state.as_str()), Some("armed"));
        let text = done.text(Style::Plain);
        assert!(
            text.starts_with("MPU is up") && text.contains("os_find_ns_pid") && text.contains("550.163.01"),
            "{text}"
        );
        let record = Record::read(&s.fake.host()).expect("a record");
        assert!(record.since > 1_700_000_000 && record.module.ends_with(format!("{RELEASE}/mpu.ko")));
    }

    /// `mpu up` of a module that says `placed`, with somebody to ask the driver.
    fn asked(s: &Setup, kernel: &FakeKernel<'_>, ask: Ask) -> Result<Done, Error> {
        super::up(&s.fake.host(), kernel, &Options { module: s.options(), ask: Some(ask), ..Options::default() })
    }

    #[test]
    fn armed_is_said_of_what_was_seen_and_placed_of_what_was_not() {
        let s = Setup::new();
        let kernel = FakeKernel::taking(&s.fake, state::PLACED);
        let done = asked(&s, &kernel, translates).expect("up");
        assert_eq!((done.result, done.exit()), ("loaded", Exit::Ok));
        crate::report::documented::check("`mpu up --json`", &crate::report::json(&done));
        let text = done.text(Style::Plain);
        assert!(text.contains("armed: callers in containers are translated"), "{text}");

        let s = Setup::new();
        let kernel = FakeKernel::taking(&s.fake, state::PLACED);
        let done = asked(&s, &kernel, cannot).expect("up");
        let text = done.text(Style::Plain);
        assert_eq!((done.exit(), done.proof.map(|proof| proof.result)), (Exit::Ok, Some("not_asked")));
        assert!(
            !text.contains("armed") && text.contains("placed: ") && text.contains("no translation was seen yet"),
            "{text}"
        );
        let again = asked(&s, &kernel, translates).expect("up");
        assert_eq!(
            (again.result, again.module_state.map(|state| state.state)),
            ("already_up", Some("armed".to_string()))
        );
    }

    #[test]
    fn a_module_that_the_drivers_calls_do_not_come_to_does_not_stay() {
        let s = Setup::new();
        let kernel = FakeKernel::taking(&s.fake, state::PLACED);
        let error = asked(&s, &kernel, misses).expect_err("another entry");
        assert_eq!((error.code(), error.exit(), kernel.calls.get()), ("driver_entry", Exit::Failed, (1, 1)));
        assert!(error.to_string().contains("nvidia_unlocked_ioctl") && !state::is_loaded(&s.fake.host()), "{error}");
        assert_eq!(Record::read(&s.fake.host()), None);
    }

    #[test]
    fn calls_that_come_and_are_not_translated_are_a_failure_that_can_be_looked_into() {
        let s = Setup::new();
        let kernel = FakeKernel::taking(&s.fake, state::PLACED);
        let done = asked(&s, &kernel, only_enters).expect("up");
        assert_eq!((done.exit(), state::is_loaded(&s.fake.host())), (Exit::Failed, true));
        assert!(done.text(Style::Plain).contains("nothing was translated"));
    }

    #[test]
    fn who_is_not_root_hears_that_before_anything_else() {
        let s = Setup::new();
        s.fake.write("/proc/self/status", "CapEff:\t0000000000000000\n");
        s.fake.write(&format!("/boot/config-{RELEASE}"), "CONFIG_MODULES=y\n");
        s.fake.write(crate::config::FILE, "nonsense");
        for engine in [None, Some(Asked::Module), Some(Asked::Notify)] {
            let options = Options { engine, module: s.options(), ..Options::default() };
            let error = super::up(&s.fake.host(), &s.kernel(), &options).expect_err("not root");
            assert_eq!((error.code(), error.exit()), ("not_root", Exit::Refused));
            assert!(error.to_string().starts_with("this needs root"), "{error}");
        }
        // Root in a container that may load no module: the notify engine needs no module.
        s.fake.remove(crate::config::FILE);
        let _supervisor = supervised(&s, &["a"]);
        s.fake.write("/proc/self/status", "CapEff:\t0000000000200000\n");
        let up = |engine| {
            let options = Options { engine, module: s.options(), ..Options::default() };
            super::up(&s.fake.host(), &s.kernel(), &options).map_err(|error| error.code())
        };
        assert_eq!(up(Some(Asked::Notify)).expect("up").result, "already_up");
        assert_eq!(up(Some(Asked::Module)).map(|_| ()), Err("not_root"), "not what the kernel lacks");
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
    fn a_refused_redirect_leaves_nothing_loaded_and_no_record() {
        let s = Setup::new();
        let kernel = FakeKernel::taking(&s.fake, "version=0.1.0\nstate=refused\nrefused=nvidia_unlocked_ioctl:16\n");
        let error = up(&s.fake.host(), &kernel, &s.options()).expect_err("refused");
        assert_eq!((error.code(), kernel.calls.get()), ("redirect_refused", (1, 1)));
        assert_eq!(Record::read(&s.fake.host()), None);
    }

    #[test]
    fn building_alone_needs_no_rights_and_loads_nothing() {
        let s = Setup::new();
        s.fake.write("/proc/self/status", "CapEff:\t0000000000000000\n");
        s.fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
        let kernel = s.kernel();
        let options = raise::Options { build_only: true, ..s.options() };
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
        let options = raise::Options { module: Some(path.clone()), source: None, ..s.options() };
        let done = up(&s.fake.host(), &s.kernel(), &options).expect("up");
        assert_eq!((done.module, done.build_seconds), (Some(path), None));
    }

    #[test]
    fn the_policy_goes_in_with_the_module_and_a_bad_one_loads_nothing() {
        let s = Setup::new();
        s.fake.write(crate::config::FILE, "[[rule]]\nsees = \"host\"\ncgroup = \"/monitors\"\n");
        up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
        assert_eq!(s.fake.host().text("/sys/module/mpu/parameters/policy").as_deref(), Some("host /monitors"));

        let s = Setup::new();
        s.fake.write(crate::config::FILE, "[[rule]]\nsees = \"host\"\n");
        let kernel = s.kernel();
        let error = up(&s.fake.host(), &kernel, &s.options()).expect_err("malformed");
        assert_eq!((error.code(), kernel.calls.get()), ("config_malformed", (0, 0)));
    }

    #[test]
    fn another_version_is_replaced_when_asked() {
        let s = Setup::new();
        s.fake.write("/sys/module/mpu/parameters/state", "version=0.0.9\nstate=armed\n");
        s.fake.tool(
            "make",
            r#"for a; do case $a in M=*) for k in mpu mpu_next; do echo m >"${a#M=}/$k.ko"; done;; esac; done"#,
        );
        let options = raise::Options { replace: true, ..s.options() };
        let done = up(&s.fake.host(), &s.kernel(), &options).expect("replaced");
        assert_eq!(
            (done.result, done.replaced_version.as_deref(), done.gapless),
            ("replaced", Some("0.0.9"), Some(true))
        );
        assert!(done.text(Style::Plain).contains("in the place of 0.0.9, without a gap"));
        let kernel = s.kernel();
        let done = up(&s.fake.host(), &kernel, &options).expect("nothing to replace");
        assert_eq!((done.result, kernel.calls.get()), ("already_up", (0, 0)));
    }

    /// A host whose kernel has listeners, and a supervisor on it.
    fn supervised(setup: &Setup, containers: &[&str]) -> FakeSupervisor {
        setup.fake.can_notify();
        FakeSupervisor::on(&setup.fake, fake::state(containers))
    }

    #[test]
    fn a_locked_kernel_gets_the_other_engine_and_the_reason() {
        let s = Setup::new();
        let _supervisor = supervised(&s, &["a"]);
        s.fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
        let done = up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
        assert_eq!((done.engine, done.result), (Engine::Notify, "already_up"));
        let text = done.text(Style::Plain);
        assert!(text.contains("notify (the module cannot be had: the kernel is locked down (integrity)"), "{text}");
        assert!(text.contains("note         for the module: ") && text.contains("1 now, by 1 listeners"), "{text}");
    }

    #[test]
    fn a_signature_that_the_kernel_does_not_trust_is_a_reason_too_unless_the_module_was_asked_for() {
        let s = Setup::new();
        let _supervisor = supervised(&s, &[]);
        let refusing = || {
            let kernel = s.kernel();
            kernel.inserts.borrow_mut().push(libc::EKEYREJECTED);
            kernel
        };
        let done = up(&s.fake.host(), &refusing(), &s.options()).expect("up");
        assert_eq!(done.engine, Engine::Notify);
        assert!(done.engine_because.contains("the kernel does not take"), "{}", done.engine_because);
        let asked = Options { engine: Some(Asked::Module), module: s.options(), ..Options::default() };
        let error = super::up(&s.fake.host(), &refusing(), &asked).expect_err("asked for");
        assert_eq!(error.exit(), Exit::Refused);
    }

    #[test]
    fn a_build_that_fails_is_a_failure_and_no_reason_for_the_other_engine() {
        let s = Setup::new();
        let supervisor = supervised(&s, &[]);
        s.fake.tool("make", "echo No space left on device >&2; exit 2");
        let kernel = s.kernel();
        let error = up(&s.fake.host(), &kernel, &s.options()).expect_err("not built");
        assert_eq!((error.code(), error.exit(), kernel.calls.get()), ("build_failed", Exit::Failed, (0, 0)));
        assert!(supervisor.told.lock().expect("ours").is_empty());
        let asked = Options { engine: Some(Asked::Notify), module: s.options(), ..Options::default() };
        assert_eq!(super::up(&s.fake.host(), &kernel, &asked).expect("up").engine, Engine::Notify, "it needs no build");
    }

    #[test]
    fn who_switches_has_one_engine_afterwards() {
        let s = Setup::new();
        let supervisor = supervised(&s, &["a"]);
        let done = up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
        assert_eq!((done.engine, done.result), (Engine::Module, "loaded"));
        assert!(done.notes[0].contains("is retired, and ends with the last of 1 containers"), "{:?}", done.notes);
        assert_eq!(*supervisor.told.lock().expect("ours"), ["retire\n"]);
        let again = up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
        assert_eq!((again.result, again.notes.len()), ("already_up", 0), "retired it is left alone");

        let asked = Options { engine: Some(Asked::Notify), module: s.options(), ..Options::default() };
        let done = super::up(&s.fake.host(), &s.kernel(), &asked).expect("up");
        assert_eq!((done.result, state::is_loaded(&s.fake.host())), ("resumed", false));
        assert!(done.notes[0].starts_with("the module was unloaded"), "{:?}", done.notes);
    }

    #[test]
    fn an_unknown_driver_is_no_reason_to_refuse_unless_the_configuration_says_so() {
        let s = Setup::new();
        s.fake.write("/sys/module/nvidia/version", "700.10\n");
        let done = up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
        assert_eq!((done.result, done.exit()), ("loaded", Exit::Ok));
        let text = done.text(Style::Plain);
        assert!(text.contains("700.10; newer than the table of this MPU, which ends with branch 595"), "{text}");

        let s = Setup::new();
        s.fake.write("/sys/module/nvidia/version", "700.10\n");
        s.fake.write(crate::config::FILE, "drivers = \"known\"\n");
        let before = s.fake.snapshot();
        let error = up(&s.fake.host(), &s.kernel(), &s.options()).expect_err("unknown");
        assert_eq!((error.code(), error.exit()), ("unknown_driver", Exit::NotReady));
        assert!(error.fix().contains("drivers = \"known\""), "{}", error.fix());
        assert_eq!(s.fake.snapshot(), before);
        let options = Options { module: s.options(), any_driver: true, ..Options::default() };
        let done = super::up(&s.fake.host(), &s.kernel(), &options).expect("up");
        assert!(done.driver.is_some_and(|driver| !driver.known));
    }
}
