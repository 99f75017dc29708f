//! Formats seconds since 1970 as UTC time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// A time in the form of RFC 3339: `2026-11-20T20:15:00Z`.
pub fn stamp(seconds: u64) -> String {
    // The last second of the year 9999, the largest time of this form.
    let time = UNIX_EPOCH + Duration::from_secs(seconds.min(253_402_300_799));
    humantime::format_rfc3339_seconds(time).to_string()
}

/// The seconds of a time in that form.
pub fn of_stamp(text: &str) -> Option<u64> {
    humantime::parse_rfc3339(text).ok()?.duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs())
}

/// The present time and a space, for the beginning of a log line; empty if systemd's journal adds it (`JOURNAL_STREAM` of
/// systemd.exec(5)).
pub fn of_line() -> String {
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        return String::new();
    }
    format!("{} ", stamp(now()))
}

/// A time for a person: `2026-11-20 20:15:00 UTC`.
pub fn in_words(seconds: u64) -> String {
    stamp(seconds).replace('T', " ").replace('Z', " UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_matches_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_700_003_725, "2023-11-14T23:15:25Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (u64::MAX, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(stamp(seconds), text);
            assert_eq!(of_stamp(text).map(stamp).as_deref(), Some(text));
        }
        assert_eq!(in_words(1_795_205_700), "2026-11-20 20:15:00 UTC");
    }
}
