//! Waits for a condition on a slow, emulated machine. The limit decides nothing; it only ends a hanging guest.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// No machine that plays stories at all is slower.
pub const PATIENCE: Duration = Duration::from_secs(90);

const PAUSE: Duration = Duration::from_millis(20);
/// A look that starts a program can cost more than what is waited for: between two, so many times its own length passes.
const REST: u32 = 2;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Waits until it holds; else an error with these words.
pub fn until(otherwise: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    loop {
        let asked = Instant::now();
        if holds()? {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            bail!("{otherwise} after {} s", PATIENCE.as_secs());
        }
        std::thread::sleep((asked.elapsed() * REST).clamp(PAUSE, LONGEST_PAUSE));
    }
}
