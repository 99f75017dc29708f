//! A small client of NVIDIA's resource manager (RM). It registers this process with the RM, lists the processes that the RM
//! knows, and reads facts of a GPU that no file has.
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
