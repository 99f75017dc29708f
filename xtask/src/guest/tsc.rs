//! Measures the frequency of the time-stamp counter for guests. A guest that boots on a busy machine measures it up to several times too
//! low, and then all its clocks run too fast.

use std::time::{Duration, Instant};

use super::sys::tsc;

/// The largest error of a sample: 1 in 10,000 of [`SPAN`].
const MAX_ERROR: Duration = Duration::from_micros(5);
const SPAN: Duration = Duration::from_millis(50);
/// If every sample is interrupted, the machine is too busy for a measurement.
const MAX_SAMPLES: u32 = 10_000;

/// Reads the counter and the clock at the same moment.
fn sample() -> Option<(u64, Instant)> {
    (0..MAX_SAMPLES).find_map(|_| {
        let before = Instant::now();
        let count = tsc()?;
        (before.elapsed() < MAX_ERROR).then_some((count, before))
    })
}

/// The frequency in kHz; none on a machine without such a counter, or on one that is too busy.
pub fn khz() -> Option<u64> {
    let (from, began) = sample()?;
    std::thread::sleep(SPAN);
    let (to, ended) = sample()?;
    let nanoseconds = u64::try_from(ended.duration_since(began).as_nanos()).ok()?;
    to.checked_sub(from)?.checked_mul(1_000_000)?.checked_div(nanoseconds)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::khz;

    #[test]
    fn two_measurements_agree_to_a_thousandth() {
        let (one, other) = (khz().unwrap(), khz().unwrap());
        assert!(one > 100_000 && one.abs_diff(other) < one / 1000, "{one} and {other} kHz");
    }
}
