//! The engines, as several reports show them.

mod module;
mod notify;

pub use module::ProofView;
pub(crate) use module::{argument_line, state_line};
pub use notify::NotifyView;
