//! The engines, as several reports show them.

mod module;
mod notify;

pub use module::{ArgumentView, ProofView, StateView};
pub use notify::NotifyView;
