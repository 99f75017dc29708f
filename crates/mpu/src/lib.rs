//! MPU on a host: loads an engine, says what it does, and measures whether a container is seen right.
//!
//! Owns everything that runs in user space on the host. Knows nothing of how PIDs are translated (`mpu-core`) and, but
//! for the probe's few questions, nothing of the driver's layouts (`mpu-abi`).
//!
//! Entry points: [`commands`], one function per command, each giving a report that prints as text or as JSON.

pub mod agent;
pub mod cli;
pub mod commands;
pub mod config;
pub mod containers;
pub mod doctor;
pub mod driver;
pub mod engine;
pub mod error;
pub mod exit;
pub mod explain;
pub mod host;
pub mod install;
pub mod kernel_release;
pub mod listing;
pub mod manual;
pub mod metrics;
pub mod probe;
pub mod processes;
pub mod progress;
pub mod report;
pub mod rm;
pub mod signing;
mod sys;
pub mod time;
pub mod top;

pub use error::Error;
pub use exit::Exit;
pub use explain::Explain;
pub use host::Host;
