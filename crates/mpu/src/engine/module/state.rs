//! What the loaded module says about itself: the two files below `/sys/module/mpu/parameters`.
//!
//! Owns their format. Both are lines of `key=value`; keys that this version does not know are kept or ignored, never
//! an error, so that an older `mpu` can read a newer module.

use crate::exit::Exit;
use crate::explain::Explain;
use crate::host::Host;
use std::io;
use std::path::PathBuf;

/// One of the two names under which the module can be loaded: kmod/mpu_peer.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instance {
    /// `mpu`: where it stays.
    Mpu,
    /// `mpu_next`: for a moment, while one version takes over from another.
    MpuNext,
}

impl Instance {
    /// Both.
    pub const ALL: [Instance; 2] = [Instance::Mpu, Instance::MpuNext];

    /// The module's name.
    pub fn name(self) -> &'static str {
        match self {
            Instance::Mpu => "mpu",
            Instance::MpuNext => "mpu_next",
        }
    }

    /// The other name.
    pub fn other(self) -> Instance {
        match self {
            Instance::Mpu => Instance::MpuNext,
            Instance::MpuNext => Instance::Mpu,
        }
    }

    /// One of its files below `/sys/module`.
    pub fn parameter(self, name: &str) -> PathBuf {
        PathBuf::from("/sys/module").join(self.name()).join("parameters").join(name)
    }

    /// Whether it is loaded.
    pub fn is_loaded(self, host: &Host) -> bool {
        host.at("/sys/module").join(self.name()).is_dir()
    }
}

/// What the module is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Redirects are in place: callers are translated.
    Armed,
    /// No driver is loaded; the redirects will be placed when one comes.
    Waiting,
    /// Another instance has taken over; this one waits to be unloaded.
    Retired,
    /// A redirect could not be placed, so none is: the symbol and why, as an errno.
    Refused {
        /// The driver's function.
        symbol: String,
        /// The kernel's answer, positive.
        errno: i32,
    },
    /// A word that this version of `mpu` does not know.
    Other(String),
}

/// The contents of `state`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Whose they are.
    pub instance: Instance,
    /// The module's version.
    pub version: String,
    /// Version of these files' format.
    pub abi: String,
    /// What it is doing.
    pub phase: Phase,
    /// The driver that it is attached to.
    pub driver: Option<String>,
    /// Functions of the driver that are redirected now.
    pub hooks: Vec<String>,
    /// Callers inside a redirected function now.
    pub inside: u64,
}

/// The contents of `counters`, in the module's order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Answers translated, by control.
    pub translated: Vec<(String, u64)>,
    /// Calls not translated in the usual way, by reason.
    pub passed: Vec<(String, u64)>,
}

/// Why the module's state is not known.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The policy cannot be written.
    #[error("cannot write {}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file has not what it must have.
    #[error("{} lacks the line {line}=", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The missing key.
        line: &'static str,
    },
}

impl Explain for StateError {
    fn code(&self) -> &'static str {
        match self {
            StateError::Unreadable { .. } => "state_unreadable",
            StateError::Unwritable { .. } => "policy_unwritable",
            StateError::Malformed { .. } => "state_malformed",
        }
    }

    fn exit(&self) -> Exit {
        match self {
            StateError::Unreadable { source, .. } | StateError::Unwritable { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Exit::Refused
            }
            _ => Exit::Failed,
        }
    }

    fn fix(&self) -> String {
        match self {
            StateError::Unreadable { source, .. } | StateError::Unwritable { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                "run it as root: the state is root's to read".to_string()
            }
            StateError::Unwritable { .. } => {
                "the loaded module is older than this mpu, or refused the rules: `dmesg | tail` says; `mpu up --replace`"
                    .to_string()
            }
            _ => "another module named mpu may be loaded: look at `modinfo mpu` and /sys/module/mpu".to_string(),
        }
    }
}

/// Whether the module is loaded, under either name.
pub fn is_loaded(host: &Host) -> bool {
    Instance::ALL.iter().any(|instance| instance.is_loaded(host))
}

/// Reads `state` of the instance that is at work; none when no module is loaded.
pub fn read(host: &Host) -> Result<Option<State>, StateError> {
    let mut retired = None;
    for instance in Instance::ALL {
        match read_of(host, instance)? {
            Some(state) if state.phase == Phase::Retired => retired = Some(state),
            Some(state) => return Ok(Some(state)),
            None => {}
        }
    }
    Ok(retired)
}

/// Reads `state` of one instance; none when it is not loaded.
pub fn read_of(host: &Host, instance: Instance) -> Result<Option<State>, StateError> {
    if !instance.is_loaded(host) {
        return Ok(None);
    }
    let path = instance.parameter("state");
    let text = read_text(host, &path)?;
    parse(instance, &text).map(Some).map_err(|line| StateError::Malformed { path, line })
}

/// Reads `counters` of the instance that is at work; none when no module is loaded.
pub fn read_counters(host: &Host) -> Result<Option<Counters>, StateError> {
    let Some(state) = read(host)? else { return Ok(None) };
    read_text(host, &state.instance.parameter("counters")).map(|text| Some(parse_counters(&text)))
}

/// Reads the policy of the instance that is at work, a rule a line; none when no module is loaded.
pub fn read_policy(host: &Host) -> Result<Option<Vec<String>>, StateError> {
    let Some(state) = read(host)? else { return Ok(None) };
    let text = read_text(host, &state.instance.parameter("policy"))?;
    Ok(Some(text.lines().filter(|line| !line.is_empty()).map(str::to_string).collect()))
}

/// Gives the instance that is at work another policy; whether there was one to give it to.
pub fn write_policy(host: &Host, rules: &str) -> Result<bool, StateError> {
    let Some(state) = read(host)? else { return Ok(false) };
    let path = state.instance.parameter("policy");
    std::fs::write(host.at(&path), format!("{rules}\n")).map_err(|source| StateError::Unwritable { path, source })?;
    Ok(true)
}

fn read_text(host: &Host, path: &PathBuf) -> Result<String, StateError> {
    std::fs::read_to_string(host.at(path)).map_err(|source| StateError::Unreadable { path: path.clone(), source })
}

/// Reads the text of `state`, or names the line that it lacks.
fn parse(instance: Instance, text: &str) -> Result<State, &'static str> {
    let get = |key: &str| {
        text.lines().find_map(|line| line.split_once('=').filter(|(k, _)| *k == key).map(|(_, v)| v.trim()))
    };
    let phase = match get("state").ok_or("state")? {
        "armed" => Phase::Armed,
        "waiting" => Phase::Waiting,
        "retired" => Phase::Retired,
        "refused" => refusal(get("refused").ok_or("refused")?),
        other => Phase::Other(other.to_string()),
    };
    Ok(State {
        instance,
        version: get("version").ok_or("version")?.to_string(),
        abi: get("abi").unwrap_or("1").to_string(),
        phase,
        driver: get("driver").filter(|v| !v.is_empty() && *v != "-").map(str::to_string),
        hooks: get("hooks")
            .unwrap_or("")
            .split(',')
            .filter(|h| !h.is_empty() && *h != "-")
            .map(str::to_string)
            .collect(),
        inside: get("inside").and_then(|v| v.parse().ok()).unwrap_or(0),
    })
}

/// `symbol:errno`, the errno with either sign.
fn refusal(text: &str) -> Phase {
    let (symbol, errno) = text.rsplit_once(':').unwrap_or((text, "0"));
    Phase::Refused { symbol: symbol.to_string(), errno: errno.trim().parse::<i32>().unwrap_or(0).abs() }
}

/// Reads the text of `counters`. A line that is neither kind belongs to a newer module.
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

/// What a counted reason means, in one sentence.
pub fn explain_reason(name: &str) -> Option<&'static str> {
    mpu_core::Reason::ALL.iter().find(|reason| reason.name() == name).map(|reason| reason.explanation())
}

#[cfg(test)]
pub(crate) const ARMED: &str = "version=0.1.0\nabi=1\nstate=armed\ndriver=550.163.01\n\
    hooks=nvidia_unlocked_ioctl,os_memcpy_from_user,os_memcpy_to_user,os_find_ns_pid\ninside=0\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;

    #[test]
    fn an_armed_module_is_read() {
        let state = parse(Instance::Mpu, ARMED).expect("a state");
        assert_eq!(state.phase, Phase::Armed);
        assert_eq!(
            (state.version.as_str(), state.abi.as_str(), state.driver.as_deref()),
            ("0.1.0", "1", Some("550.163.01"))
        );
        assert_eq!((state.hooks.len(), state.inside), (4, 0));
    }

    #[test]
    fn a_waiting_module_has_no_driver_and_no_hooks() {
        let state =
            parse(Instance::Mpu, "version=0.1.0\nabi=1\nstate=waiting\ndriver=-\nhooks=\ninside=0\n").expect("a state");
        assert_eq!((state.phase, state.driver, state.hooks.len()), (Phase::Waiting, None, 0));
    }

    #[test]
    fn a_refusal_names_symbol_and_errno() {
        let refused =
            |text: &str| match parse(Instance::Mpu, &format!("version=0.1.0\nstate=refused\nrefused={text}\n"))
                .expect("a state")
                .phase
            {
                Phase::Refused { symbol, errno } => (symbol, errno),
                other => panic!("{other:?}"),
            };
        assert_eq!(refused("os_find_ns_pid:-16"), ("os_find_ns_pid".to_string(), 16));
        assert_eq!(refused("os_is_init_ns:2"), ("os_is_init_ns".to_string(), 2));
    }

    #[test]
    fn missing_lines_are_named() {
        assert_eq!(parse(Instance::Mpu, ""), Err("state"));
        assert_eq!(parse(Instance::Mpu, "state=armed\n"), Err("version"));
        assert_eq!(parse(Instance::Mpu, "version=1\nstate=refused\n"), Err("refused"));
    }

    #[test]
    fn a_newer_modules_words_are_kept() {
        let state = parse(Instance::Mpu, "version=9\nstate=resting\nmood=good\n").expect("a state");
        assert_eq!(state.phase, Phase::Other("resting".to_string()));
    }

    #[test]
    fn counters_keep_the_modules_order() {
        let text =
            "translated.GPU_GET_PIDS=7\ntranslated.GPU_GET_PID_INFO=0\npassed.unknown_size=2\nnew.kind=1\nbroken\n";
        let expect = Counters {
            translated: vec![("GPU_GET_PIDS".to_string(), 7), ("GPU_GET_PID_INFO".to_string(), 0)],
            passed: vec![("unknown_size".to_string(), 2)],
        };
        assert_eq!(parse_counters(text), expect);
    }

    #[test]
    fn every_reason_has_a_sentence() {
        for reason in mpu_core::Reason::ALL {
            assert!(explain_reason(reason.name()).is_some_and(|s| s.len() > 20), "{}", reason.name());
        }
        assert_eq!(explain_reason("made_up"), None);
    }

    #[test]
    fn a_module_that_is_not_there_is_no_error() {
        let fake = FakeHost::in_order();
        assert_eq!(read(&fake.host()).expect("no error"), None);
        fake.write("/sys/module/mpu/parameters/state", ARMED);
        assert!(read(&fake.host()).expect("no error").is_some());
        fake.write("/sys/module/mpu/parameters/state", "nonsense");
        assert_eq!(read(&fake.host()).expect_err("malformed").code(), "state_malformed");
    }
}
