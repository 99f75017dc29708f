//! What the engine says where nobody asked.
//!
//! Owns that each line has its time, where whoever keeps the lines does not add it (systemd's journal does). Decides nothing.

use mpu_host::time;

/// Writes a line to standard error.
macro_rules! say {
    ($($words:tt)+) => {
        eprintln!("{}mpu: {}", $crate::log::when(), format_args!($($words)+))
    };
}
pub(super) use say;

/// The time of now, and a space; nothing where it is added anyway (`JOURNAL_STREAM` of systemd.exec(5)).
pub(super) fn when() -> String {
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        return String::new();
    }
    format!("{} ", time::stamp(time::now()))
}
