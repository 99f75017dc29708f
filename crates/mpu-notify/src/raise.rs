//! Raises and lowers the notify engine: sees that there is a supervisor of this version that takes containers, or that there is
//! none.
//!
//! Owns who starts it (systemd where that has the unit, else a keeper of our own) and the waiting. What a supervisor does, and
//! whether it lives on while containers still need it, is its own business.

use super::CONTROL_SOCKET;
use super::client;
use super::error::NotifyError;
use super::systemd;
use crate::supervisor::keeper;
use client::State;
use mpu_host::config::Drivers;
use mpu_host::driver::Driver;
use mpu_host::host::{CAP_DAC_OVERRIDE, CAP_SYS_ADMIN, Host};
use mpu_host::kernel_release;
use mpu_host::phase::Phase;
use mpu_host::progress::Progress;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The unit that keeps a supervisor where systemd runs.
pub const UNIT: &str = "mpu-notify.service";
/// What a supervisor that systemd does not keep has to say.
pub const LOG: &str = "/run/mpu/notify/log";
/// How long a supervisor may take to come up: it starts in milliseconds, but on a host that boots, everything else does, too.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long one without containers may take to end.
const END_PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
/// The first kernel with all that is needed: 5.5 has `SECCOMP_USER_NOTIF_FLAG_CONTINUE`, 5.6 `pidfd_getfd(2)`; and
/// from 5.9 on a listener tells when its last caller has gone.
const OLDEST_KERNEL: [i64; 2] = [5, 9];

/// What the caller wants of it.
#[derive(Debug, Clone, Default)]
pub struct SupervisorOptions {
    /// Let this version take over from another that is up.
    pub replace: bool,
    /// With which releases of the driver.
    pub drivers: Drivers,
    /// Rules of the policy, for a supervisor that was retired.
    pub policy: String,
    /// The budget of one container, for a supervisor that was retired.
    pub cpu_percent: u32,
    /// The executable that keeps the supervisor, if not this one.
    pub program: Option<PathBuf>,
}

#[derive(Debug)]
pub enum Raised {
    Started(State),
    /// One was retired, and takes containers again.
    Resumed(State),
    /// One of another version, which was this one, has made room.
    Replaced(State, String),
    Already(State),
}

/// What became of one that was up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lowered {
    Ended,
    /// It ends with the last of so many containers, and lets their calls pass untouched until then.
    Retired {
        containers: usize,
    },
}

impl Lowered {
    /// What became of it, as half a sentence.
    pub fn in_words(self) -> String {
        match self {
            Lowered::Ended => "has ended".to_string(),
            Lowered::Retired { containers } => {
                format!("is retired, and ends with the last of {containers} containers that have its filter")
            }
        }
    }
}

/// Why this host cannot have the engine; none if it can.
pub fn unfit(host: &Host) -> Option<NotifyError> {
    let lacks = |what: String| Some(NotifyError::NoListeners { source: io::Error::other(what) });
    let release = host.release().unwrap_or_default();
    if kernel_release::numbers(&release).get(..2) < Some(&OLDEST_KERNEL) {
        return lacks(format!("kernel {release} is older than 5.9"));
    }
    // There from Linux 4.14 on where seccomp is (Documentation/userspace-api/seccomp_filter.rst, Sysctls).
    let actions = host.text("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    if !actions.split_whitespace().any(|action| action == "user_notif") {
        return lacks("it has no action user_notif".to_string());
    }
    // Documentation/admin-guide/LSM/Yama.rst: no process may attach, and until the next boot that stays so.
    if host.text("/proc/sys/kernel/yama/ptrace_scope").as_deref() == Some("3") {
        return lacks("it lets no process read another's memory (kernel.yama.ptrace_scope = 3)".to_string());
    }
    (!host.in_init_pid_namespace()).then_some(NotifyError::NotOnHost)
}

pub fn raise(host: &Host, options: &SupervisorOptions, driver: Option<&Driver>) -> Result<Raised, NotifyError> {
    let this = env!("CARGO_PKG_VERSION");
    options.drivers.take(driver)?;
    match client::state(host)? {
        None => Ok(Raised::Started(start(host, options)?)),
        Some(found) if found.version != this && !options.replace => {
            Err(NotifyError::OtherVersion { up: found.version, this })
        }
        Some(found) if found.version != this => {
            let was = found.version.clone();
            Ok(Raised::Replaced(replace(host, options, found)?, was))
        }
        Some(found) if is_retired(&found) => Ok(Raised::Resumed(resume(host, options)?)),
        Some(found) => Ok(Raised::Already(found)),
    }
}

/// Tells the supervisor to go, if there is one.
pub fn lower(host: &Host) -> Result<Option<Lowered>, NotifyError> {
    let Some(found) = client::state(host)? else { return Ok(None) };
    if !client::retire(host)? {
        return Ok(Some(Lowered::Ended));
    }
    let mut containers = found.containers.len();
    let began = Instant::now();
    // Without containers it ends by itself, once runtimes that knew its socket have had their time.
    while began.elapsed() < END_PATIENCE {
        match answering(host)? {
            None => return Ok(Some(Lowered::Ended)),
            Some(state) if state.listeners > 0 => {
                return Ok(Some(Lowered::Retired { containers: state.containers.len() }));
            }
            Some(state) => containers = state.containers.len(),
        }
        std::thread::sleep(PAUSE);
    }
    Ok(Some(Lowered::Retired { containers }))
}

fn is_retired(state: &State) -> bool {
    state.state == Phase::Retired
}

/// The state, if one answers. One that ends while it is asked says nothing, and is none.
fn answering(host: &Host) -> Result<Option<State>, NotifyError> {
    match client::state(host) {
        Err(NotifyError::NoAnswer { .. }) => Ok(None),
        other => other,
    }
}

fn resume(host: &Host, options: &SupervisorOptions) -> Result<State, NotifyError> {
    match client::resume(host) {
        Ok(true) => {}
        // Its last container has gone in between, and it with it.
        Ok(false) | Err(NotifyError::NoAnswer { .. }) => return start(host, options),
        Err(error) => return Err(error),
    }
    client::set_policy(host, &options.policy)?;
    client::set_cpu_percent(host, options.cpu_percent)?;
    up(host, &mut || Ok(()), |state| !is_retired(state))
}

fn replace(host: &Host, options: &SupervisorOptions, old: State) -> Result<State, NotifyError> {
    let this = env!("CARGO_PKG_VERSION");
    client::again(host)?;
    let state = up(host, &mut || Ok(()), |state| state.pid != old.pid)?;
    if state.version != this {
        let message = format!("its keeper starts version {} again and not {this}", state.version);
        return Err(NotifyError::Refused { message });
    }
    if is_retired(&state) {
        return resume(host, options);
    }
    Ok(state)
}

fn start(host: &Host, options: &SupervisorOptions) -> Result<State, NotifyError> {
    let by_systemd = systemd_has_unit(host);
    let needed = if by_systemd { CAP_DAC_OVERRIDE } else { CAP_SYS_ADMIN };
    if !host.has_capability(needed) {
        return Err(NotifyError::NotRoot);
    }
    let _progress = Progress::of("waiting for the supervisor");
    if by_systemd {
        systemd::start(host, UNIT)?;
        return up(host, &mut || Ok(()), |state| !is_retired(state));
    }
    // One that lives starts a supervisor again that has died: two would serve some containers each.
    let mut keeper = None;
    let mut lives = || match &mut keeper {
        None if keeper::lives(host) => Ok(()),
        None => {
            keeper = Some(keep(host, options)?);
            Ok(())
        }
        Some(ours) => match ours.try_wait() {
            // Another one was first.
            Ok(Some(_)) if keeper::lives(host) => {
                keeper = None;
                Ok(())
            }
            Ok(Some(status)) => Err(NotifyError::Start {
                what: "the supervisor's keeper".to_string(),
                source: io::Error::other(format!("it ended ({status}): {}", last_words(host))),
            }),
            _ => Ok(()),
        },
    };
    let raised = up(host, &mut lives, |state| !is_retired(state));
    if let (Err(_), Some(mut keeper)) = (&raised, keeper) {
        // One that cannot come up is tried again and again by its keeper.
        let group = Pid::from_raw(keeper.id() as i32);
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = keeper.kill();
        let _ = keeper.wait();
    }
    raised
}

/// Whether systemd runs and has the unit.
pub fn systemd_has_unit(host: &Host) -> bool {
    systemd::has(host, UNIT)
}

/// Starts a keeper that outlives us.
fn keep(host: &Host, options: &SupervisorOptions) -> Result<Child, NotifyError> {
    let failed = |source| NotifyError::Start { what: "the supervisor's keeper".to_string(), source };
    let program = options.program.clone().map_or_else(keeper::this_program, Ok).map_err(failed)?;
    let log = host.at(LOG);
    let folder = host.at(CONTROL_SOCKET);
    let folder = folder.parent().unwrap_or(Path::new("/"));
    let opened = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    let opened = opened.and_then(|()| OpenOptions::new().create(true).append(true).mode(0o600).open(&log));
    let log = opened.map_err(|source| NotifyError::File { path: log, source })?;
    mpu_host::own::keep_descriptors_from_children();
    let mut command = Command::new(program);
    command.args(["notify", "hold"]).current_dir("/").stdin(Stdio::null());
    command.stdout(log.try_clone().map_err(failed)?).stderr(log).spawn().map_err(failed)
}

/// What the keeper or its supervisor wrote last, and where the rest is.
fn last_words(host: &Host) -> String {
    let log = fs::read_to_string(host.at(LOG)).unwrap_or_default();
    match log.lines().rev().map(str::trim).find(|line| !line.is_empty()) {
        Some(words) => format!("\"{words}\"; {LOG} has the rest"),
        None => format!("it wrote nothing to {LOG}"),
    }
}

/// Waits for a supervisor that is as it should be.
fn up(
    host: &Host,
    lives: &mut dyn FnMut() -> Result<(), NotifyError>,
    is_right: impl Fn(&State) -> bool,
) -> Result<State, NotifyError> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if let Some(state) = answering(host)?.filter(&is_right) {
            return Ok(state);
        }
        lives()?;
        std::thread::sleep(PAUSE);
    }
    Err(NotifyError::NotUp { seconds: PATIENCE.as_secs() })
}

/// Whether there is a socket that no process answers: its supervisor was killed, and its keeper, too.
pub fn is_stale(host: &Host) -> bool {
    fs::symlink_metadata(host.at(CONTROL_SOCKET)).is_ok() && matches!(client::state(host), Ok(None))
}

#[cfg(test)]
mod tests;
