//! What the engine says where nobody asked.
//!
//! Owns that each line has its time, where whoever keeps the lines does not add it (systemd's journal does). Decides nothing.

use std::time::{SystemTime, UNIX_EPOCH};

/// Writes a line to standard error.
macro_rules! say {
    ($($words:tt)+) => {
        eprintln!("{}mpu: {}", $crate::engine::notify::log::time(), format_args!($($words)+))
    };
}
pub(super) use say;

/// The time of now, and a space; nothing where it is added anyway (`JOURNAL_STREAM` of systemd.exec(5)).
pub(super) fn time() -> String {
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        return String::new();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    format!("{} ", in_utc(now))
}

fn in_utc(seconds: u64) -> String {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 0;
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", month + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_what_a_calendar_says() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_795_205_700, "2026-11-20T20:15:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(in_utc(seconds), text);
        }
    }
}
