//! The agent: keeps MPU up on a node, as the entry point of a Kubernetes DaemonSet.
//!
//! Each round waits for the driver, starts the engine and measures. The pod mounts the node's directories at their own
//! paths, so the rest of this crate works there unchanged. [`election`] picks the agent that manages the engine.
//! [`note`] answers the kubelet's probes. [`reporter`] makes Events in the cluster.
//!
//! The agent starts only the module. A supervisor in a pod would end with the pod, and the containers' calls would
//! fail. The agent does not touch the node's own notify engine, nor a newer module that no agent loaded.

pub mod election;
pub mod label;
pub mod note;
pub mod reporter;

use crate::cluster::Cluster;
use election::{ElectionError, LeaveResult, Registration};
use mpu_engine::module::checks::Unfit;
use mpu_engine::module::load::Kernel;
use mpu_engine::module::raise;
use mpu_engine::module::record::Record;
use mpu_engine::module::state::{self, Phase, State};
use mpu_engine::up::{self, How};
use mpu_engine::{Engine, apply, down, observe};
use mpu_host::config::pods::Pods;
use mpu_host::config::{Config, EngineSetting, rules};
use mpu_host::driver::Driver;
use mpu_host::explain::{Explain, Explained, chain};
use mpu_host::host::{CAP_SYS_MODULE, Host};
use mpu_host::kernel_release::numbers;
use note::{Activity, Measurement, Note, uptime};
use reporter::{Reason, Reporter};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The environment variable with the agent's name. The pod's specification sets it, also for the commands of probes.
pub const ID_VARIABLE: &str = "MPU_AGENT_ID";

/// Options of `mpu agent run`.
#[derive(Debug, Clone, clap::Args)]
pub struct AgentOptions {
    /// The agent's name among those of the node: the pod's uid
    #[arg(long, env = ID_VARIABLE)]
    pub id: String,

    /// The engine of this node, unless its label mpu-project.github.io/engine names another: auto leaves a notify engine that
    /// the node has at its work, and loads the module where there is none
    #[arg(long, value_enum, default_value_t = EngineSetting::Auto)]
    pub engine: EngineSetting,

    /// Read the node's label, find the pods of rules with a label, and make Events on the node: the folder with the pod's token and ca.crt
    #[arg(long, value_name = "DIR", requires = "node", value_hint = clap::ValueHint::DirPath)]
    pub cluster: Option<PathBuf>,

    /// The node's name in the cluster
    #[arg(long, env = "MPU_NODE_NAME", value_name = "NAME")]
    pub node: Option<String>,

    /// Time between two rounds of the loop
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=300))]
    pub interval: u64,

    /// Time between two measurements while all is right
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub measure_every: u64,

    /// Leave the engine up when the last agent ends
    #[arg(long)]
    pub keep: bool,

    /// Load this module, which was built and perhaps signed before; {release} stands for the running kernel's release
    #[arg(long, value_name = "FILE.ko", value_hint = clap::ValueHint::FilePath)]
    pub module: Option<PathBuf>,

    /// Accept a driver release that this mpu does not know, even where drivers = "known" is configured
    #[arg(long, hide = true)]
    pub any_driver: bool,

    /// Sources in place of those carried.
    #[arg(skip)]
    pub source: Option<PathBuf>,

    /// Set by the signal that ends the agent.
    #[arg(skip)]
    pub stopped: Arc<AtomicBool>,
}

/// Measures whether a container gets right answers. Returns the result, and the finding as text.
pub type Measure<'a> = &'a dyn Fn(&Host) -> Result<(bool, String), Box<dyn Explain>>;

/// Writes a line to the log.
pub type Log<'a> = &'a dyn Fn(&str);

/// The longest pause after a failure, in seconds. The pause doubles up to it.
const MAX_RETRY_PAUSE: u64 = 300;
/// Seconds until the next measurement after a failed or wrong one.
const REMEASURE_AFTER: u64 = 10;
/// Seconds between two log lines while the agent waits for the driver.
const WAIT_LOG_INTERVAL: u64 = 60;
/// How long the last agent tries to unload an engine in use.
const UNLOAD_TIMEOUT: Duration = Duration::from_secs(30);

pub struct Agent<'a> {
    host: &'a Host,
    kernel: &'a dyn Kernel,
    measure: Measure<'a>,
    log: Log<'a>,
    options: AgentOptions,
    registration: Registration,
    /// Whether another agent was the leader when that was last known.
    is_standby: bool,
    driver: Option<String>,
    last_measurement: Option<Measurement>,
    failures: u32,
    last_failure: String,
    next_try: u64,
    last_logged: (String, u64),
    reporter: Option<Reporter<'a>>,
}

/// The state of the engine after an agent left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinalState {
    /// Unloaded, or none was up.
    Down,
    /// Up, because of `--keep` or because this agent did not load it.
    Kept,
    /// Up, and this other agent manages it.
    ManagedBy(String),
}

impl<'a> Agent<'a> {
    /// Registers among the node's agents.
    pub fn new(
        host: &'a Host,
        kernel: &'a dyn Kernel,
        measure: Measure<'a>,
        log: Log<'a>,
        cluster: Option<&'a dyn Cluster>,
        options: AgentOptions,
    ) -> Result<Agent<'a>, Explained> {
        if !host.has_capability(CAP_SYS_MODULE) {
            return Err(Unfit::NotRoot.into());
        }
        let registration = Registration::register(host, &options.id, Arc::clone(&options.stopped))?;
        let last_logged = (String::new(), 0);
        Ok(Agent {
            host,
            kernel,
            measure,
            log,
            options,
            registration,
            is_standby: false,
            driver: None,
            last_measurement: None,
            failures: 0,
            last_failure: String::new(),
            next_try: 0,
            last_logged,
            reporter: cluster.map(|cluster| Reporter::new(cluster, log).with_pods(Pods::of(host))),
        })
    }

    /// Runs rounds until `wait`, which gets the time to the next round, returns true.
    pub fn run(mut self, wait: &mut dyn FnMut(Duration) -> bool) -> Result<FinalState, Explained> {
        loop {
            self.round()?;
            if wait(Duration::from_secs(self.options.interval)) {
                return self.leave();
            }
        }
    }

    /// One round. Fails only if the agents' folder cannot be used. Other errors are logged, and the next round tries
    /// again.
    pub fn round(&mut self) -> Result<(), Explained> {
        let driver = Driver::loaded(self.host).map(|driver| driver.version);
        if driver != self.driver {
            // The measurements are about another driver.
            (self.last_measurement, self.failures, self.next_try) = (None, 0, 0);
            self.driver = driver;
        }
        let leader = self.registration.other_leader();
        if let Ok(other) = &leader {
            self.is_standby = other.is_some();
        }
        let (doing, text) = match (leader, self.driver.clone()) {
            (Err(ElectionError::Held(_)), _) if self.options.stopped.load(Relaxed) => return Ok(()),
            // The process that holds the gate may be stuck for a while.
            (Err(error @ ElectionError::Held(_)), _) => (Activity::Failed, error_with_fix(&error)),
            (Err(error), _) => return Err(error.into()),
            (Ok(Some(other)), _) => (Activity::StandsBy, format!("standing by: agent {other} manages the engine")),
            (Ok(None), None) => {
                // A wrong label is reported at once, not when the driver comes.
                self.configured_engine();
                (Activity::WaitsForDriver, "waiting for the NVIDIA driver to be loaded on this node".to_string())
            }
            (Ok(None), Some(version)) => self.maintain_engine(&version)?,
        };
        self.log_change(doing, &text);
        let can_measure = matches!(doing, Activity::Watches | Activity::StandsBy | Activity::LeavesToNode);
        if can_measure && self.driver.is_some() {
            // The first client of a GPU waits for it to start, and the kubelet's liveness probe must not fail meanwhile.
            self.write_note(doing, &text)?;
            self.measure_if_due();
        }
        self.write_note(doing, &text)?;
        self.report(doing, &text);
        Ok(())
    }

    /// Reports to the cluster whether this node is served. An agent on standby reports nothing.
    fn report(&mut self, doing: Activity, text: &str) {
        let Some(reporter) = self.reporter.as_mut().filter(|_| !self.is_standby) else { return };
        let state = match (doing, &self.last_measurement) {
            (Activity::WaitsForDriver, _) => Some((Reason::WaitsForDriver, text)),
            (Activity::Failed, _) => Some((Reason::EngineFailed, text)),
            (_, Some(seen)) if seen.right => Some((Reason::Served, seen.because.as_str())),
            (_, Some(seen)) => Some((Reason::NotRight, seen.because.as_str())),
            (_, None) => None,
        };
        reporter.report(uptime(self.host), state);
    }

    /// The engine that is configured for this node.
    fn configured_engine(&mut self) -> EngineSetting {
        let label = self.reporter.as_mut().and_then(|reporter| reporter.engine(uptime(self.host)));
        label.unwrap_or(self.options.engine)
    }

    /// Describes an engine that is up and that this agent must not touch. Fails if the node needs its own notify engine
    /// and has none.
    fn node_engine(&mut self) -> Result<Option<String>, Explained> {
        let engine = self.configured_engine();
        if let Some(text) = newer_node_module(self.host).filter(|_| engine != EngineSetting::Notify) {
            return Ok(Some(text));
        }
        if engine == EngineSetting::Module {
            return Ok(None);
        }
        // A retired engine serves its old containers only.
        let is_up = observe::observe(Engine::Notify, self.host)?.is_some_and(|engine| engine.state == Phase::Armed);
        // A loaded module takes precedence over a notify engine that is tried beside it.
        let belongs_to_node = is_up && (engine == EngineSetting::Notify || state::read(self.host)?.is_none());
        match belongs_to_node || engine == EngineSetting::Auto {
            true => Ok(belongs_to_node.then(|| "the node's own notify engine is up".to_string())),
            false => Err(ElectionError::NoNotifyEngine.into()),
        }
    }

    /// Starts the engine if it is not up, and applies the node's rules.
    fn maintain_engine(&mut self, driver: &str) -> Result<(Activity, String), Explained> {
        let now = uptime(self.host);
        if now < self.next_try {
            return Ok((Activity::Failed, self.last_failure.clone()));
        }
        self.update_pods();
        let raised = match self.node_engine() {
            Ok(Some(text)) => self.apply_labelled_rules().map(|changed| (changed, Activity::LeavesToNode, text)),
            Ok(None) => {
                self.write_note(Activity::Raises, "raising the engine")?;
                self.raise().map(|(changed, text)| (changed, Activity::Watches, text))
            }
            Err(error) => Err(error),
        };
        match raised {
            Ok((changed, doing, text)) => {
                if changed {
                    self.last_measurement = None;
                }
                (self.failures, self.next_try) = (0, 0);
                let unmatched = Config::of(self.host).ok().and_then(|config| rules::without_pods(self.host, &config));
                let unmatched = unmatched.map_or(String::new(), |why| format!("; {why}"));
                Ok((doing, format!("{text}; driver {driver}{unmatched}")))
            }
            Err(error) => {
                let pause = (self.options.interval << self.failures.min(10)).min(MAX_RETRY_PAUSE);
                self.failures += 1;
                self.next_try = uptime(self.host) + pause;
                self.last_measurement = None;
                self.last_failure = format!("the engine is not up: {}", error_with_fix(&*error));
                Ok((Activity::Failed, self.last_failure.clone()))
            }
        }
    }

    /// Starts the engine, or replaces another version. Returns whether anything changed, and a description.
    fn raise(&self) -> Result<(bool, String), Explained> {
        let release = self.host.release().unwrap_or_default();
        let of_release = |path: &PathBuf| PathBuf::from(path.to_string_lossy().replace("{release}", &release));
        let module = raise::ModuleOptions {
            module: self.options.module.as_ref().map(of_release),
            source: self.options.source.clone(),
            replace: true,
            ..raise::ModuleOptions::default()
        };
        let config = Config::of(self.host)?;
        if config.engine == EngineSetting::Notify {
            return Err(ElectionError::NotifyInPod.into());
        }
        // No `probe`: the agent measures by itself.
        let options = up::UpOptions {
            engine: Some(EngineSetting::Module),
            module,
            any_driver: self.options.any_driver,
            by_agent: true,
            keeper: None,
            probe: None,
        };
        let done = up::up(self.host, self.kernel, &options)?;
        if done.raised.how != How::AlreadyUp {
            let took =
                done.raised.replaced.map_or(String::new(), |old| format!(", in the place of version {}", old.version));
            (self.log)(&format!("the engine came up after {:.1} s{took}", done.took.as_secs_f64()));
        }
        let changed = done.raised.how != How::AlreadyUp || self.apply_changed_rules(&config)?;
        Ok((changed, format!("MPU {} is up, by {}", env!("CARGO_PKG_VERSION"), done.choice.engine.name())))
    }

    /// Applies the rules if a running engine has other ones. Returns whether it did.
    fn apply_changed_rules(&self, config: &Config) -> Result<bool, Explained> {
        let compiled: Vec<String> = rules::of_host(self.host, config).lines().map(str::to_string).collect();
        if apply::holds(self.host, config, &compiled) != Some(false) {
            return Ok(false);
        }
        let rules = apply::apply(self.host)?.rules;
        (self.log)(&format!("the engine has new rules: {rules}"));
        Ok(true)
    }

    /// The same for the node's own engine, but only if a rule has a label: only an agent can find the pods of a label.
    fn apply_labelled_rules(&self) -> Result<bool, Explained> {
        let config = Config::of(self.host)?;
        if rules::labels(&config).next().is_none() { Ok(false) } else { self.apply_changed_rules(&config) }
    }

    /// Finds the pods of rules with a label, and writes them to the node's file.
    fn update_pods(&mut self) {
        // `raise` reports an invalid configuration.
        let (host, Ok(config)) = (self.host, Config::of(self.host)) else { return };
        if rules::labels(&config).next().is_none() {
            return Pods::remove(host);
        }
        let pods = self.reporter.as_mut().and_then(|reporter| reporter.pods(uptime(host), rules::labels(&config)));
        if let Some(pods) = pods.filter(|pods| Pods::of(host).as_ref() != Some(pods))
            && let Err(error) = pods.write(host)
        {
            (self.log)(&format!("cannot write {}: {error}", mpu_host::config::pods::FILE));
        }
    }

    fn measure_if_due(&mut self) {
        let now = uptime(self.host);
        let pause = |seen: &Measurement| {
            if seen.right { self.options.measure_every } else { REMEASURE_AFTER.min(self.options.measure_every) }
        };
        if self.last_measurement.as_ref().is_some_and(|seen| now < seen.at + pause(seen)) {
            return;
        }
        let (right, because) = match (self.measure)(self.host) {
            Ok(found) => found,
            Err(error) => (false, error_with_fix(error.as_ref())),
        };
        if self.last_measurement.as_ref().is_none_or(|seen| (seen.right, &seen.because) != (right, &because)) {
            (self.log)(&because);
        }
        self.last_measurement = Some(Measurement { at: uptime(self.host), right, because });
    }

    fn log_change(&mut self, doing: Activity, text: &str) {
        let now = uptime(self.host);
        let waits = doing == Activity::WaitsForDriver && now >= self.last_logged.1 + WAIT_LOG_INTERVAL;
        if self.last_logged.0 != text || waits {
            (self.log)(text);
            self.last_logged = (text.to_string(), now);
        }
    }

    fn write_note(&self, doing: Activity, text: &str) -> Result<(), Explained> {
        let (version, text) = (env!("CARGO_PKG_VERSION").to_string(), text.to_string());
        let note = Note { at: uptime(self.host), version, doing, words: text, seen: self.last_measurement.clone() };
        Ok(note.write(self.host, &self.options.id)?)
    }

    /// Deregisters, and takes the engine down if this is the last agent.
    fn leave(self) -> Result<FinalState, Explained> {
        let Agent { host, kernel, options, registration, .. } = self;
        Note::remove(host, &options.id);
        // An engine that this agent did not raise stays up.
        let keep = options.keep || newer_node_module(host).is_some();
        let take_down = || {
            if keep {
                return Ok(());
            }
            Pods::remove(host);
            down::lower_module(host, kernel, UNLOAD_TIMEOUT).map(drop)
        };
        match registration.leave(take_down)? {
            LeaveResult::To(other) => Ok(FinalState::ManagedBy(other)),
            LeaveResult::Last(Ok(())) if keep => Ok(FinalState::Kept),
            LeaveResult::Last(taken_down) => Ok(taken_down.map(|()| FinalState::Down)?),
        }
    }
}

/// Describes a newer module that no agent loaded. The node's package, a person or kernel-module-management loaded it, and would
/// load it again. A newer module that an agent loaded is replaced: that is a rollback.
fn newer_node_module(host: &Host) -> Option<String> {
    let this = env!("CARGO_PKG_VERSION");
    let State { version, phase, .. } = state::read(host).ok()??;
    let of_an_agent = |record: Record| record.by_agent && record.version.as_ref() == Some(&version);
    let works = phase.is_placed() || phase == Phase::Waiting;
    let belongs_to_node = works && numbers(&version) > numbers(this) && !Record::read(host).is_some_and(of_an_agent);
    belongs_to_node.then(|| {
        format!("MPU {version} is up, which is newer than this agent ({this}) and was not loaded by one: it is left at its work")
    })
}

/// An error with its causes and its fix, in one line.
fn error_with_fix(error: &dyn Explain) -> String {
    format!("{} (fix: {})", chain(error), error.fix())
}

#[cfg(test)]
mod tests;
