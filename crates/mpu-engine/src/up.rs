//! Brings MPU up: chooses an engine, starts it, and stops the other one.

use super::Engine;
use super::down::lower_module;
use super::module::checks;
use super::module::error::ModuleError;
use super::module::foreign::{self, Foreign};
use super::module::load::{self, Kernel};
use super::module::load_error::LoadError;
use super::module::plan::{self, ModuleOptions};
use super::module::proof::{self, ProbeFn, Proof};
pub use super::module::raise::How;
use super::module::raise::{PreviousModule, Raised, raise};
use super::module::record::Record;
use super::module::state::{self, Phase};
use super::module::swap::Replaced;
use mpu_host::config::{Config, Drivers, EngineSetting, rules};
use mpu_host::driver::Driver;
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::explain::Explained;
use mpu_host::host::{CAP_SYS_MODULE, Host};
use mpu_notify::client;
use mpu_notify::error::NotifyError;
use mpu_notify::raise::{self as notify, Lowered};
use mpu_notify::systemd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Options of `mpu up`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct UpOptions {
    /// The engine to use; by default the one that /etc/mpu/config.toml names
    #[arg(long, value_enum)]
    pub engine: Option<EngineSetting>,

    #[command(flatten)]
    pub module: ModuleOptions,

    /// Accept a driver release that this mpu does not know, even where drivers = "known" is configured
    #[arg(long, hide = true)]
    pub any_driver: bool,

    /// Whether the caller is an agent in a pod.
    #[arg(skip)]
    pub by_agent: bool,

    /// The executable of the notify engine's keeper, if not this one.
    #[arg(skip)]
    pub keeper: Option<PathBuf>,

    /// Probes whether the module translates; none if the caller probes itself.
    #[arg(skip)]
    pub probe: Option<ProbeFn>,
}

/// A note on the engine that was not chosen, if it was up, or on the plugin that gives containers the notify engine's listener.
#[derive(Debug)]
pub enum Note {
    SupervisorLowered(Lowered),
    SupervisorStays(NotifyError),
    ModuleUnloaded,
    ModuleStays(ModuleError),
    /// systemd starts the container engine's plugin, as configured.
    PluginStarted,
    /// The plugin is configured, and systemd or the unit is missing.
    NoPlugin,
    PluginStays(NotifyError),
    ForeignModule(Foreign),
}

/// The choice of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub engine: Engine,
    /// The reason, as half a sentence.
    pub why: String,
    /// What a better engine would need.
    pub better: Option<String>,
}

impl Choice {
    fn of(engine: Engine, why: &str) -> Choice {
        Choice { engine, why: why.to_string(), better: None }
    }

    fn notify_instead_of_module(unfit: &dyn Explain) -> Choice {
        let why = format!("the module cannot be used: {unfit}");
        Choice { engine: Engine::Notify, why, better: Some(unfit.fix()) }
    }
}

/// The plan of `mpu up` on a host.
#[derive(Debug)]
pub struct Plan {
    pub choice: Choice,
    requested: EngineSetting,
    /// The plan for the module, or why it fails; none if the other engine is chosen.
    module: Option<Result<plan::Plan, ModuleError>>,
    options: ModuleOptions,
    driver: Option<Driver>,
}

/// Makes the plan. The module is preferred, because it serves every container, also running ones.
///
/// # Errors
/// If the state of a running module cannot be read.
pub fn preflight(host: &Host, config: &Config, options: &UpOptions) -> Result<Plan, Explained> {
    let driver = Driver::loaded(host);
    let requested = options.engine.unwrap_or(config.engine);
    let options = ModuleOptions {
        policy: rules::of_host(host, config),
        drivers: if options.any_driver { Drivers::Any } else { config.drivers },
        modules: config.modules,
        redirect: config.redirect,
        ..options.module.clone()
    };
    let has_module_options = options.build_only || options.module.is_some();
    let may_choose = requested == EngineSetting::Auto && !has_module_options;
    let module = match (requested != EngineSetting::Notify).then(|| plan::preflight(host, &options, driver.as_ref())) {
        Some(Err(error @ ModuleError::State(_))) if may_choose && host.has_capability(CAP_SYS_MODULE) => {
            return Err(error.into());
        }
        module => module,
    };
    let unfit = module.as_ref().filter(|_| may_choose).and_then(|plan| plan::unfit(host, plan));
    let choice = match (unfit, requested) {
        (_, EngineSetting::Notify) => Choice::of(Engine::Notify, "asked for"),
        (_, EngineSetting::Module) => Choice::of(Engine::Module, "asked for"),
        _ if has_module_options => Choice::of(Engine::Module, "the options are for it"),
        (None, _) => Choice::of(Engine::Module, "this host can run it, and it serves every container"),
        // If neither fits, the module's error names what is missing.
        (Some(_), _) if notify::unfit(host).is_some() => {
            Choice::of(Engine::Module, "the only one whose needs this host can meet")
        }
        (Some(error), _) => Choice::notify_instead_of_module(error),
    };
    let module = module.filter(|_| choice.engine == Engine::Module);
    Ok(Plan { choice, requested, module, options, driver })
}

/// The choice after the kernel refused a module on a host that seemed fit, because of a signature that only the kernel can judge. None
/// for another reason, if the module was requested, or if the other engine does not fit either.
pub(crate) fn after_refusal(
    host: &Host,
    requested: EngineSetting,
    options: &ModuleOptions,
    error: &ModuleError,
) -> Option<Choice> {
    let is_refused = match error.innermost() {
        ModuleError::Load(LoadError::Insert { .. }) => error.exit() == Exit::Refused,
        // The kernel refused a module that was built elsewhere.
        ModuleError::Unfit(_) => matches!(error, ModuleError::After { .. }),
        _ => false,
    };
    let may = requested == EngineSetting::Auto && options.module.is_none() && notify::unfit(host).is_none();
    (is_refused && may).then(|| Choice::notify_instead_of_module(error))
}

/// The result.
#[derive(Debug)]
pub struct Up {
    pub choice: Choice,
    pub notes: Vec<Note>,
    /// The result for the engine; for the notify engine, also what it replaced.
    pub raised: Raised,
    /// Whether the module was seen to translate, if it was probed.
    pub proof: Option<Proof>,
    pub notify_state: Option<client::State>,
    pub driver: Option<Driver>,
    pub took: Duration,
}

/// How long the driver may take for the proof of translation: the first client of a GPU waits for it to start.
const PROBE_TIMEOUT: Duration = Duration::from_secs(120);

/// How long to wait for callers inside a module that is not needed any more.
const UNLOAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Brings MPU up.
pub fn up(host: &Host, kernel: &dyn Kernel, options: &UpOptions) -> Result<Up, Explained> {
    let began = Instant::now();
    if !options.module.build_only {
        checks::root(host)?;
    }
    let config = Config::of(host)?;
    let plan = preflight(host, &config, options)?;
    let Plan { choice, requested, module, options: module_options, driver } = plan;
    let notify = notify::SupervisorOptions {
        replace: module_options.replace,
        drivers: module_options.drivers,
        policy: module_options.policy.clone(),
        cpu_percent: config.notify_cpu_percent,
        program: options.keeper.clone(),
    };
    let mut up = match module.transpose()? {
        None => raise_notify_engine(host, kernel, &notify, choice, driver)?,
        Some(plan) => {
            let previous = PreviousModule::of(host, &plan);
            let raised = raise(host, kernel, plan, &module_options, driver.as_ref());
            match raised.and_then(|raised| prove_translation(host, kernel, raised, options.probe)) {
                Ok((raised, proof)) => finish_module(host, raised, proof, options.by_agent, choice, driver),
                Err(error) => {
                    let now = previous.as_ref().and_then(|previous| previous.restore(host, kernel, driver.as_ref()));
                    // A working engine is not replaced by the other one.
                    let instead = after_refusal(host, requested, &module_options, &error).filter(|_| now.is_none());
                    let error = if previous.is_some() { error.replacing(now) } else { error };
                    raise_notify_engine(host, kernel, &notify, instead.ok_or(error)?, driver)?
                }
            }
        }
    };
    if up.choice.engine == Engine::Notify && config.nri {
        up.notes.push(start_plugin(host));
    }
    up.took = began.elapsed();
    Ok(up)
}

pub const PLUGIN: &str = "mpu-nri.service";

/// Starts the plugin, or finds it running.
fn start_plugin(host: &Host) -> Note {
    match systemd::has_unit(host, PLUGIN) {
        false => Note::NoPlugin,
        true => systemd::start(host, PLUGIN).map_or_else(Note::PluginStays, |()| Note::PluginStarted),
    }
}

/// Records the raised module, and retires the supervisor.
fn finish_module(
    host: &Host,
    raised: Raised,
    proof: Option<Proof>,
    by_agent: bool,
    choice: Choice,
    driver: Option<Driver>,
) -> Up {
    if let (How::Loaded | How::Replaced, Some(module), Some(state)) = (raised.how, &raised.module, &raised.state) {
        let record = Record::now(module, raised.origin, &state.version);
        Record { passed_over: raised.passed_over.clone(), by_agent, ..record }.write(host);
    }
    let notes = (raised.how != How::Built).then(|| retire_notify(host)).flatten().into_iter().collect();
    Up { choice, notes, raised, proof, notify_state: None, driver, took: Duration::ZERO }
}

/// Probes the module. One that was loaded now and gets no calls is unloaded.
fn prove_translation(
    host: &Host,
    kernel: &dyn Kernel,
    mut raised: Raised,
    probe: Option<ProbeFn>,
) -> Result<(Raised, Option<Proof>), ModuleError> {
    let Some(probe) = probe else { return Ok((raised, None)) };
    let Some(state) = raised.state.take() else { return Ok((raised, None)) };
    let (state, proof) = proof::prove(host, state, probe, PROBE_TIMEOUT)?;
    if proof == Some(Proof::NotEntered) {
        if raised.how != How::AlreadyUp {
            // Report this reason, whatever the unloading gives.
            let _ = load::remove(host, kernel, state.instance, UNLOAD_TIMEOUT, "mpu up");
        }
        return Err(LoadError::NotEntered { hooks: state.hooks.join(", ") }.into());
    }
    Ok((Raised { state: Some(state), ..raised }, proof))
}

/// Raises the notify engine, and unloads the module.
fn raise_notify_engine(
    host: &Host,
    kernel: &dyn Kernel,
    options: &notify::SupervisorOptions,
    choice: Choice,
    driver: Option<Driver>,
) -> Result<Up, Explained> {
    use notify::Raised::{Already, Replaced, Resumed, Started};
    load::check_is_running_kernel(host, kernel)?;
    let (how, state, replaced) = match notify::raise(host, options, driver.as_ref())? {
        Started(state) => (How::Started, state, None),
        Resumed(state) => (How::Resumed, state, None),
        // Calls waited for the new supervisor.
        Replaced(state, version) => (How::Replaced, state, Some(self::Replaced { version, gapless: true })),
        Already(state) => (How::AlreadyUp, state, None),
    };
    let raised = Raised { how, replaced, ..Raised::default() };
    let notes = unload_module(host, kernel).into_iter().collect();
    let mut up = Up { choice, notes, raised, proof: None, notify_state: Some(state), driver, took: Duration::ZERO };
    // If the module was preferred, the choice already has the reason.
    let foreign = foreign::find(host);
    if !foreign.loaded.is_empty() && up.choice.better.is_none() {
        up.notes.push(Note::ForeignModule(foreign));
    }
    Ok(up)
}

/// Retires the supervisor after the module came up. Both at once are harmless, so a failure is only a note.
fn retire_notify(host: &Host) -> Option<Note> {
    let Ok(Some(state)) = client::state(host) else { return None };
    if state.state != Phase::Armed {
        return None;
    }
    match notify::lower(host) {
        Ok(lowered) => lowered.map(Note::SupervisorLowered),
        Err(error) => Some(Note::SupervisorStays(error)),
    }
}

fn unload_module(host: &Host, kernel: &dyn Kernel) -> Option<Note> {
    state::is_loaded(host).then(|| match lower_module(host, kernel, UNLOAD_TIMEOUT) {
        Ok(_) => Note::ModuleUnloaded,
        Err(error) => Note::ModuleStays(error),
    })
}

#[cfg(test)]
mod tests;
