//! A small client of NVIDIA's resource manager (RM). It registers this process with RM, lists the processes with RM clients, and
//! reads GPU facts that no file has.
//!
//! It uses only objects and controls without pointers in their parameters, so the driver writes to our buffers and nowhere else.

mod bytes;
mod client;
mod error;
mod gpu;
mod memory;
mod object;
mod processes;
mod sys;

pub use client::{Client, Nodes};
pub use error::RmError;
pub use memory::MemoryBackend;
pub use processes::{EngineSample, PidInfo, Samples, has_samples};
