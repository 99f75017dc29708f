//! The engines, as several reports show them.

mod module;
mod notify;

pub use module::{ArgumentView, HolderView, ProofView, StateView};
pub use notify::NotifyView;
