//! MPU on a host: loads an engine, says what it does, and measures whether a container is seen right.
//!
//! Owns everything that runs in user space on the host. Knows nothing of how PIDs are translated (`mpu-core`) and, but
//! for the probe's few questions, nothing of the driver's layouts (`mpu-abi`).
//!
//! Entry points: [`commands`], one function per command, each giving a report that prints as text or as JSON.

// The tests' modules that both sides share name the crate.
#[cfg(test)]
extern crate self as mpu;

pub mod agent;
pub mod cli;
pub mod cluster;
pub mod commands;
pub mod doctor;
pub mod driver_view;
pub mod install;
pub mod issue;
pub mod listing;
pub mod manual;
pub mod metrics;
pub mod nri;
pub mod probe;
pub mod processes;
pub mod report;
pub mod top;
pub mod who;
pub mod wiring;
