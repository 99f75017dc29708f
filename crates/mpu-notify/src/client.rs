//! Requests to the supervisor's control socket.

use super::CONTROL_SOCKET;
use super::error::NotifyError;
use super::id::short_id;
use mpu_core::HostPid;
use mpu_host::host::Host;
use mpu_host::phase::Phase;
use mpu_os::socket;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::time::Duration;

/// Limit of a connect, of the whole request, and of the whole answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of an answer: with the most listeners, the state has some 600 KiB.
const MAX_ANSWER: u64 = 4 << 20;

/// State of a supervisor. A later version may have more fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub version: String,
    /// `armed`, or `retired`: calls continue untranslated and no new container is taken.
    pub state: Phase,
    pub pid: HostPid,
    /// Start of the first supervisor in this chain of successors, in seconds since 1970.
    pub since: u64,
    /// How many times a new supervisor replaced one that had died.
    #[serde(default)]
    pub restarts: u64,
    /// The same for the last hour, up to 8.
    #[serde(default)]
    pub restarts_last_hour: u64,
    /// Listeners: one for each container and each `exec` into one.
    pub listeners: usize,
    pub containers: Vec<String>,
    /// Processor time spent on each container.
    #[serde(default)]
    pub costs: Vec<Cost>,
    /// One container's budget, in percent of one processor; 0 is no limit. None from a version without limits.
    #[serde(default)]
    pub cpu_percent: Option<u32>,
    /// Calls that are being translated now.
    pub inside: u64,
    /// How PIDs are looked up: `kernel` or `proc`.
    pub lookup: String,
    /// Calls without PIDs that continued to the driver.
    pub passed_on: u64,
    pub translated: BTreeMap<String, u64>,
    /// Calls not translated in the usual way, by reason.
    pub passed: BTreeMap<String, u64>,
    pub policy: Vec<String>,
}

/// Processor time that a supervisor spent on one container since it started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// The container's shortened id.
    pub container: String,
    /// The supervisor's processor time for its calls, since it began.
    pub cpu_microseconds: u64,
    /// Time that its calls waited because the budget was used up, summed over threads.
    pub held_back_microseconds: u64,
}

/// Reply to any other request than `state`.
#[derive(Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl State {
    /// Whether it has a listener of this container.
    pub fn answers_for(&self, id: &str) -> bool {
        self.containers.contains(&short_id(id))
    }
}

/// The state; none if no supervisor runs.
pub fn state(host: &Host) -> Result<Option<State>, NotifyError> {
    let Some(text) = query(host, "state\n")? else { return Ok(None) };
    parse(&text).map(Some)
}

/// Retires the supervisor: it takes no new container, lets all calls continue, and ends with its last container. False if no
/// supervisor runs.
pub fn retire(host: &Host) -> Result<bool, NotifyError> {
    command(host, "retire\n")
}

/// Undoes [`retire`].
pub fn resume(host: &Host) -> Result<bool, NotifyError> {
    command(host, "resume\n")
}

/// Ends the supervisor; its keeper starts it again with all its descriptors.
pub fn again(host: &Host) -> Result<bool, NotifyError> {
    command(host, "again\n")
}

/// Sets the policy's rules.
pub fn set_policy(host: &Host, rules: &str) -> Result<bool, NotifyError> {
    command(host, &format!("policy\n{rules}"))
}

/// Sets the budget of one container.
pub fn set_cpu_percent(host: &Host, percent: u32) -> Result<bool, NotifyError> {
    command(host, &format!("budget\n{percent}"))
}

fn command(host: &Host, request: &str) -> Result<bool, NotifyError> {
    let Some(text) = query(host, request)? else { return Ok(false) };
    let reply: Reply = parse(&text)?;
    match reply.ok {
        true => Ok(true),
        false => Err(NotifyError::Refused { message: reply.error.unwrap_or_default() }),
    }
}

/// Parses an answer. A supervisor that ends sends none, which is `UnexpectedEof`. One that lives cuts its answer off if this process does
/// not read it in time.
fn parse<'a, T: Deserialize<'a>>(answer: &'a str) -> Result<T, NotifyError> {
    serde_json::from_str(answer).map_err(|error| {
        let is_cut_off = error.is_eof() && !answer.is_empty();
        let source = if is_cut_off { io::Error::other("its answer was cut off") } else { error.into() };
        NotifyError::NoAnswer { source }
    })
}

fn query(host: &Host, request: &str) -> Result<Option<String>, NotifyError> {
    let path = host.at(CONTROL_SOCKET);
    let stream = match socket::connect(&path, TIMEOUT) {
        Ok(stream) => stream,
        // Never started, or killed.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(source) => return Err(NotifyError::File { path, source }),
    };
    let answer = socket::write_all(&stream, request.as_bytes(), TIMEOUT)
        .and_then(|()| stream.shutdown(Shutdown::Write))
        .and_then(|()| socket::read_to_end(&stream, MAX_ANSWER, TIMEOUT))
        .and_then(|answer| String::from_utf8(answer).map_err(io::Error::other));
    answer.map(Some).map_err(|source| NotifyError::NoAnswer { source })
}
