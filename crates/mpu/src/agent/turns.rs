//! Whose turn it is: which of the agents on this node looks after the engine.
//!
//! Owns `/run/mpu/agents`: one file per agent, locked for as long as that agent lives, so that the kernel itself says
//! who is alive, also after a kill. The youngest agent that lives has the turn; that is what a rolling upgrade wants
//! (the new pod takes over, the old one steps back) and what a rollback wants (the new pod goes, the old one has the
//! turn again). The last one to leave takes the engine with it. Knows nothing of engines.

use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::Host;
use mpu_os::lock::{self, HeldLock, LockError};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where agents meet. It goes with the next boot, as the engine does.
pub const MEETING: &str = "/run/mpu/agents";

const KIND: &str = "turn";

/// How long is waited at the gate: the last agent takes the engine down behind it, and has half a minute for that.
const PATIENCE: Duration = Duration::from_secs(90);

/// Why an agent cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    /// The name cannot be a file's.
    #[error("{id:?} is not a valid agent id: use up to 100 letters, digits, '-', '_' and '.'")]
    BadId { id: String },
    /// Another agent has that name, and lives.
    #[error("an agent named {id} runs on this node already")]
    Taken { id: String },
    /// The configuration names an engine that no pod can be.
    #[error(
        "the configuration says engine = \"notify\", and a supervisor in a pod would end with the pod, and the containers' calls with it"
    )]
    NotifyInPod,
    /// The node is to have an engine of its own, and has none.
    #[error("this node is to have the notify engine of MPU's package, and none is up here")]
    NoNotifyEngine,
    /// Another process does not let the gate go.
    #[error(transparent)]
    Held(HeldLock),
    /// The meeting place cannot be used.
    #[error("cannot use {}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl Explain for TurnError {
    fn code(&self) -> &'static str {
        match self {
            TurnError::BadId { .. } => "agent_id",
            TurnError::Taken { .. } => "agent_runs",
            TurnError::NotifyInPod => "notify_in_pod",
            TurnError::NoNotifyEngine => "no_notify_engine",
            TurnError::Held(held) => held.code(),
            TurnError::Io { .. } => "agent_directory",
        }
    }

    fn exit(&self) -> Exit {
        match self {
            TurnError::BadId { .. } => Exit::Usage,
            TurnError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => Exit::Refused,
            _ => Exit::Failed,
        }
    }

    fn fix(&self) -> String {
        match self {
            TurnError::BadId { .. } => "pass the pod's uid as --id".to_string(),
            TurnError::Taken { .. } => "give each agent an --id of its own, such as its pod's uid".to_string(),
            TurnError::NotifyInPod => {
                "install MPU's package on the node, with this configuration there, and take the node out of the DaemonSet".to_string()
            }
            TurnError::NoNotifyEngine => {
                "on the node: install MPU's package, set engine = \"notify\" in /etc/mpu/config.toml, and run mpu up; or change \
                 the node's label mpu-project.github.io/engine"
                    .to_string()
            }
            TurnError::Held(held) => held.fix(),
            TurnError::Io { .. } => format!("mount the node's /run/mpu, writable: agents meet in {MEETING}"),
        }
    }
}

/// Whether an agent's name can be part of a file's.
pub fn check_id(id: &str) -> Result<(), TurnError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !id.is_empty() && id.len() <= 100 && id.chars().all(fits) && !id.starts_with('.') {
        true => Ok(()),
        false => Err(TurnError::BadId { id: id.to_string() }),
    }
}

/// A place among the agents of this node, for as long as it is held.
#[derive(Debug)]
pub struct Turn {
    dir: PathBuf,
    id: String,
    order: u64,
    _alive: File,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Left<T> {
    /// No other agent is there; this is what the last one did.
    Last(T),
    To(String),
}

impl Turn {
    /// Takes a place. An agent that comes back under its name, after a crash, has its old place again.
    pub fn take(host: &Host, id: &str) -> Result<Turn, TurnError> {
        check_id(id)?;
        let dir = host.at(MEETING);
        fs::create_dir_all(&dir).map_err(at(&dir))?;
        // A process that can open a file can lock it, and would be taken for an agent.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).map_err(at(&dir))?;
        let _gate = gate(&dir, PATIENCE)?;
        let others = living(&dir, None)?;
        if others.iter().any(|(_, name)| name == id) {
            return Err(TurnError::Taken { id: id.to_string() });
        }
        let path = dir.join(format!("{id}.{KIND}"));
        let mut file = lock::open(&path).map_err(at(&path))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| at(&path)(e.into()))?;
        let mut text = String::new();
        // What is no number was not written by an agent, or not to its end: that one never had a place.
        let kept = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
        let order = kept.unwrap_or_else(|| others.iter().map(|(order, _)| order + 1).max().unwrap_or(1));
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write!(file, "{order}")).map_err(at(&path))?;
        forget_the_dead(&dir, &others, id);
        Ok(Turn { dir, id: id.to_string(), order, _alive: file })
    }

    /// The agent that has the turn, if it is not this one.
    pub fn other(&self) -> Result<Option<String>, TurnError> {
        let _gate = gate(&self.dir, PATIENCE)?;
        let youngest = living(&self.dir, Some(&self.id))?.into_iter().max();
        Ok(youngest.filter(|(order, id)| (*order, id.as_str()) > (self.order, self.id.as_str())).map(|(_, id)| id))
    }

    /// Gives the place up. If no other agent is there, `last` is done before one can come.
    pub fn leave<T>(self, last: impl FnOnce() -> T) -> Result<Left<T>, TurnError> {
        let _gate = gate(&self.dir, PATIENCE)?;
        let others = living(&self.dir, Some(&self.id))?;
        let _ = fs::remove_file(self.dir.join(format!("{}.{KIND}", self.id)));
        Ok(match others.into_iter().max() {
            Some((_, id)) => Left::To(id),
            None => Left::Last(last()),
        })
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> TurnError {
    let path = path.to_path_buf();
    move |source| TurnError::Io { path, source }
}

/// The files of the folder with one of these endings, each with its agent's name.
fn files(dir: &Path, endings: &[&str]) -> io::Result<Vec<(PathBuf, String)>> {
    let named = |path: PathBuf| {
        let id = path.file_stem()?.to_str()?.to_string();
        path.extension().is_some_and(|e| endings.iter().any(|ending| e == *ending)).then_some((path, id))
    };
    Ok(fs::read_dir(dir)?.flatten().filter_map(|entry| named(entry.path())).collect())
}

/// Holds everybody else's coming, going and looking off.
fn gate(dir: &Path, patience: Duration) -> Result<File, TurnError> {
    let path = dir.join("gate");
    lock::take(&path, patience).map_err(|error| match error {
        LockError::Io(source) => TurnError::Io { path, source },
        LockError::Held(held) => TurnError::Held(held),
    })
}

/// The agents that live, but for one, with their order. To be called behind the gate: it tries locks.
fn living(dir: &Path, but: Option<&str>) -> Result<Vec<(u64, String)>, TurnError> {
    let mut found = Vec::new();
    for (path, id) in files(dir, &[KIND]).map_err(at(dir))?.into_iter().filter(|(_, id)| Some(id.as_str()) != but) {
        let Ok(file) = File::open(&path) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockShared).is_err() {
            let order = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
            found.push((order, id));
        }
    }
    Ok(found)
}

/// Takes away what agents that died left, so that a node does not collect them.
fn forget_the_dead(dir: &Path, living: &[(u64, String)], but: &str) {
    for (path, stem) in files(dir, &[KIND, "json"]).unwrap_or_default() {
        if stem != but && !living.iter().any(|(_, id)| *id == stem) {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::FakeHost;

    fn turn(fake: &FakeHost, id: &str) -> Turn {
        Turn::take(&fake.host(), id).expect("a place")
    }

    #[test]
    fn youngest_has_turn_and_oldest_has_it_again_when_it_goes() {
        let fake = FakeHost::in_order();
        let old = turn(&fake, "old");
        assert_eq!(old.other().expect("readable"), None);
        let new = turn(&fake, "new");
        assert_eq!(old.other().expect("readable").as_deref(), Some("new"));
        assert_eq!(new.other().expect("readable"), None);
        assert_eq!(new.leave(|| "gone").expect("left"), Left::To("old".to_string()), "the old one is still there");
        assert_eq!(old.other().expect("readable"), None);
        assert_eq!(old.leave(|| "gone").expect("left"), Left::Last("gone"));
    }

    #[test]
    fn simultaneous_leavers_have_one_last() {
        let fake = FakeHost::in_order();
        for _ in 0..20 {
            let turns = [turn(&fake, "a"), turn(&fake, "b")];
            let left: Vec<_> = std::thread::scope(|scope| {
                let threads = turns.map(|turn| scope.spawn(move || turn.leave(|| ()).expect("left")));
                threads.into_iter().map(|t| t.join().expect("ended")).collect()
            });
            assert_eq!(left.iter().filter(|l| **l == Left::Last(())).count(), 1, "{left:?}");
        }
    }

    #[test]
    fn killed_agent_regains_its_turn() {
        let fake = FakeHost::in_order();
        let (old, new) = (turn(&fake, "old"), turn(&fake, "new"));
        drop(old); // as the kernel does with the files of a killed process
        let old = turn(&fake, "old");
        assert_eq!(old.other().expect("readable").as_deref(), Some("new"), "it came back older than the new one");
        drop(new);
        assert_eq!(old.other().expect("readable"), None);
        let third = turn(&fake, "third");
        assert!(!fake.host().at(MEETING).join("new.turn").exists(), "the dead are forgotten");
        assert_eq!(old.other().expect("readable").as_deref(), Some("third"));
        drop(third);
    }

    #[test]
    fn names_are_checked_and_not_shared() {
        let fake = FakeHost::in_order();
        for id in ["", "../x", "a/b", ".hidden", &"x".repeat(101), "a b"] {
            assert_eq!(Turn::take(&fake.host(), id).expect_err("refused").code(), "agent_id", "{id:?}");
        }
        let _first = turn(&fake, "a");
        assert_eq!(Turn::take(&fake.host(), "a").expect_err("refused").code(), "agent_runs");
    }

    #[test]
    fn foreign_contents_are_no_order() {
        let fake = FakeHost::in_order();
        fake.write("/run/mpu/agents/a.turn", "nonsense");
        fake.write("/run/mpu/agents/b.turn", "-1");
        let (a, b) = (turn(&fake, "a"), turn(&fake, "b"));
        assert_eq!((a.order, b.order), (1, 2));
    }

    #[test]
    fn held_gate_times_out() {
        let fake = FakeHost::in_order();
        let turn = turn(&fake, "a");
        // What another test starts at this moment has the descriptor of the turn's own look until it runs its program.
        let _held = gate(&turn.dir, Duration::from_secs(60)).expect("free");
        let error = gate(&turn.dir, Duration::from_millis(50)).expect_err("held");
        assert_eq!((error.code(), error.exit()), ("lock_held", Exit::Failed));
        let us = format!("gate is held by process {}", std::process::id());
        assert!(error.to_string().contains(&us), "{error}");
    }

    #[test]
    fn turn_files_are_root_only() {
        let fake = FakeHost::in_order();
        // As an older agent made them.
        for name in ["gate", "a.turn"] {
            fake.write(&format!("{MEETING}/{name}"), "");
            let path = fake.host().at(MEETING).join(name);
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("a mode");
        }
        let _turn = turn(&fake, "a");
        let mode =
            |name: &str| fs::metadata(fake.host().at(MEETING).join(name)).expect("a file").permissions().mode() & 0o777;
        assert_eq!((mode(""), mode("gate"), mode("a.turn")), (0o700, 0o600, 0o600));
    }
}
