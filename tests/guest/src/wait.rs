//! Waits for a condition on a slow, emulated machine. The limit decides nothing; it only ends a hanging guest.

use std::ffi::CStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// No machine that plays stories at all is slower.
pub const TIMEOUT: Duration = Duration::from_secs(90);

const PAUSE: Duration = Duration::from_millis(20);
/// A look that starts a program can cost more than what is waited for: between two, so many times its own length passes.
const REST: u32 = 2;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Waits until it holds; else an error with these words.
pub fn wait_until(otherwise: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    loop {
        let asked = Instant::now();
        if holds()? {
            return Ok(());
        }
        if began.elapsed() > TIMEOUT {
            bail!("{otherwise} after {} s", TIMEOUT.as_secs());
        }
        std::thread::sleep((asked.elapsed() * REST).clamp(PAUSE, LONGEST_PAUSE));
    }
}

/// Unloads a module whose users come and go. Each attempt is one system call, so that many fall between two uses.
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
