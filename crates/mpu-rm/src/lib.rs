//! A small client of NVIDIA's resource manager: enough to be seen by it, to ask whom it sees, and to ask a GPU what no file tells.
//!
//! Owns the raw ioctls, which no other module has, and asks typed questions with them. Every object that it makes and every control
//! that it asks has parameters without a pointer, so the driver writes into our buffers and nowhere else. Draws no conclusions.

mod client;
mod error;
mod gpu;
mod memory;
mod object;
mod processes;
mod sys;
mod words;

pub use client::{Client, Nodes};
pub use error::RmError;
pub use memory::MemoryBackend;
pub use processes::{PidInfo, Samples, has_samples};
