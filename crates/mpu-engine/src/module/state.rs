//! Reads the loaded module's state, lines of `key=value`. Unknown keys are ignored: `mpu` may be older than the module. Format 1 has
//! neither `placed` nor any line below `inside`: its `armed` only means that the redirects are placed.

use super::holders::HolderInfo;
use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, Facts};
use mpu_host::host::Host;
pub use mpu_host::phase::Phase;
use schemars::JsonSchema;
use serde::Serialize;
use std::cmp::Reverse;
use std::io;
use std::path::{Path, PathBuf};

/// One of the two names under which the module can be loaded: kmod/mpu_peer.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instance {
    /// `mpu`: the permanent name.
    Mpu,
    /// `mpu_next`: only while one version takes over from another.
    MpuNext,
}

impl Instance {
    pub const ALL: [Instance; 2] = [Instance::Mpu, Instance::MpuNext];

    pub fn name(self) -> &'static str {
        match self {
            Instance::Mpu => "mpu",
            Instance::MpuNext => "mpu_next",
        }
    }

    pub fn other(self) -> Instance {
        match self {
            Instance::Mpu => Instance::MpuNext,
            Instance::MpuNext => Instance::Mpu,
        }
    }

    pub fn parameter(self, name: &str) -> PathBuf {
        PathBuf::from("/sys/module").join(self.name()).join("parameters").join(name)
    }

    pub fn presence(self, host: &Host) -> Presence {
        let is_live =
            || host.text(Path::new("/sys/module").join(self.name()).join("initstate")).as_deref() == Some("live");
        // While a module comes or goes, its folder has no files for a moment. It is not live then.
        match self.has_our_state(host) || is_live() && self.has_our_state(host) {
            true => Presence::Mpu,
            false if is_live() => Presence::Foreign,
            false => Presence::Absent,
        }
    }

    pub fn is_loaded(self, host: &Host) -> bool {
        self.presence(host) == Presence::Mpu
    }

    /// All our releases have a file `state` with these two lines. Only root can read it.
    fn has_our_state(self, host: &Host) -> bool {
        match std::fs::read_to_string(host.at(self.parameter("state"))) {
            Ok(text) => ["version=", "state="].iter().all(|key| text.lines().any(|line| line.starts_with(key))),
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        }
    }
}

/// The owner of a loaded module with one of our names. Other projects use these names, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Absent,
    /// Our module, of any release.
    Mpu,
    /// Another project's. It is never unloaded here.
    Foreign,
}

/// A redirect that could not be placed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Refusal {
    /// The driver's function.
    pub symbol: String,
    /// The kernel's answer.
    pub errno: i32,
}

/// Which copy of a control's argument decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ArgumentView")]
pub struct Argument {
    /// `driver`: its own copy, which no caller can change. `claimed`: the caller's memory, as the probe in the driver could not be placed;
    /// a hostile container that changes it at the right moment then sees the driver's own answer.
    #[schemars(extend("enum" = ["driver", "claimed"]))]
    pub source: &'static str,
    /// With `claimed`, why the probe could not be placed.
    pub errno: Option<i32>,
}

/// The module's state, in reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "StateView")]
pub struct State {
    /// `armed`: a translation was seen since the redirects were placed. `placed`: they stand, and none was seen yet. `waiting`: no driver
    /// is loaded. `refused`: a redirect could not be placed. `retired`: the redirects are removed, and the module waits to be unloaded.
    /// `stuck`: the kernel did not remove a redirect, and only a reboot helps.
    #[serde(rename = "state")]
    #[schemars(with = "String")]
    pub phase: Phase,
    /// The module's version.
    pub version: String,
    /// Functions of the driver that are redirected.
    pub hooks: Vec<String>,
    /// Which copy of a control's argument decides; null while nothing is placed, and of a module before format 2.
    pub argument: Option<Argument>,
    /// Calls of containers that came to the redirect since it was placed; null of a module before format 2.
    pub entered: Option<u64>,
    /// Translations since the redirects were placed; null of a module before format 2.
    pub translated: Option<u64>,
    /// Callers inside a redirected function.
    pub inside: u64,
    /// Those of them that stay there, the longest first, sixteen at most.
    pub holders: Vec<HolderInfo>,
    /// Callers whose task died inside the driver since the module was loaded; each is a crash of the driver.
    pub orphans: u64,
    /// The redirect that could not be placed.
    pub refused: Option<Refusal>,
    #[serde(skip)]
    pub instance: Instance,
    #[serde(skip)]
    pub abi: String,
    #[serde(skip)]
    pub driver: Option<String>,
    /// The way to redirect, `direct` or `ipmodify`; none while nothing is placed, and for an older module.
    #[serde(skip)]
    pub redirect: Option<String>,
    /// The results of the header probes at the module's build; none for an older module.
    #[serde(skip)]
    pub probes: Option<String>,
    #[serde(skip)]
    holder_lines: Vec<String>,
}

impl State {
    /// Fills `holders`, which are empty before. Looks up their processes and containers, so only reports call it.
    pub fn with_holders(mut self, host: &Host) -> State {
        self.holders = self.holder_lines.iter().filter_map(|line| HolderInfo::parse(host, line)).collect();
        self.holders.sort_by_key(|holder| Reverse(holder.milliseconds));
        self
    }
}

/// The contents of `counters`, in the module's order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    pub translated: Vec<(String, u64)>,
    /// Calls not translated in the usual way, by reason.
    pub passed: Vec<(String, u64)>,
}

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("cannot write {}", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    #[error("{} lacks the line {line}=", path.display())]
    Malformed { path: PathBuf, line: &'static str },
}

impl Explain for StateError {
    fn facts(&self) -> Facts {
        let (code, source) = match self {
            StateError::Unreadable { source, .. } => ("state_unreadable", Some(source)),
            StateError::Unwritable { source, .. } => ("policy_unwritable", Some(source)),
            StateError::Malformed { .. } => ("state_malformed", None),
        };
        let (exit, fix) = match self {
            _ if source.is_some_and(|source| source.kind() == io::ErrorKind::PermissionDenied) => {
                (Exit::Refused, "run it as root: only root can read the state")
            }
            StateError::Unwritable { .. } => (
                Exit::Failed,
                "the loaded module is older than this mpu, or refused the rules: `dmesg | tail` says; `mpu up --replace`",
            ),
            _ => (Exit::Failed, "`mpu down`, then `mpu up` again; `dmesg | tail` shows the kernel's messages"),
        };
        (code, exit, fix.to_string())
    }
}

/// Whether our module is loaded under either name.
pub fn is_loaded(host: &Host) -> bool {
    Instance::ALL.iter().any(|instance| instance.is_loaded(host))
}

/// Reads `state` of the working instance; none if no module is loaded.
pub fn read(host: &Host) -> Result<Option<State>, StateError> {
    let mut retired = None;
    for instance in Instance::ALL {
        match read_instance(host, instance)? {
            Some(state) if state.phase == Phase::Retired => retired = Some(state),
            Some(state) => return Ok(Some(state)),
            None => {}
        }
    }
    Ok(retired)
}

/// Reads `state` of one instance; none if it is not loaded.
pub fn read_instance(host: &Host, instance: Instance) -> Result<Option<State>, StateError> {
    if !instance.is_loaded(host) {
        return Ok(None);
    }
    let path = instance.parameter("state");
    let text = read_text(host, &path)?;
    parse(instance, &text).map(Some).map_err(|line| StateError::Malformed { path, line })
}

/// Reads `counters` of the working instance; none if no module is loaded.
pub fn read_counters(host: &Host) -> Result<Option<Counters>, StateError> {
    let Some(state) = read(host)? else { return Ok(None) };
    read_text(host, &state.instance.parameter("counters")).map(|text| Some(parse_counters(&text)))
}

/// Reads the policy of the working instance, one rule per line; none if no module is loaded.
pub fn read_policy(host: &Host) -> Result<Option<Vec<String>>, StateError> {
    let Some(state) = read(host)? else { return Ok(None) };
    let text = read_text(host, &state.instance.parameter("policy"))?;
    Ok(Some(text.lines().filter(|line| !line.is_empty()).map(str::to_string).collect()))
}

/// Replaces the policy of the working instance. False if no module is loaded.
pub fn write_policy(host: &Host, rules: &str) -> Result<bool, StateError> {
    let Some(state) = read(host)? else { return Ok(false) };
    let path = state.instance.parameter("policy");
    std::fs::write(host.at(&path), format!("{rules}\n")).map_err(|source| StateError::Unwritable { path, source })?;
    Ok(true)
}

fn read_text(host: &Host, path: &PathBuf) -> Result<String, StateError> {
    std::fs::read_to_string(host.at(path)).map_err(|source| StateError::Unreadable { path: path.clone(), source })
}

/// Parses the text of `state`. The error names the missing line.
fn parse(instance: Instance, text: &str) -> Result<State, &'static str> {
    let get = |key: &str| {
        text.lines().find_map(|line| line.split_once('=').filter(|(k, _)| *k == key).map(|(_, v)| v.trim()))
    };
    let number = |key: &str| get(key).and_then(|value| value.parse().ok());
    let phase: Phase = get("state").ok_or("state")?.to_string().into();
    let refused = match phase {
        Phase::Refused => Some(parse_refusal(get("refused").ok_or("refused")?)),
        _ => None,
    };
    Ok(State {
        phase,
        version: get("version").ok_or("version")?.to_string(),
        hooks: get("hooks")
            .unwrap_or("")
            .split(',')
            .filter(|h| !h.is_empty() && *h != "-")
            .map(str::to_string)
            .collect(),
        argument: get("argument").and_then(parse_argument),
        entered: number("entered"),
        translated: number("translated"),
        inside: number("inside").unwrap_or(0),
        holders: Vec::new(),
        holder_lines: text.lines().filter_map(|line| line.strip_prefix("holder=")).map(str::to_string).collect(),
        orphans: number("orphans").unwrap_or(0),
        refused,
        instance,
        abi: get("abi").unwrap_or("1").to_string(),
        driver: get("driver").filter(|v| !v.is_empty() && *v != "-").map(str::to_string),
        redirect: get("redirect").map(str::to_string),
        probes: get("probes").map(str::to_string),
    })
}

/// Parses `driver`, or `claimed:errno`.
fn parse_argument(text: &str) -> Option<Argument> {
    let (source, errno) = match text.split_once(':') {
        None if text == "driver" => ("driver", None),
        Some(("claimed", errno)) => ("claimed", Some(errno.trim().parse::<i32>().unwrap_or(0).abs())),
        _ => return None,
    };
    Some(Argument { source, errno })
}

/// Parses `symbol:errno`, the errno with either sign.
fn parse_refusal(text: &str) -> Refusal {
    let (symbol, errno) = text.rsplit_once(':').unwrap_or((text, "0"));
    Refusal { symbol: symbol.to_string(), errno: errno.trim().parse::<i32>().unwrap_or(0).abs() }
}

/// Parses the text of `counters`. A line of another form is a newer module's.
fn parse_counters(text: &str) -> Counters {
    let mut counters = Counters::default();
    for line in text.lines() {
        let Some((key, value)) = line.split_once('=') else { continue };
        let Ok(value) = value.trim().parse() else { continue };
        if let Some(control) = key.strip_prefix("translated.") {
            counters.translated.push((control.to_string(), value));
        } else if let Some(reason) = key.strip_prefix("passed.") {
            counters.passed.push((reason.to_string(), value));
        }
    }
    counters
}

pub fn explain_reason(name: &str) -> Option<&'static str> {
    mpu_core::Reason::ALL.iter().find(|reason| reason.name() == name).map(|reason| reason.explanation())
}

/// A state of format 1.
#[cfg(any(test, feature = "fake"))]
pub const ARMED: &str = "version=0.1.0\nabi=1\nstate=armed\ndriver=550.163.01\n\
    hooks=nvidia_unlocked_ioctl,os_memcpy_from_user,os_memcpy_to_user,os_find_ns_pid\ninside=0\n";

/// A state of format 2 before any call.
#[cfg(any(test, feature = "fake"))]
pub const PLACED: &str = "version=0.1.0\nabi=2\nstate=placed\ndriver=550.163.01\n\
    hooks=nvidia_unlocked_ioctl,os_memcpy_from_user,os_memcpy_to_user,os_find_ns_pid\nargument=driver\nentered=0\ntranslated=0\n\
    inside=0\norphans=0\n";

/// The same with two callers inside, one of them still copying its argument.
#[cfg(any(test, feature = "fake"))]
pub const HELD: &str = "version=0.1.0\nabi=2\nstate=armed\nhooks=nvidia_unlocked_ioctl,rm_ioctl\nargument=claimed:-2\nentered=9\n\
    translated=3\ninside=2\norphans=1\nholder=4242 4243 0x00000283 12345\nholder=70 70 0x00000000 160\n";

#[cfg(test)]
mod tests;
