//! Starts and retires the notify engine: makes sure that a supervisor of this version takes containers, or that none does.
//!
//! systemd starts the supervisor if it has the unit, else our own keeper does.

use super::client;
use super::error::NotifyError;
use super::systemd;
use super::{CONTROL_SOCKET, FOLDER, LOG};
use crate::supervisor::keeper;
use client::State;
use mpu_host::config::Drivers;
use mpu_host::driver::Driver;
use mpu_host::host::{CAP_DAC_OVERRIDE, CAP_SYS_ADMIN, Host};
use mpu_host::kernel_release;
use mpu_host::phase::Phase;
use mpu_host::progress::Progress;
use mpu_os::file::create_private_folder;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const UNIT: &str = "mpu-notify.service";
/// Limit for a supervisor's start. It takes milliseconds, but much longer while the host boots.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Limit for the end of a supervisor without containers.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
/// Interval of questions to systemd whether the supervisor fails. It starts one that does about eight times in this time.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The first kernel with all that is needed: 5.5 has `SECCOMP_USER_NOTIF_FLAG_CONTINUE`, 5.6 `pidfd_getfd(2)`, and from 5.9 on a
/// listener reports the end of its last process.
const OLDEST_KERNEL: [i64; 2] = [5, 9];

/// Options of a start.
#[derive(Debug, Clone, Default)]
pub struct SupervisorOptions {
    /// Let this version take over from another running one.
    pub replace: bool,
    /// Accepted releases of the driver.
    pub drivers: Drivers,
    /// Rules of the policy, for a supervisor that was retired.
    pub policy: String,
    /// The budget of one container, for a supervisor that was retired.
    pub cpu_percent: u32,
    /// The keeper's executable, if not this one.
    pub program: Option<PathBuf>,
}

#[derive(Debug)]
pub enum Raised {
    Started(State),
    /// A retired one accepts containers again.
    Resumed(State),
    /// It replaced one of the given version.
    Replaced(State, String),
    Already(State),
}

/// State of a running supervisor after [`lower`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lowered {
    Ended,
    /// It ends with the last of its containers. Until then their calls continue untranslated.
    Retired {
        containers: usize,
    },
}

impl Lowered {
    /// The end of a sentence about the supervisor.
    pub fn in_words(self) -> String {
        match self {
            Lowered::Ended => "has ended".to_string(),
            Lowered::Retired { containers } => {
                format!("is retired, and ends with the last of {containers} containers that have its filter")
            }
        }
    }
}

/// Why this host cannot run the engine; none if it can.
pub fn unfit(host: &Host) -> Option<NotifyError> {
    let no_listeners = |reason: String| Some(NotifyError::NoListeners { source: io::Error::other(reason) });
    let release = host.release().unwrap_or_default();
    if kernel_release::numbers(&release).get(..2) < Some(&OLDEST_KERNEL) {
        return no_listeners(format!("kernel {release} is older than 5.9"));
    }
    // Exists from Linux 4.14 on if the kernel has seccomp (Documentation/userspace-api/seccomp_filter.rst, Sysctls).
    let actions = host.text("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    if !actions.split_whitespace().any(|action| action == "user_notif") {
        return no_listeners("it has no action user_notif".to_string());
    }
    // Documentation/admin-guide/LSM/Yama.rst: no process may attach until the next boot.
    if host.text("/proc/sys/kernel/yama/ptrace_scope").as_deref() == Some("3") {
        return no_listeners("it lets no process read another's memory (kernel.yama.ptrace_scope = 3)".to_string());
    }
    (!host.in_init_pid_namespace()).then_some(NotifyError::NotOnHost)
}

pub fn raise(host: &Host, options: &SupervisorOptions, driver: Option<&Driver>) -> Result<Raised, NotifyError> {
    let this_version = env!("CARGO_PKG_VERSION");
    options.drivers.take(driver)?;
    match client::state(host)? {
        None => Ok(Raised::Started(start(host, options)?)),
        Some(state) if state.version != this_version && !options.replace => {
            Err(NotifyError::OtherVersion { up: state.version, this: this_version })
        }
        Some(state) if state.version != this_version => {
            let old_version = state.version.clone();
            Ok(Raised::Replaced(replace(host, options, state)?, old_version))
        }
        Some(state) if is_retired(&state) => Ok(Raised::Resumed(resume(host, options)?)),
        Some(state) => Ok(Raised::Already(state)),
    }
}

/// Retires the supervisor, if one runs.
pub fn lower(host: &Host) -> Result<Option<Lowered>, NotifyError> {
    let Some(state) = client::state(host)? else { return Ok(None) };
    if !client::retire(host)? {
        return Ok(Some(Lowered::Ended));
    }
    let mut containers = state.containers.len();
    let began = Instant::now();
    // Without containers it ends by itself, after a short wait for runtimes that are just starting a container.
    while began.elapsed() < END_TIMEOUT {
        match client::state(host) {
            Ok(Some(state)) if state.listeners > 0 => {
                return Ok(Some(Lowered::Retired { containers: state.containers.len() }));
            }
            Ok(Some(state)) => containers = state.containers.len(),
            Ok(None) => return Ok(Some(Lowered::Ended)),
            Err(error) if has_ended(&error) => return Ok(Some(Lowered::Ended)),
            // It is slow, so its state is unknown for now.
            Err(NotifyError::NoAnswer { .. }) => {}
            Err(error) => return Err(error),
        }
        std::thread::sleep(PAUSE);
    }
    Ok(Some(Lowered::Retired { containers }))
}

fn is_retired(state: &State) -> bool {
    state.state == Phase::Retired
}

/// Whether the supervisor ended during the request. A slow supervisor has not ended.
fn has_ended(error: &NotifyError) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error, NotifyError::NoAnswer { source }
        if matches!(source.kind(), BrokenPipe | ConnectionReset | UnexpectedEof))
}

fn resume(host: &Host, options: &SupervisorOptions) -> Result<State, NotifyError> {
    match client::resume(host) {
        Ok(true) => {}
        // It has ended with its last container meanwhile.
        Ok(false) => return start(host, options),
        Err(error) if has_ended(&error) => return start(host, options),
        Err(error) => return Err(error),
    }
    client::set_policy(host, &options.policy)?;
    client::set_cpu_percent(host, options.cpu_percent)?;
    wait_until(host, &mut || Ok(()), |state| !is_retired(state))
}

fn replace(host: &Host, options: &SupervisorOptions, old: State) -> Result<State, NotifyError> {
    let this_version = env!("CARGO_PKG_VERSION");
    client::again(host)?;
    let state = wait_until(host, &mut || Ok(()), |state| state.pid != old.pid)?;
    if state.version != this_version {
        let message = format!("its keeper started version {} again instead of {this_version}", state.version);
        return Err(NotifyError::Refused { message });
    }
    if is_retired(&state) {
        return resume(host, options);
    }
    Ok(state)
}

fn start(host: &Host, options: &SupervisorOptions) -> Result<State, NotifyError> {
    let by_systemd = systemd::has_unit(host, UNIT);
    let needed = if by_systemd { CAP_DAC_OVERRIDE } else { CAP_SYS_ADMIN };
    if !host.has_capability(needed) {
        return Err(NotifyError::NotRoot);
    }
    let _progress = Progress::of("waiting for the supervisor");
    if by_systemd {
        systemd::start(host, UNIT)?;
        return wait_until(host, &mut fails_at_each_start(host), |state| !is_retired(state));
    }
    // A living keeper restarts a dead supervisor. A second keeper would start a second supervisor.
    let mut keeper = None;
    let mut ensure_keeper = || match &mut keeper {
        None if keeper::is_alive(host) => Ok(()),
        None => {
            keeper = Some(start_keeper(host, options)?);
            Ok(())
        }
        Some(child) => match child.try_wait() {
            // Another keeper was first.
            Ok(Some(_)) if keeper::is_alive(host) => {
                keeper = None;
                Ok(())
            }
            Ok(Some(status)) => Err(NotifyError::Start {
                what: "the supervisor's keeper".to_string(),
                source: io::Error::other(format!("it ended ({status}): {}", last_log_line(host))),
            }),
            _ => Ok(()),
        },
    };
    let raised = wait_until(host, &mut ensure_keeper, |state| !is_retired(state));
    if let (Err(_), Some(mut keeper)) = (&raised, keeper) {
        // Otherwise the keeper would try to start it for ever.
        let group = Pid::from_raw(keeper.id() as i32);
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = keeper.kill();
        let _ = keeper.wait();
    }
    raised
}

/// A check that fails if systemd has restarted the supervisor several times in each of two intervals: systemd itself never gives up.
fn fails_at_each_start(host: &Host) -> impl FnMut() -> Result<(), NotifyError> {
    let (mut checked, mut before, mut failing) = (Instant::now(), None, 0);
    move || {
        if checked.elapsed() < CHECK_INTERVAL {
            return Ok(());
        }
        let now = systemd::restarts(host, UNIT);
        let fails = before.zip(now).is_some_and(|(before, now)| now > before + 1);
        failing = if fails { failing + 1 } else { 0 };
        (checked, before) = (Instant::now(), now);
        match failing >= 2 {
            true => {
                let lines = systemd::last_lines(host, UNIT).unwrap_or_default();
                let message = last_message(&lines).unwrap_or("it ends at each start").to_string();
                Err(NotifyError::Systemd { what: UNIT.to_string(), message })
            }
            false => Ok(()),
        }
    }
}

/// Starts a keeper that outlives us.
fn start_keeper(host: &Host, options: &SupervisorOptions) -> Result<Child, NotifyError> {
    let failed = |source| NotifyError::Start { what: "the supervisor's keeper".to_string(), source };
    let program = options.program.clone().map_or_else(keeper::this_program, Ok).map_err(failed)?;
    let log = host.at(LOG);
    let opened = create_private_folder(&host.at(FOLDER)).and_then(|()| open_log(&log));
    let log = opened.map_err(|source| NotifyError::File { path: log, source })?;
    mpu_host::sys::keep_descriptors_from_children();
    let mut command = Command::new(program);
    command.args(["notify", "hold"]).current_dir("/").stdin(Stdio::null());
    // Its log is the file: no journal adds the time.
    command.env_remove("JOURNAL_STREAM");
    command.stdout(log.try_clone().map_err(failed)?).stderr(log).spawn().map_err(failed)
}

/// Opens the log to append to it. Opening a pipe could wait for ever, and so could the supervisor's writes to it.
fn open_log(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let log = OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(flags).open(path)?;
    match log.metadata()?.is_file() {
        true => Ok(log),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file")),
    }
}

/// The last line that is not a fix.
fn last_message(log: &str) -> Option<&str> {
    log.lines().rev().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("fix: "))
}

/// The last message of the keeper or its supervisor, and the log's path.
fn last_log_line(host: &Host) -> String {
    let log = fs::read(host.at(LOG)).unwrap_or_default();
    match last_message(&String::from_utf8_lossy(&log)) {
        Some(line) => format!("\"{line}\"; {LOG} has the rest"),
        None => format!("it wrote nothing to {LOG}"),
    }
}

/// Waits for a supervisor in the expected state.
fn wait_until(
    host: &Host,
    ensure_keeper: &mut dyn FnMut() -> Result<(), NotifyError>,
    is_expected: impl Fn(&State) -> bool,
) -> Result<State, NotifyError> {
    let began = Instant::now();
    while began.elapsed() < TIMEOUT {
        match client::state(host) {
            Ok(Some(state)) if is_expected(&state) => return Ok(state),
            Ok(_) | Err(NotifyError::NoAnswer { .. }) => {}
            Err(error) => return Err(error),
        }
        ensure_keeper()?;
        std::thread::sleep(PAUSE);
    }
    Err(NotifyError::NotUp { seconds: TIMEOUT.as_secs() })
}

/// Whether the control socket exists and no process answers: supervisor and keeper were killed.
pub fn is_stale(host: &Host) -> bool {
    fs::symlink_metadata(host.at(CONTROL_SOCKET)).is_ok() && matches!(client::state(host), Ok(None))
}

#[cfg(test)]
mod tests;
