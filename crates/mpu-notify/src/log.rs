//! The engine's log lines on standard error, each with its time.

/// Writes a line to standard error. Ignores errors: a full disk must not stop the supervisor.
macro_rules! log {
    ($($words:tt)+) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{}mpu: {}", mpu_host::time::of_line(), format_args!($($words)+));
    }};
}
pub(crate) use log;
