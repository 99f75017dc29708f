//! The calendar: seconds since 1970 as people write a time, in UTC.
//!
//! Owns the way from days to a date. Knows no time zone.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// A time in the form of RFC 3339: `2026-11-20T20:15:00Z`.
pub fn stamp(seconds: u64) -> String {
    format!("{}T{}Z", date(seconds), of_day(seconds))
}

/// The time of now and a space, for the beginning of a log's line; nothing where whoever keeps the lines adds it (systemd's journal:
/// `JOURNAL_STREAM` of systemd.exec(5)).
pub fn of_line() -> String {
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        return String::new();
    }
    format!("{} ", stamp(now()))
}

/// A time for a person: `2026-11-20 20:15:00 UTC`.
pub fn in_words(seconds: u64) -> String {
    format!("{} {} UTC", date(seconds), of_day(seconds))
}

/// Years are counted from March, in eras of 400 years: the leap day is the last of its year.
fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

fn of_day(seconds: u64) -> String {
    let of_day = seconds % 86_400;
    format!("{:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_what_a_calendar_says() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_700_003_725, "2023-11-14T23:15:25Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(stamp(seconds), text);
        }
        assert_eq!(in_words(1_795_205_700), "2026-11-20 20:15:00 UTC");
    }
}
