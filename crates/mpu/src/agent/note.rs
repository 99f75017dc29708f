//! The state file of an agent, `/run/mpu/agents/<id>.json`, and the answers to the kubelet's probes.
//!
//! An agent is ready if a container got a right answer recently, and alive if its loop runs. Times are the kernel's
//! uptime, which clock changes do not affect.

use super::election::{AGENTS_DIR, ElectionError, check_id};
use mpu_host::host::Host;
use mpu_os::file::{Mode, replace_file_atomically};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::PathBuf;

/// What an agent is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Doing")]
pub enum Activity {
    /// Waits for the NVIDIA driver.
    WaitsForDriver,
    /// Raises the engine.
    Raises,
    /// Watches over an engine that is up.
    Watches,
    /// Leaves the engine to a younger agent.
    StandsBy,
    /// Leaves the node to the notify engine that its package keeps up, or to a newer module that no agent loaded.
    LeavesToNode,
    /// Could not raise the engine, or find out which agent manages it, and will try again.
    Failed,
}

/// What a measurement came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
pub struct Measurement {
    /// When, in seconds of uptime.
    pub at: u64,
    /// Whether a container was seen right, with an engine up.
    pub right: bool,
    /// What was found, in words.
    pub because: String,
}

/// The contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
pub struct Note {
    /// When it was written, in seconds of uptime.
    pub at: u64,
    /// The agent's version.
    pub version: String,
    /// What it is doing.
    pub doing: Activity,
    /// The same in words.
    pub words: String,
    /// The last measurement.
    pub seen: Option<Measurement>,
}

/// The kernel's uptime in seconds.
pub fn uptime(host: &Host) -> u64 {
    let text = host.text("/proc/uptime").unwrap_or_default();
    text.split(['.', ' ']).next().and_then(|seconds| seconds.parse().ok()).unwrap_or(0)
}

/// The longest round in seconds: one that builds the module.
const MAX_ROUND: u64 = 600;

fn path(id: &str) -> PathBuf {
    PathBuf::from(AGENTS_DIR).join(format!("{id}.json"))
}

impl Note {
    /// Replaces the file atomically.
    pub fn write(&self, host: &Host, id: &str) -> Result<(), ElectionError> {
        let path = host.at(path(id));
        let failed = |source| ElectionError::Io { path: path.clone(), source };
        let text = serde_json::to_string(self).map_err(|e| failed(e.into()))?;
        replace_file_atomically(&path, text.as_bytes(), Mode::Of(0o644)).map(drop).map_err(failed)
    }

    /// The agent's last note. None if the file is absent or invalid.
    pub fn read(host: &Host, id: &str) -> Result<Option<Note>, ElectionError> {
        check_id(id)?;
        Ok(host.text(path(id)).and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// The last note of the agent that manages this node's engine. None if it is older than [`MAX_ROUND`], because then
    /// the agent is gone.
    pub fn of_manager(host: &Host) -> Option<Note> {
        let names = fs::read_dir(host.at(AGENTS_DIR)).ok()?.flatten().map(|entry| entry.file_name());
        let ids = names.filter_map(|name| Some(name.to_str()?.strip_suffix(".json")?.to_string()));
        let notes = ids.filter_map(|id| Note::read(host, &id).ok().flatten());
        let notes = notes.filter(|note| note.doing != Activity::StandsBy);
        notes.max_by_key(|note| note.at).filter(|note| uptime(host) < note.at.saturating_add(MAX_ROUND))
    }

    pub fn remove(host: &Host, id: &str) {
        let _ = fs::remove_file(host.at(path(id)));
    }
}

/// The question of a kubelet's probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Question")]
pub enum KubeletProbe {
    /// Was a container on this node seen right not long ago?
    Ready,
    /// Does the agent go round?
    Alive,
}

/// Answers a probe, with the reason.
pub fn evaluate_probe(question: KubeletProbe, note: Option<&Note>, now: u64, within: u64) -> (bool, String) {
    let Some(note) = note else { return (false, "there is no agent of this name, or it has just begun".to_string()) };
    let age = now.saturating_sub(note.at);
    match (question, &note.seen) {
        (KubeletProbe::Alive, _) => (age <= within, format!("it went round {age} s ago: {}", note.words)),
        (KubeletProbe::Ready, None) => (false, format!("nothing was measured yet: {}", note.words)),
        (KubeletProbe::Ready, Some(seen)) => match now.saturating_sub(seen.at) {
            age if age > within => (false, format!("the last measurement is {age} s old: {}", note.words)),
            age => (seen.right, format!("measured {age} s ago: {}", seen.because)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::FakeHost;

    fn note(at: u64, seen: Option<(u64, bool)>) -> Note {
        let seen = seen.map(|(at, right)| Measurement { at, right, because: "a reason".to_string() });
        Note { at, version: "0.1.0".to_string(), doing: Activity::Watches, words: "words".to_string(), seen }
    }

    #[test]
    fn ready_is_right_and_fresh() {
        let ready = |note: Option<&Note>, now| evaluate_probe(KubeletProbe::Ready, note, now, 60).0;
        assert!(ready(Some(&note(100, Some((100, true)))), 160));
        assert!(!ready(Some(&note(160, Some((100, true)))), 161), "stale");
        assert!(!ready(Some(&note(100, Some((100, false)))), 100), "wrong");
        assert!(!ready(Some(&note(100, None)), 100), "not measured");
        assert!(!ready(None, 100));
    }

    #[test]
    fn liveness_ignores_measurement() {
        let alive = |note: Option<&Note>, now| evaluate_probe(KubeletProbe::Alive, note, now, 60).0;
        assert!(alive(Some(&note(100, None)), 160) && !alive(Some(&note(100, None)), 161) && !alive(None, 0));
    }

    #[test]
    fn note_round_trips_and_invalid_note_is_none() {
        let fake = FakeHost::in_order();
        fake.write("/run/mpu/agents/a.json", "{\"at\":");
        assert_eq!(Note::read(&fake.host(), "a").expect("readable"), None);
        let written = note(7, Some((5, true)));
        written.write(&fake.host(), "a").expect("written");
        assert_eq!(Note::read(&fake.host(), "a").expect("readable"), Some(written));
        assert!(Note::read(&fake.host(), "../../etc/passwd").is_err());
        fake.write("/proc/uptime", "123.45 678.90\n");
        assert_eq!(uptime(&fake.host()), 123);
        let standby = Note { doing: Activity::StandsBy, ..note(8, None) };
        fake.write("/run/mpu/agents/standby.json", &serde_json::to_string(&standby).expect("JSON"));
        assert_eq!(Note::of_manager(&fake.host()), Some(note(7, Some((5, true)))));
        fake.write("/proc/uptime", "700.00 678.90\n");
        assert_eq!(Note::of_manager(&fake.host()), None, "its agent is gone");
    }
}
