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
use schema::one;
use schemars::{Schema, SchemaGenerator};

pub use views::{ArgumentView, HolderView, NotifyView, ProofView, StateView};

struct Answers {
    name: &'static str,
    /// Its reports. For a command without any, only failures are JSON.
    reports: fn(&mut SchemaGenerator) -> Vec<Schema>,
}

/// In the order of `mpu --help`.
const ANSWERS: &[Answers] = &[
    Answers { name: "up", reports: |g| vec![one::<up::Done>(g)] },
    Answers { name: "down", reports: |g| vec![one::<mpu_engine::down::Down>(g)] },
    Answers { name: "status", reports: |g| vec![one::<status::Status>(g)] },
    Answers { name: "doctor", reports: |g| vec![one::<doctor::DoctorReport>(g), one::<doctor::IssueReport>(g)] },
    Answers { name: "ps", reports: |g| vec![one::<ProcessList>(g)] },
    Answers { name: "top", reports: |g| vec![one::<ProcessList>(g)] },
    Answers { name: "who", reports: |g| vec![one::<Who>(g)] },
    Answers { name: "probe", reports: |g| vec![one::<crate::probe::compare::ProbeReport>(g)] },
    Answers {
        name: "config",
        reports: |g| vec![one::<config::Sound>(g), one::<config::Shown>(g), one::<mpu_engine::apply::Applied>(g)],
    },
    Answers { name: "install", reports: |g| vec![one::<Outcome>(g)] },
    Answers { name: "uninstall", reports: |g| vec![one::<Outcome>(g)] },
    Answers { name: "agent", reports: |g| vec![one::<agent::AgentResult>(g), one::<agent::ProbeAnswer>(g)] },
    Answers { name: "nri", reports: |_| Vec::new() },
    Answers { name: "build", reports: |g| vec![one::<mpu_engine::module::elsewhere::Elsewhere>(g)] },
    Answers { name: "metrics", reports: |_| Vec::new() },
];
