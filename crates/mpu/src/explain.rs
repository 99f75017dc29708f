//! What every error of this crate can say beyond its message: a stable word, an exit code, and what to do.
//!
//! Knows no error by name.

use crate::exit::Exit;

/// What an error owes the person who meets it.
pub trait Explain: std::error::Error {
    /// A stable word for JSON and scripts, such as `no_headers`.
    fn code(&self) -> &'static str;
    /// The exit code that it leads to.
    fn exit(&self) -> Exit;
    /// What to do about it, as one sentence.
    fn fix(&self) -> String;
}
