//! Waits for a condition on a slow, emulated machine. The limit only ends a hanging guest.

use std::ffi::CStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// More than any wait takes on the slowest test machine.
pub const TIMEOUT: Duration = Duration::from_secs(90);

const PAUSE: Duration = Duration::from_millis(20);
/// A check that starts a program can be expensive: the pause is so many times as long as the check.
const PAUSE_FACTOR: u32 = 2;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Waits until a condition holds. After [`TIMEOUT`] the error has this text.
pub fn wait_until(otherwise: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    loop {
        let checked = Instant::now();
        if holds()? {
            return Ok(());
        }
        if began.elapsed() > TIMEOUT {
            bail!("{otherwise} after {} s", TIMEOUT.as_secs());
        }
        std::thread::sleep((checked.elapsed() * PAUSE_FACTOR).clamp(PAUSE, LONGEST_PAUSE));
    }
}

/// Unloads a module that is used now and then. Each attempt is one system call, so that many fit between two uses.
pub fn unload_unused(module: &CStr) -> Result<()> {
    wait_until("all the time the module is in use:", || {
        match rustix::system::delete_module(module, OFlags::NONBLOCK.bits().cast_signed()) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::AGAIN | Errno::BUSY) => Ok(false),
            Err(error) => Err(error.into()),
        }
    })
    .with_context(|| format!("cannot unload {}", module.to_string_lossy()))
}
