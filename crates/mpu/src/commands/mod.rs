//! The commands: each takes a host and options, and returns a report.

pub mod agent;
pub mod build;
pub mod config;
pub mod doctor;
pub mod down;
pub mod fields;
mod install;
pub mod probe;
pub mod schema;
pub mod status;
pub mod up;
mod views;
mod who;

use crate::install::Outcome;
use crate::listing::ProcessList;
use crate::who::Who;
use schema::subschema;
use schemars::{Schema, SchemaGenerator};

pub use views::{ArgumentView, NotifyView, ProofView, StateView};

struct CommandSchema {
    name: &'static str,
    /// Its reports. For a command without any, only failures are JSON.
    reports: fn(&mut SchemaGenerator) -> Vec<Schema>,
}

/// In the order of `mpu --help`.
const ANSWERS: &[CommandSchema] = &[
    CommandSchema { name: "up", reports: |g| vec![subschema::<up::Done>(g)] },
    CommandSchema { name: "down", reports: |g| vec![subschema::<mpu_engine::down::Down>(g)] },
    CommandSchema { name: "status", reports: |g| vec![subschema::<status::Status>(g)] },
    CommandSchema {
        name: "doctor",
        reports: |g| vec![subschema::<doctor::DoctorReport>(g), subschema::<doctor::IssueReport>(g)],
    },
    CommandSchema { name: "ps", reports: |g| vec![subschema::<ProcessList>(g)] },
    CommandSchema { name: "top", reports: |g| vec![subschema::<ProcessList>(g)] },
    CommandSchema { name: "who", reports: |g| vec![subschema::<Who>(g)] },
    CommandSchema { name: "probe", reports: |g| vec![subschema::<crate::probe::compare::ProbeReport>(g)] },
    CommandSchema {
        name: "config",
        reports: |g| {
            vec![
                subschema::<config::ConfigCheck>(g),
                subschema::<config::ConfigView>(g),
                subschema::<mpu_engine::apply::Applied>(g),
            ]
        },
    },
    CommandSchema { name: "install", reports: |g| vec![subschema::<Outcome>(g)] },
    CommandSchema { name: "uninstall", reports: |g| vec![subschema::<Outcome>(g)] },
    CommandSchema {
        name: "agent",
        reports: |g| vec![subschema::<agent::AgentResult>(g), subschema::<agent::ProbeAnswer>(g)],
    },
    CommandSchema { name: "nri", reports: |_| Vec::new() },
    CommandSchema {
        name: "build",
        reports: |g| vec![subschema::<mpu_engine::module::other_kernel::OtherKernelModule>(g)],
    },
    CommandSchema { name: "metrics", reports: |_| Vec::new() },
];
