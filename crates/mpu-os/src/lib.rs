//! What all crates ask of the operating system, in one way each.
//!
//! Each mechanism is a module around a library. Nothing here knows MPU.

pub mod child;
pub mod devices;
pub mod file;
pub mod lock;
pub mod text;
