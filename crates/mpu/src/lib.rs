//! The `mpu` command's library: starts and stops an engine, reports its state, and measures whether containers get
//! right answers.
//!
//! Runs in user space on the host. `mpu-core` translates PIDs, and `mpu-rm` calls the driver.
//!
//! Entry points: [`commands`], with one function per command. Each returns a report that prints as text or as JSON.

// Test modules that unit and integration tests share refer to the crate by its name.
#[cfg(test)]
extern crate self as mpu;

pub mod agent;
pub mod cli;
pub mod cluster;
pub mod commands;
pub mod container_engines;
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
