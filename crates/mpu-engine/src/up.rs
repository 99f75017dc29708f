//! Brings MPU up: picks an engine, has it raised, and sees that the other one goes.
//!
//! Owns the order, and what became of it as a value. Says nothing: the words are the command's. How an engine is raised is that
//! engine's business.

use super::down::lower_module;
use super::error::EngineError;
use super::module::before::{replacing, Before};
use super::module::checks;
use super::module::error::ModuleError;
use super::module::foreign::{self, Foreign};
use super::module::load::{self, Kernel};
use super::module::load_error::LoadError;
use super::module::prebuilt::PassedOver;
use super::module::proof::{self, Ask, Proof};
use super::module::raise::{self as module, Raised};
use super::module::record::Record;
use super::module::state::{self, State};
use super::module::swap::Replaced;
use super::module::which::Origin;
use super::{after_refusal, choose, Choice, Engine};
use mpu_host::config::{rules, Asked, Config, Drivers};
use mpu_host::driver::Driver;
use mpu_host::host::Host;
use mpu_host::phase::Phase;
use mpu_notify::client;
use mpu_notify::error::NotifyError;
use mpu_notify::raise::{self as notify, Lowered};
use mpu_notify::systemd;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Options of `mpu up`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct UpOptions {
    /// The engine to use; by default the one that /etc/mpu/config.toml names
    #[arg(long, value_enum)]
    pub engine: Option<Asked>,

    #[command(flatten)]
    pub module: module::ModuleOptions,

    /// Accept a driver release that this mpu does not know, even where drivers = "known" is configured
    #[arg(long, hide = true)]
    pub any_driver: bool,

    /// Whether an agent asks, in a pod.
    #[arg(skip)]
    pub by_agent: bool,

    /// The executable that keeps the notify engine's supervisor, if not this one.
    #[arg(skip)]
    pub keeper: Option<PathBuf>,

    /// How the module that is up is asked whether it translates; none if somebody else asks.
    #[arg(skip)]
    pub ask: Option<Ask>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    Loaded,
    Started,
    /// It was retired, and takes containers again.
    Resumed,
    Replaced,
    AlreadyUp,
    Built,
}

impl How {
    pub const ALL: [How; 6] = [How::Loaded, How::Started, How::Resumed, How::Replaced, How::AlreadyUp, How::Built];
}

/// What else became of something: of the engine that was not chosen, if it was up, and of the plugin that brings the notify engine containers.
#[derive(Debug)]
pub enum Note {
    SupervisorLowered(Lowered),
    SupervisorStays(NotifyError),
    ModuleUnloaded,
    ModuleStays(ModuleError),
    /// The container engine's plugin was asked of systemd, as the configuration wants it.
    PluginStarted,
    /// The configuration wants it, and systemd is not there, or has no such unit.
    NoPlugin,
    PluginStays(NotifyError),
    ForeignModule(Foreign),
}

#[derive(Debug)]
pub struct Up {
    pub how: How,
    pub choice: Choice,
    pub notes: Vec<Note>,
    pub module: Option<PathBuf>,
    /// Where that comes from; none if it is not known.
    pub origin: Option<Origin>,
    /// Module files that are there, and could not be used.
    pub passed_over: Vec<PassedOver>,
    /// How long building it took, if it was built now.
    pub built_in: Option<Duration>,
    pub replaced: Option<Replaced>,
    pub module_state: Option<State>,
    /// Whether it was seen to translate, where somebody asked.
    pub proof: Option<Proof>,
    pub notify_state: Option<client::State>,
    pub driver: Option<Driver>,
    pub took: Duration,
}

/// How long the driver may take for the question whether the module translates: the first client of a GPU waits for it
/// to start.
const ASK_PATIENCE: Duration = Duration::from_secs(120);

/// How long callers inside a module that is not needed any more are waited for.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn up(host: &Host, kernel: &dyn Kernel, options: &UpOptions) -> Result<Up, EngineError> {
    let began = Instant::now();
    if !options.module.build_only {
        checks::root(host)?;
    }
    let config = Config::of(host)?;
    let driver = Driver::loaded(host);
    let asked = options.engine.unwrap_or(config.engine);
    let drivers = if options.any_driver { Drivers::Any } else { config.drivers };
    let policy = rules::compile(&config);
    let module = module::ModuleOptions {
        policy,
        drivers,
        modules: config.modules,
        redirect: config.redirect,
        ..options.module.clone()
    };
    let choice = choose(host, asked, &module, driver.as_ref())?;
    let notify = notify::SupervisorOptions {
        replace: module.replace,
        drivers,
        policy: module.policy.clone(),
        cpu_percent: config.notify_cpu_percent,
        program: options.keeper.clone(),
    };
    let mut up = match choice.engine {
        Engine::Notify => by_notify(host, kernel, &notify, choice, driver)?,
        Engine::Module => {
            let before = module.replace.then(|| Before::of(host, driver.as_ref())).flatten();
            let raised = module::raise(host, kernel, &module, driver.as_ref());
            match raised.and_then(|raised| proven(host, kernel, raised, options.ask)) {
                Ok((raised, proof)) => by_module(host, raised, proof, options.by_agent, choice, driver),
                Err(error) => {
                    let now = before.as_ref().and_then(|before| before.restored(host, kernel, driver.as_ref()));
                    // One engine that works does not go for the other.
                    let instead = after_refusal(host, asked, &module, &error).filter(|_| now.is_none());
                    let error = if before.is_some() { replacing(error, now) } else { error };
                    by_notify(host, kernel, &notify, instead.ok_or(error)?, driver)?
                }
            }
        }
    };
    if up.choice.engine == Engine::Notify && config.nri {
        up.notes.push(plugin(host));
    }
    up.took = began.elapsed();
    Ok(up)
}

pub const PLUGIN: &str = "mpu-nri.service";

/// Has it started, or finds that it is up.
fn plugin(host: &Host) -> Note {
    match systemd::has(host, PLUGIN) {
        false => Note::NoPlugin,
        true => systemd::start(host, PLUGIN).map_or_else(Note::PluginStays, |()| Note::PluginStarted),
    }
}

impl Up {
    fn new(how: How, choice: Choice, driver: Option<Driver>) -> Up {
        Up {
            how,
            choice,
            notes: Vec::new(),
            module: None,
            origin: None,
            passed_over: Vec::new(),
            built_in: None,
            replaced: None,
            module_state: None,
            proof: None,
            notify_state: None,
            driver,
            took: Duration::ZERO,
        }
    }
}

/// Puts the module which was raised on record, and sees that the supervisor goes.
fn by_module(
    host: &Host,
    raised: Raised,
    proof: Option<Proof>,
    by_agent: bool,
    choice: Choice,
    driver: Option<Driver>,
) -> Up {
    let up = Up { proof, ..Up::new(How::Loaded, choice, driver) };
    let mut up = match raised {
        Raised::Built { module, built_in } => {
            return Up { how: How::Built, module: Some(module), built_in, ..up };
        }
        Raised::Already { state } => {
            let record = Record::read(host);
            let origin = record.as_ref().and_then(|record| record.origin);
            let module = record.map(|record| record.module);
            Up { how: How::AlreadyUp, module, origin, module_state: Some(state), ..up }
        }
        Raised::Loaded { state, module, origin, passed_over, built_in, replaced } => {
            let record = Record::now(&module, Some(origin), &state.version);
            Record { passed_over: passed_over.clone(), by_agent, ..record }.write(host);
            let how = if replaced.is_some() { How::Replaced } else { How::Loaded };
            let (module, origin, module_state) = (Some(module), Some(origin), Some(state));
            Up { how, module, origin, passed_over, built_in, replaced, module_state, ..up }
        }
    };
    up.notes.extend(without_notify(host));
    up
}

/// Has the module asked whether it translates. One that was loaded now and gets no calls does not stay.
fn proven(
    host: &Host,
    kernel: &dyn Kernel,
    raised: Raised,
    ask: Option<Ask>,
) -> Result<(Raised, Option<Proof>), ModuleError> {
    let Some(ask) = ask else { return Ok((raised, None)) };
    let prove = |state: State| proof::prove(host, state, ask, ASK_PATIENCE);
    let not_entered = |state: &State| LoadError::NotEntered { hooks: state.hooks.join(", ") };
    Ok(match raised {
        Raised::Built { .. } => (raised, None),
        Raised::Already { state } => match prove(state)? {
            (state, Some(Proof::NotEntered)) => return Err(not_entered(&state).into()),
            (state, proof) => (Raised::Already { state }, proof),
        },
        Raised::Loaded { state, module, origin, passed_over, built_in, replaced } => match prove(state)? {
            (state, Some(Proof::NotEntered)) => {
                let error = not_entered(&state);
                // The reason is what the caller must hear, whatever becomes of this.
                let _ = load::remove(host, kernel, state.instance, PATIENCE, "mpu up");
                return Err(error.into());
            }
            (state, proof) => (Raised::Loaded { state, module, origin, passed_over, built_in, replaced }, proof),
        },
    })
}

/// Raises the notify engine, and sees that the module goes.
fn by_notify(
    host: &Host,
    kernel: &dyn Kernel,
    options: &notify::SupervisorOptions,
    choice: Choice,
    driver: Option<Driver>,
) -> Result<Up, EngineError> {
    use notify::Raised::{Already, Replaced, Resumed, Started};
    load::same_host(host, kernel)?;
    let (how, state, replaced) = match notify::raise(host, options, driver.as_ref())? {
        Started(state) => (How::Started, state, None),
        Resumed(state) => (How::Resumed, state, None),
        // Calls waited for the new one.
        Replaced(state, version) => (How::Replaced, state, Some(self::Replaced { version, gapless: true })),
        Already(state) => (How::AlreadyUp, state, None),
    };
    let mut up = Up { replaced, notify_state: Some(state), ..Up::new(how, choice, driver) };
    up.notes.extend(without_module(host, kernel));
    // Where the module was wanted, the choice says it.
    let foreign = foreign::find(host);
    if !foreign.loaded.is_empty() && up.choice.better.is_none() {
        up.notes.push(Note::ForeignModule(foreign));
    }
    Ok(up)
}

/// The module is up: a supervisor is not needed any more. Both at once do no harm, so its failure is none of ours.
fn without_notify(host: &Host) -> Option<Note> {
    let Ok(Some(state)) = client::state(host) else { return None };
    if state.state != Phase::Armed {
        return None;
    }
    match notify::lower(host) {
        Ok(lowered) => lowered.map(Note::SupervisorLowered),
        Err(error) => Some(Note::SupervisorStays(error)),
    }
}

fn without_module(host: &Host, kernel: &dyn Kernel) -> Option<Note> {
    state::is_loaded(host).then(|| match lower_module(host, kernel, PATIENCE) {
        Ok(_) => Note::ModuleUnloaded,
        Err(error) => Note::ModuleStays(error),
    })
}

#[cfg(test)]
mod tests;
