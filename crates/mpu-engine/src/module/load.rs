//! Loads and unloads the module. A module that could not place its redirects is unloaded.

use super::error::ModuleError;
use super::holders::HolderInfo;
use super::load_error::{LoadError, is_refusal};
use super::state::{self, Instance, Phase, Refusal, State};
use crate::signing;
use mpu_host::config::Redirect;
use mpu_host::driver::Driver;
use mpu_host::host::Host;
use mpu_host::progress::Progress;
use rustix::fs::OFlags;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

pub trait Kernel {
    /// `finit_module`. The name is for fakes that cannot read the file.
    fn insert(&self, instance: Instance, module: &File, parameters: &CStr) -> io::Result<()>;
    /// `delete_module`, without waiting for references to go.
    fn remove(&self, instance: Instance) -> io::Result<()>;
    /// Makes the module retire within this time, by a write to its `retire`: callers leave, and redirects are removed. A module of
    /// format 1 lacks the file, and gives "not found".
    fn retire(&self, host: &Host, instance: Instance, patience: Duration) -> io::Result<()> {
        let mut file = File::options().write(true).open(host.at(instance.parameter("retire")))?;
        file.write_all(format!("{}\n", patience.as_millis()).as_bytes())
    }
    fn mark_log(&self) -> Option<File>;
    /// Whether this is the kernel of that host. With another root, it is not.
    fn is_for(&self, host: &Host) -> bool {
        host.is_this()
    }
}

pub struct Running;

impl Kernel for Running {
    fn insert(&self, _: Instance, module: &File, parameters: &CStr) -> io::Result<()> {
        Ok(rustix::system::finit_module(module, parameters, 0)?)
    }

    fn remove(&self, instance: Instance) -> io::Result<()> {
        let name = CString::new(instance.name())?;
        Ok(rustix::system::delete_module(&name, OFlags::NONBLOCK.bits() as i32)?)
    }

    fn mark_log(&self) -> Option<File> {
        let flags = OFlags::NONBLOCK.bits() as i32;
        let mut log = File::options().read(true).custom_flags(flags).open("/dev/kmsg").ok()?;
        log.seek(SeekFrom::End(0)).ok()?;
        Some(log)
    }
}

/// Fails if facts of the host are about another kernel than the one to change.
pub fn check_is_running_kernel(host: &Host, kernel: &dyn Kernel) -> Result<(), LoadError> {
    if kernel.is_for(host) { Ok(()) } else { Err(LoadError::OtherRoot { root: host.at("/") }) }
}

#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a> {
    /// Compiled rules of `config::rules::of_host`.
    pub policy: &'a str,
    pub redirect: Redirect,
}

impl Parameters<'_> {
    /// The argument of `finit_module`. Defaults are left out: an older module may lack the parameter.
    pub(super) fn module_arguments(self) -> String {
        let policy = (!self.policy.is_empty()).then(|| format!("policy=\"{}\"", self.policy));
        let redirect = (self.redirect != Redirect::Auto).then(|| format!("redirect={}", self.redirect.word()));
        policy.into_iter().chain(redirect).collect::<Vec<_>>().join(" ")
    }
}

/// Loads a module and waits for its state. A module whose redirect was refused is unloaded again.
pub fn insert(
    host: &Host,
    kernel: &dyn Kernel,
    instance: Instance,
    path: &Path,
    parameters: Parameters<'_>,
) -> Result<State, ModuleError> {
    let at = |source| LoadError::Open { path: path.to_path_buf(), source };
    let file = File::open(path).map_err(at)?;
    let parameters = CString::new(parameters.module_arguments()).map_err(|error| at(error.into()))?;
    let log = kernel.mark_log();
    if let Err(source) = kernel.insert(instance, &file, &parameters) {
        if source.raw_os_error() == Some(libc::ETIMEDOUT) {
            let (inside, holders) = inside(host, instance.other());
            return Err(LoadError::Drain { inside, holders }.into());
        }
        let log = log.map(last_kernel_message).unwrap_or_default();
        let is_signature_refusal = is_refusal(&source) && signing::demanded(host);
        let release = host.release().unwrap_or_default();
        let advice = is_signature_refusal.then(|| signing::advice(host, &release, Some(path)));
        return Err(LoadError::Insert { path: path.to_path_buf(), log, advice, source }.into());
    }
    let state = match state::read_instance(host, instance) {
        Ok(Some(state)) => state,
        Ok(None) => return Err(undo_load(host, kernel, instance, LoadError::NoState.into())),
        Err(error) => return Err(undo_load(host, kernel, instance, error.into())),
    };
    match state.refused {
        Some(Refusal { symbol, errno }) => {
            Err(undo_load(host, kernel, instance, LoadError::Redirect { symbol, errno }.into()))
        }
        None => Ok(state),
    }
}

/// Checks a module that waits although the driver is loaded: the driver does not fit this module.
pub fn check_attached(
    host: &Host,
    kernel: &dyn Kernel,
    state: State,
    driver: Option<&Driver>,
) -> Result<State, ModuleError> {
    let (Phase::Waiting, Some(driver)) = (&state.phase, driver) else { return Ok(state) };
    // The driver may have come or gone meanwhile.
    thread::sleep(Duration::from_millis(100));
    let now = state::read(host)?.ok_or(LoadError::NoState)?;
    if now.phase == Phase::Waiting && Driver::loaded(host).is_some() {
        let error = LoadError::Unattached { version: driver.version.clone() };
        return Err(undo_load(host, kernel, now.instance, error.into()));
    }
    Ok(now)
}

/// Undoes a failed load. Errors here are ignored: the caller needs the reason of the failure.
fn undo_load(host: &Host, kernel: &dyn Kernel, instance: Instance, reason: ModuleError) -> ModuleError {
    let _ = remove(host, kernel, instance, Duration::from_secs(5), "mpu up");
    reason
}

/// The module's limit for one wait. Longer waits are split.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Minimum time for unloading a retired module: a process that reads its files closes them soon.
const MIN_UNLOAD_TIME: Duration = Duration::from_secs(2);

/// Unloads the module in two steps. First it retires: new callers go straight to the driver, callers inside get time to leave, and
/// then the redirects are removed. If a caller stays inside, all is as before, and the error names it. Then the kernel frees the
/// retired module, with retries while something has a reference. `again` is the command for another try.
///
/// A module of format 1 cannot retire: it waits for callers within the system call.
pub fn remove(
    host: &Host,
    kernel: &dyn Kernel,
    instance: Instance,
    patience: Duration,
    again: &'static str,
) -> Result<(), LoadError> {
    let began = Instant::now();
    let _progress = Progress::of("waiting for callers to leave the driver");
    let retired = retire(host, kernel, instance, patience, again)?;
    let patience =
        if retired { patience.saturating_sub(began.elapsed()).max(MIN_UNLOAD_TIME.min(patience)) } else { patience };
    let began_to_unload = Instant::now();
    loop {
        match kernel.remove(instance) {
            Ok(()) => return Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(source) => return Err(LoadError::Remove { source }),
        }
        if began_to_unload.elapsed() >= patience {
            let (inside, holders) = inside(host, instance);
            let waited = began.elapsed();
            let is_retired =
                matches!(state::read_instance(host, instance), Ok(Some(state)) if state.phase == Phase::Retired);
            return Err(match is_retired {
                true => LoadError::StillReferenced { inside, holders, waited, again },
                false => LoadError::Busy { inside, holders, waited, again },
            });
        }
        thread::sleep(Duration::from_millis(50).min(patience));
    }
}

/// Makes the module retire, and waits for it. Returns whether the module can retire.
fn retire(
    host: &Host,
    kernel: &dyn Kernel,
    instance: Instance,
    patience: Duration,
    again: &'static str,
) -> Result<bool, LoadError> {
    let began = Instant::now();
    loop {
        // The parameter takes whole milliseconds: round up.
        let remaining = patience.saturating_sub(began.elapsed()).as_micros().div_ceil(1000);
        let remaining = Duration::from_millis(u64::try_from(remaining).unwrap_or(u64::MAX));
        let Err(source) = kernel.retire(host, instance, remaining.min(MAX_WAIT)) else { return Ok(true) };
        match source.raw_os_error() {
            // Format 1, or already unloaded.
            Some(libc::ENOENT) => return Ok(false),
            Some(libc::EBUSY) if remaining > MAX_WAIT => {}
            Some(libc::EBUSY) => {
                let (inside, holders) = inside(host, instance);
                return Err(LoadError::Busy { inside, holders, waited: began.elapsed(), again });
            }
            Some(libc::EIO) => return Err(LoadError::Stuck),
            _ => return Err(LoadError::Retire { source }),
        }
    }
}

fn inside(host: &Host, instance: Instance) -> (u64, Vec<HolderInfo>) {
    match state::read_instance(host, instance) {
        Ok(Some(state)) => (state.inside, state.with_holders(host).holders),
        _ => (0, Vec::new()),
    }
}

/// The newest kernel message about the module since the mark.
fn last_kernel_message(mut log: File) -> String {
    let mut message = String::new();
    let mut record = [0u8; 8192];
    // Each read of /dev/kmsg returns one record, `priority,number,time,flags;text`.
    while let Ok(len @ 1..) = log.read(&mut record) {
        let text = String::from_utf8_lossy(&record[..len]).into_owned();
        let line = text.split_once(';').map_or("", |(_, rest)| rest).lines().next().unwrap_or("");
        if line.starts_with("mpu") || ["module", "ELF", "ockdown"].iter().any(|word| line.contains(word)) {
            message = line.trim().to_string();
        }
    }
    message
}

#[cfg(any(test, feature = "fake"))]
pub mod fake;

#[cfg(test)]
mod tests;
