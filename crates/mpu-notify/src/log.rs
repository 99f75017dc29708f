//! What the engine says where nobody asked.
//!
//! Owns that each line has its time. Decides nothing.

/// Writes a line to standard error.
macro_rules! say {
    ($($words:tt)+) => {
        eprintln!("{}mpu: {}", mpu_host::time::of_line(), format_args!($($words)+))
    };
}
pub(super) use say;
