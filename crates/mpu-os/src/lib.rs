//! Operating system mechanisms, one module each, that all crates share.

pub mod child;
pub mod deadline;
pub mod devices;
pub mod file;
pub mod lock;
pub mod socket;
pub mod text;
