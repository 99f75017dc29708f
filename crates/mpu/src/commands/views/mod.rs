//! The driver and the engines, as several reports show them.

mod driver;
mod module;
mod notify;

pub use driver::DriverView;
pub use module::{ArgumentView, HolderView, ProofView, StateView};
pub use notify::NotifyView;
