//! Asking a supervisor, and telling it things.
//!
//! Owns the requests and what they come to. Knows nothing of how a supervisor is started.

use super::CONTROL_SOCKET;
use super::error::NotifyError;
use super::id::kept_id;
use mpu_core::HostPid;
use mpu_host::host::Host;
use mpu_host::phase::Phase;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a supervisor says about itself. A later version may say more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub version: String,
    /// `armed`, or `retired`: everything goes on untouched, no new container is taken.
    pub state: Phase,
    #[serde(serialize_with = "pid_to_number", deserialize_with = "pid_of_number")]
    pub pid: HostPid,
    /// Seconds since 1970 at which it began, or the first of those that it took over from.
    pub since: u64,
    /// How often one took the place of another that had died.
    #[serde(default)]
    pub restarts: u64,
    /// The same in the last hour, up to 8.
    #[serde(default)]
    pub restarts_last_hour: u64,
    /// Listeners: one for each container and each `exec` into one.
    pub listeners: usize,
    pub containers: Vec<String>,
    /// What it spent on each container.
    #[serde(default)]
    pub costs: Vec<Cost>,
    /// How much it may spend on one, in percent of one processor; 0 is no limit, none of a version that has no limit.
    #[serde(default)]
    pub cpu_percent: Option<u32>,
    /// Calls that are being translated now.
    pub inside: u64,
    /// How numbers are looked up: `kernel` or `proc`.
    pub lookup: String,
    /// Calls without PIDs that went on to the driver.
    pub passed_on: u64,
    pub translated: BTreeMap<String, u64>,
    /// Calls not translated in the usual way, by reason.
    pub passed: BTreeMap<String, u64>,
    pub policy: Vec<String>,
}

/// What a supervisor spent on one container since it began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// The container's id, as far as it is kept.
    pub container: String,
    /// Processor time for its calls.
    pub cpu_microseconds: u64,
    /// Time for which its calls were held back because it had spent its budget: of each thread that held one.
    pub held_back_microseconds: u64,
}

fn pid_to_number<S: Serializer>(pid: &HostPid, to: S) -> Result<S::Ok, S::Error> {
    pid.get().serialize(to)
}

fn pid_of_number<'a, D: Deserializer<'a>>(from: D) -> Result<HostPid, D::Error> {
    HostPid::new(u32::deserialize(from)?).ok_or_else(|| serde::de::Error::custom("0 is no process's PID"))
}

#[derive(Deserialize)]
struct Done {
    ok: bool,
    error: Option<String>,
}

impl State {
    /// Whether one of its listeners came with a container of this id.
    pub fn answers_for(&self, id: &str) -> bool {
        self.containers.contains(&kept_id(id))
    }
}

/// Asks for the state; none when there is no supervisor.
pub fn state(host: &Host) -> Result<Option<State>, NotifyError> {
    let Some(text) = ask(host, "state\n")? else { return Ok(None) };
    let state = serde_json::from_str(&text).map_err(|error| NotifyError::NoAnswer { source: error.into() })?;
    Ok(Some(state))
}

/// Tells it to take no new container and to let everything pass, and to end with the last container that it has. False when there
/// is no supervisor.
pub fn retire(host: &Host) -> Result<bool, NotifyError> {
    tell(host, "retire\n")
}

/// Undoes [`retire`].
pub fn resume(host: &Host) -> Result<bool, NotifyError> {
    tell(host, "resume\n")
}

/// Tells it to end and to be started again by its keeper, which has all that it needs to go on.
pub fn again(host: &Host) -> Result<bool, NotifyError> {
    tell(host, "again\n")
}

/// Gives it the policy's rules.
pub fn set_policy(host: &Host, rules: &str) -> Result<bool, NotifyError> {
    tell(host, &format!("policy\n{rules}"))
}

/// Gives it the budget of one container.
pub fn set_cpu_percent(host: &Host, percent: u32) -> Result<bool, NotifyError> {
    tell(host, &format!("budget\n{percent}"))
}

fn tell(host: &Host, request: &str) -> Result<bool, NotifyError> {
    let Some(text) = ask(host, request)? else { return Ok(false) };
    let done: Done = serde_json::from_str(&text).map_err(|error| NotifyError::NoAnswer { source: error.into() })?;
    match done.ok {
        true => Ok(true),
        false => Err(NotifyError::Refused { message: done.error.unwrap_or_default() }),
    }
}

fn ask(host: &Host, request: &str) -> Result<Option<String>, NotifyError> {
    let path = host.at(CONTROL_SOCKET);
    let mut stream = match UnixStream::connect(&path) {
        Ok(stream) => stream,
        // Never started, or ended without a word.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(source) => return Err(NotifyError::File { path, source }),
    };
    let mut answer = String::new();
    let conversation = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .and_then(|()| stream.write_all(request.as_bytes()))
        .and_then(|()| stream.shutdown(Shutdown::Write))
        .and_then(|()| stream.read_to_string(&mut answer));
    conversation.map_err(|source| NotifyError::NoAnswer { source })?;
    Ok(Some(answer))
}
