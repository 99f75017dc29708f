//! Into the kernel and out of it again. A module that could not place its redirects does not stay.

use super::error::ModuleError;
use super::holders::{self, Held};
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
    /// `finit_module`. The name is the file's; it is passed for implementations that must not ask the file.
    fn insert(&self, instance: Instance, module: &File, parameters: &CStr) -> io::Result<()>;
    /// `delete_module`, without waiting for references to go.
    fn remove(&self, instance: Instance) -> io::Result<()>;
    /// Has the module let its callers go and take its redirects out, within that time: a write to its `retire`. A
    /// module without the file is one of format 1, and "not found".
    fn retire(&self, host: &Host, instance: Instance, patience: Duration) -> io::Result<()> {
        let mut file = File::options().write(true).open(host.at(instance.parameter("retire")))?;
        file.write_all(format!("{}\n", patience.as_millis()).as_bytes())
    }
    fn mark_log(&self) -> Option<File>;
    /// Whether this is the kernel of that host. The running kernel belongs to no host that is seen through another
    /// root.
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

/// Whether what was found on the host is about the kernel that would be changed.
pub fn same_host(host: &Host, kernel: &dyn Kernel) -> Result<(), LoadError> {
    if kernel.is_for(host) { Ok(()) } else { Err(LoadError::OtherRoot { root: host.at("/") }) }
}

#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a> {
    /// Rules, as `config::rules::compile` makes them.
    pub policy: &'a str,
    pub redirect: Redirect,
}

impl Parameters<'_> {
    /// As `finit_module` takes them. What is a default is left out: an older module may not know the name.
    pub(super) fn words(self) -> String {
        let policy = (!self.policy.is_empty()).then(|| format!("policy=\"{}\"", self.policy));
        let redirect = (self.redirect != Redirect::Auto).then(|| format!("redirect={}", self.redirect.word()));
        policy.into_iter().chain(redirect).collect::<Vec<_>>().join(" ")
    }
}

/// Loads a module and waits for its word. A module that was refused a redirect is taken out again.
pub fn insert(
    host: &Host,
    kernel: &dyn Kernel,
    instance: Instance,
    path: &Path,
    parameters: Parameters<'_>,
) -> Result<State, ModuleError> {
    let at = |source| LoadError::Open { path: path.to_path_buf(), source };
    let file = File::open(path).map_err(at)?;
    let parameters = CString::new(parameters.words()).map_err(|error| at(error.into()))?;
    let log = kernel.mark_log();
    if let Err(source) = kernel.insert(instance, &file, &parameters) {
        if source.raw_os_error() == Some(libc::ETIMEDOUT) {
            let (inside, held) = inside(host, instance.other());
            return Err(LoadError::Drain { inside, held }.into());
        }
        let log = log.map(last_words).unwrap_or_default();
        let for_its_signature = is_refusal(&source) && signing::demanded(host);
        let release = host.release().unwrap_or_default();
        let advice = for_its_signature.then(|| signing::advice(host, &release, Some(path)));
        return Err(LoadError::Insert { path: path.to_path_buf(), log, advice, source }.into());
    }
    let state = match state::read_of(host, instance) {
        Ok(Some(state)) => state,
        Ok(None) => return Err(take_out(host, kernel, instance, LoadError::Mute.into())),
        Err(error) => return Err(take_out(host, kernel, instance, error.into())),
    };
    match state.refused {
        Some(Refusal { symbol, errno }) => {
            Err(take_out(host, kernel, instance, LoadError::Redirect { symbol, errno }.into()))
        }
        None => Ok(state),
    }
}

/// Sees that a module which waits has a reason to: a driver that is loaded but was not found is one that this module
/// does not fit.
pub fn attached(host: &Host, kernel: &dyn Kernel, state: State, driver: Option<&Driver>) -> Result<State, ModuleError> {
    let (Phase::Waiting, Some(driver)) = (&state.phase, driver) else { return Ok(state) };
    // It may have been loaded, or unloaded, while we were.
    thread::sleep(Duration::from_millis(100));
    let now = state::read(host)?.ok_or(LoadError::Mute)?;
    if now.phase == Phase::Waiting && Driver::loaded(host).is_some() {
        let error = LoadError::Unattached { version: driver.version.clone() };
        return Err(take_out(host, kernel, now.instance, error.into()));
    }
    Ok(now)
}

/// Undoes a load that came to nothing. The reason for it is what the caller must hear, whatever becomes of this.
fn take_out(host: &Host, kernel: &dyn Kernel, instance: Instance, reason: ModuleError) -> ModuleError {
    let _ = remove(host, kernel, instance, Duration::from_secs(5), "mpu up");
    reason
}

/// What the module takes for one wait: a longer one is several.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Unloading a retired module takes no longer, unless a process holds it: readers of its files are gone in a moment.
const SHORTEST_TRY: Duration = Duration::from_secs(2);

/// Unloads the module, in two steps. It retires first: new callers go to the bare driver at once, those
/// inside have the time to leave, and then the redirects are taken out; if a caller stays inside, all is as before, and
/// the error says who. Then the kernel is asked to let the retired module go, and asked again while something holds a
/// reference. `again` is the command that may be tried again.
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
        if retired { patience.saturating_sub(began.elapsed()).max(SHORTEST_TRY.min(patience)) } else { patience };
    let began_to_unload = Instant::now();
    loop {
        match kernel.remove(instance) {
            Ok(()) => return Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(source) => return Err(LoadError::Remove { source }),
        }
        if began_to_unload.elapsed() >= patience {
            let (inside, held) = inside(host, instance);
            let waited = began.elapsed();
            let is_retired = matches!(state::read_of(host, instance), Ok(Some(state)) if state.phase == Phase::Retired);
            return Err(match is_retired {
                true => LoadError::Kept { inside, held, waited, again },
                false => LoadError::Busy { inside, held, waited, again },
            });
        }
        thread::sleep(Duration::from_millis(50).min(patience));
    }
}

/// Tells the module to retire, and waits for it; whether it is one that can retire.
fn retire(
    host: &Host,
    kernel: &dyn Kernel,
    instance: Instance,
    patience: Duration,
    again: &'static str,
) -> Result<bool, LoadError> {
    let began = Instant::now();
    loop {
        // The parameter takes whole milliseconds: a begun one counts.
        let left = patience.saturating_sub(began.elapsed()).as_micros().div_ceil(1000);
        let left = Duration::from_millis(u64::try_from(left).unwrap_or(u64::MAX));
        let Err(source) = kernel.retire(host, instance, left.min(LONGEST_WAIT)) else { return Ok(true) };
        match source.raw_os_error() {
            // One of format 1, or none any more.
            Some(libc::ENOENT) => return Ok(false),
            Some(libc::EBUSY) if left > LONGEST_WAIT => {}
            Some(libc::EBUSY) => {
                let (inside, held) = inside(host, instance);
                return Err(LoadError::Busy { inside, held, waited: began.elapsed(), again });
            }
            Some(libc::EIO) => return Err(LoadError::Stuck),
            _ => return Err(LoadError::Retire { source }),
        }
    }
}

fn inside(host: &Host, instance: Instance) -> (u64, Vec<Held>) {
    match state::read_of(host, instance) {
        Ok(Some(state)) => (state.inside, holders::look(host, &state)),
        _ => (0, Vec::new()),
    }
}

/// The newest line that the kernel wrote about us since the mark.
fn last_words(mut log: File) -> String {
    let mut words = String::new();
    let mut record = [0u8; 8192];
    // Each read of /dev/kmsg gives one record, `priority,number,time,flags;text`.
    while let Ok(len @ 1..) = log.read(&mut record) {
        let text = String::from_utf8_lossy(&record[..len]).into_owned();
        let line = text.split_once(';').map_or("", |(_, rest)| rest).lines().next().unwrap_or("");
        if line.starts_with("mpu") || ["module", "ELF", "ockdown"].iter().any(|word| line.contains(word)) {
            words = line.trim().to_string();
        }
    }
    words
}

#[cfg(any(test, feature = "fake"))]
pub mod fake;

#[cfg(test)]
mod tests;
