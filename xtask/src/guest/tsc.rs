//! Measures the frequency of the time-stamp counter, for guests: one that boots on a busy machine measures it some times too low, and all
//! its clocks then run too fast.

use std::time::{Duration, Instant};

use super::sys::tsc;

/// The error of a moment: 1 in 10,000 of [`SPAN`].
const EXACT: Duration = Duration::from_micros(5);
const SPAN: Duration = Duration::from_millis(50);
/// A machine that interrupts every single look is too busy to be measured.
const LOOKS: u32 = 10_000;

/// The counter and the clock at the same moment.
fn moment() -> Option<(u64, Instant)> {
    (0..LOOKS).find_map(|_| {
        let before = Instant::now();
        let count = tsc()?;
        (before.elapsed() < EXACT).then_some((count, before))
    })
}

/// In kHz; none on a machine without such a counter.
pub fn khz() -> Option<u64> {
    let (from, began) = moment()?;
    std::thread::sleep(SPAN);
    let (to, ended) = moment()?;
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
