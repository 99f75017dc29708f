//! The engine's log lines on standard error.
//!
//! Owns that each line has its time, and that a log which cannot be written to ends nothing: containers wait for those who write here.
//! Decides nothing.

/// Writes a line to standard error, if that takes it.
macro_rules! say {
    ($($words:tt)+) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{}mpu: {}", mpu_host::time::of_line(), format_args!($($words)+));
    }};
}
pub(crate) use say;
