//! Elects the agent of this node that manages the engine.
//!
//! `/run/mpu/agents` has one file per agent, locked while the agent lives. The kernel drops the lock, also after a
//! kill. The youngest living agent is the leader. In a rolling upgrade the new pod takes over; in a rollback the old
//! pod takes over again. The last agent to leave unloads the engine. A second lock file, `gate`, serializes
//! registration, election and leaving.

use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, Facts};
use mpu_host::host::Host;
use mpu_os::file::create_private_folder;
use mpu_os::lock::{self, HeldLock, LockError};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// On a tmpfs: a reboot clears it, and unloads the engine.
pub const AGENTS_DIR: &str = "/run/mpu/agents";

const LOCK_SUFFIX: &str = "turn";

/// How long to wait for the gate. The last agent holds it while it unloads the engine, for at most 30 s.
const GATE_TIMEOUT: Duration = Duration::from_secs(90);

/// How soon the wait for the gate ends after a signal.
const STOP_CHECK: Duration = Duration::from_secs(1);

/// Why an agent cannot register, lead or leave.
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// The id cannot be part of a file's name.
    #[error("{id:?} is not a valid agent id: use up to 100 letters, digits, '-', '_' and '.'")]
    BadId { id: String },
    /// A living agent has this id.
    #[error("an agent named {id} runs on this node already")]
    Taken { id: String },
    /// The configuration asks for the notify engine, which cannot run in a pod.
    #[error(
        "the configuration says engine = \"notify\", and a supervisor in a pod would end with the pod, and the containers' calls with it"
    )]
    NotifyInPod,
    /// The node needs its own notify engine, and has none.
    #[error("this node needs the notify engine of MPU's package, and it is not up")]
    NoNotifyEngine,
    /// Another process holds the gate.
    #[error(transparent)]
    Held(HeldLock),
    /// The folder of the agents cannot be used.
    #[error("cannot use {}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl Explain for ElectionError {
    fn facts(&self) -> Facts {
        use Exit::{Failed, Refused, Usage};
        let (code, exit, fix) = match self {
            ElectionError::BadId { .. } => ("agent_id", Usage, "pass the pod's uid as --id"),
            ElectionError::Taken { .. } => {
                ("agent_runs", Failed, "give each agent an --id of its own, such as its pod's uid")
            }
            ElectionError::NotifyInPod => {
                let fix = "install MPU's package on the node, with this configuration there, and take the node out of the DaemonSet";
                ("notify_in_pod", Failed, fix)
            }
            ElectionError::NoNotifyEngine => {
                let fix = "on the node: install MPU's package, set engine = \"notify\" in /etc/mpu/config.toml, and run mpu up; or \
                           change the node's label mpu-project.github.io/engine";
                ("no_notify_engine", Failed, fix)
            }
            ElectionError::Held(held) => return held.facts(),
            ElectionError::Io { source, .. } => {
                let is_denied = source.kind() == io::ErrorKind::PermissionDenied;
                let fix = format!("mount the node's /run/mpu, writable: agents meet in {AGENTS_DIR}");
                return ("agent_directory", if is_denied { Refused } else { Failed }, fix);
            }
        };
        (code, exit, fix.to_string())
    }
}

/// Checks that an agent's id can be part of a file's name.
pub fn check_id(id: &str) -> Result<(), ElectionError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !id.is_empty() && id.len() <= 100 && id.chars().all(fits) && !id.starts_with('.') {
        true => Ok(()),
        false => Err(ElectionError::BadId { id: id.to_string() }),
    }
}

/// An agent's entry on this node. Dropping it unlocks the file, so that the agent counts as dead.
#[derive(Debug)]
pub struct Registration {
    dir: PathBuf,
    id: String,
    order: u64,
    pub(super) gate_timeout: Duration,
    stopped: Arc<AtomicBool>,
    _alive: File,
}

#[derive(Debug, PartialEq, Eq)]
pub enum LeaveResult<T> {
    /// No other agent lives. Holds the result of `last`.
    Last(T),
    /// This agent is the leader now.
    To(String),
}

impl Registration {
    /// Registers an agent. After a crash an agent with the same name regains its old order. Once `stopped` is set, only
    /// [`Registration::leave`] waits for the gate.
    pub fn register(host: &Host, id: &str, stopped: Arc<AtomicBool>) -> Result<Registration, ElectionError> {
        check_id(id)?;
        let dir = host.at(AGENTS_DIR);
        // A process that locks a file here counts as an agent.
        create_private_folder(&dir).map_err(at(&dir))?;
        let _gate = lock_gate(&dir, GATE_TIMEOUT, &stopped)?;
        let others = live_agents(&dir, None)?;
        if others.iter().any(|(_, name)| name == id) {
            return Err(ElectionError::Taken { id: id.to_string() });
        }
        let path = dir.join(format!("{id}.{LOCK_SUFFIX}"));
        let mut file = lock::open(&path).map_err(at(&path))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| at(&path)(e.into()))?;
        let mut text = String::new();
        // A file without a number was never written completely, so it has no old order.
        let saved = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
        let order = saved.unwrap_or_else(|| others.iter().map(|(order, _)| order + 1).max().unwrap_or(1));
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write!(file, "{order}")).map_err(at(&path))?;
        remove_dead_agents(&dir, &others, id);
        Ok(Registration { dir, id: id.to_string(), order, gate_timeout: GATE_TIMEOUT, stopped, _alive: file })
    }

    /// The leader, if it is not this agent.
    pub fn other_leader(&self) -> Result<Option<String>, ElectionError> {
        let _gate = lock_gate(&self.dir, self.gate_timeout, &self.stopped)?;
        let youngest = live_agents(&self.dir, Some(&self.id))?.into_iter().max();
        Ok(youngest.filter(|(order, id)| (*order, id.as_str()) > (self.order, self.id.as_str())).map(|(_, id)| id))
    }

    /// Deregisters. If no other agent lives, `last` runs before one can register.
    pub fn leave<T>(self, last: impl FnOnce() -> T) -> Result<LeaveResult<T>, ElectionError> {
        let _gate = lock_gate(&self.dir, self.gate_timeout, &AtomicBool::new(false))?;
        let others = live_agents(&self.dir, Some(&self.id))?;
        let _ = fs::remove_file(self.dir.join(format!("{}.{LOCK_SUFFIX}", self.id)));
        Ok(match others.into_iter().max() {
            Some((_, id)) => LeaveResult::To(id),
            None => LeaveResult::Last(last()),
        })
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ElectionError {
    let path = path.to_path_buf();
    move |source| ElectionError::Io { path, source }
}

/// The files of the folder with one of these endings, each with its agent's name.
fn files(dir: &Path, endings: &[&str]) -> io::Result<Vec<(PathBuf, String)>> {
    let named = |path: PathBuf| {
        let id = path.file_stem()?.to_str()?.to_string();
        path.extension().is_some_and(|e| endings.iter().any(|ending| e == *ending)).then_some((path, id))
    };
    Ok(fs::read_dir(dir)?.flatten().filter_map(|entry| named(entry.path())).collect())
}

/// Locks the gate, which keeps other agents from registering, electing and leaving. Gives up soon after `stopped` is set.
fn lock_gate(dir: &Path, timeout: Duration, stopped: &AtomicBool) -> Result<File, ElectionError> {
    let (path, began) = (dir.join("gate"), Instant::now());
    loop {
        match lock::take(&path, timeout.saturating_sub(began.elapsed()).min(STOP_CHECK)) {
            Ok(file) => return Ok(file),
            Err(LockError::Io(source)) => return Err(ElectionError::Io { path, source }),
            Err(LockError::Held(held)) => {
                let waited = began.elapsed();
                if waited >= timeout || stopped.load(Relaxed) {
                    return Err(ElectionError::Held(HeldLock { waited, ..held }));
                }
            }
        }
    }
}

/// The living agents with their order, except one. The caller must hold the gate, because this tries the agents' locks.
fn live_agents(dir: &Path, except: Option<&str>) -> Result<Vec<(u64, String)>, ElectionError> {
    let mut found = Vec::new();
    for (path, id) in
        files(dir, &[LOCK_SUFFIX]).map_err(at(dir))?.into_iter().filter(|(_, id)| Some(id.as_str()) != except)
    {
        let Ok(file) = File::open(&path) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockShared).is_err() {
            let order = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
            found.push((order, id));
        }
    }
    Ok(found)
}

/// Removes the files of dead agents.
fn remove_dead_agents(dir: &Path, live_agents: &[(u64, String)], except: &str) {
    for (path, stem) in files(dir, &[LOCK_SUFFIX, "json"]).unwrap_or_default() {
        if stem != except && !live_agents.iter().any(|(_, id)| *id == stem) {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::FakeHost;
    use std::os::unix::fs::PermissionsExt;

    fn turn(fake: &FakeHost, id: &str) -> Registration {
        Registration::register(&fake.host(), id, Arc::default()).expect("a place")
    }

    #[test]
    fn leadership_returns_when_youngest_leaves() {
        let fake = FakeHost::in_order();
        let old = turn(&fake, "old");
        assert_eq!(old.other_leader().expect("readable"), None);
        let new = turn(&fake, "new");
        assert_eq!(old.other_leader().expect("readable").as_deref(), Some("new"));
        assert_eq!(new.other_leader().expect("readable"), None);
        assert_eq!(
            new.leave(|| "gone").expect("left"),
            LeaveResult::To("old".to_string()),
            "the old one is still there"
        );
        assert_eq!(old.other_leader().expect("readable"), None);
        assert_eq!(old.leave(|| "gone").expect("left"), LeaveResult::Last("gone"));
    }

    #[test]
    fn simultaneous_leavers_have_one_last() {
        let fake = FakeHost::in_order();
        for _ in 0..20 {
            let registrations = [turn(&fake, "a"), turn(&fake, "b")];
            let left: Vec<_> = std::thread::scope(|scope| {
                let threads = registrations.map(|turn| scope.spawn(move || turn.leave(|| ()).expect("left")));
                threads.into_iter().map(|t| t.join().expect("ended")).collect()
            });
            assert_eq!(left.iter().filter(|l| **l == LeaveResult::Last(())).count(), 1, "{left:?}");
        }
    }

    #[test]
    fn killed_agent_regains_its_order() {
        let fake = FakeHost::in_order();
        let (old, new) = (turn(&fake, "old"), turn(&fake, "new"));
        drop(old); // The kernel closes the files of a killed process.
        let old = turn(&fake, "old");
        assert_eq!(
            old.other_leader().expect("readable").as_deref(),
            Some("new"),
            "it came back older than the new one"
        );
        drop(new);
        assert_eq!(old.other_leader().expect("readable"), None);
        let third = turn(&fake, "third");
        assert!(!fake.host().at(AGENTS_DIR).join("new.turn").exists(), "the dead are forgotten");
        assert_eq!(old.other_leader().expect("readable").as_deref(), Some("third"));
        drop(third);
    }

    #[test]
    fn names_are_checked_and_not_shared() {
        let fake = FakeHost::in_order();
        for id in ["", "../x", "a/b", ".hidden", &"x".repeat(101), "a b"] {
            let refused = Registration::register(&fake.host(), id, Arc::default()).expect_err("refused");
            assert_eq!(refused.code(), "agent_id", "{id:?}");
        }
        let _first = turn(&fake, "a");
        let refused = Registration::register(&fake.host(), "a", Arc::default()).expect_err("refused");
        assert_eq!(refused.code(), "agent_runs");
    }

    #[test]
    fn malformed_turn_file_has_no_order() {
        let fake = FakeHost::in_order();
        fake.write("/run/mpu/agents/a.turn", "nonsense");
        fake.write("/run/mpu/agents/b.turn", "-1");
        let (a, b) = (turn(&fake, "a"), turn(&fake, "b"));
        assert_eq!((a.order, b.order), (1, 2));
    }

    #[test]
    fn wait_for_held_gate_ends_at_timeout_or_stop() {
        let fake = FakeHost::in_order();
        let turn = turn(&fake, "a");
        // A child of another test inherits the descriptor until it executes its program.
        let _held = lock_gate(&turn.dir, Duration::from_secs(60), &turn.stopped).expect("free");
        for (timeout, is_stopped) in [(Duration::from_millis(50), false), (Duration::from_secs(600), true)] {
            let began = Instant::now();
            let error = lock_gate(&turn.dir, timeout, &AtomicBool::new(is_stopped)).expect_err("held");
            assert!(began.elapsed() < Duration::from_secs(60), "{timeout:?}");
            assert_eq!((error.code(), error.exit()), ("lock_held", Exit::Failed));
            let us = format!("gate is held by process {}", std::process::id());
            assert!(error.to_string().contains(&us), "{error}");
        }
    }

    #[test]
    fn turn_files_are_root_only() {
        let fake = FakeHost::in_order();
        // An older agent made them with this mode.
        for name in ["gate", "a.turn"] {
            fake.write(&format!("{AGENTS_DIR}/{name}"), "");
            let path = fake.host().at(AGENTS_DIR).join(name);
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("a mode");
        }
        let _turn = turn(&fake, "a");
        let mode = |name: &str| {
            fs::metadata(fake.host().at(AGENTS_DIR).join(name)).expect("a file").permissions().mode() & 0o777
        };
        assert_eq!((mode(""), mode("gate"), mode("a.turn")), (0o700, 0o600, 0o600));
    }
}
