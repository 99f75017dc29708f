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
use mpu_engine::apply::Applied;
use schema::subschema;
use schemars::{Schema, SchemaGenerator};

pub use views::{NotifyView, ProofView};
pub(crate) use views::{argument_line, state_line};

/// A command, and its reports. For a command without any, only failures are JSON.
type Answers = (&'static str, fn(&mut SchemaGenerator) -> Vec<Schema>);

/// In the order of `mpu --help`.
const ANSWERS: &[Answers] = &[
    ("up", |g| vec![subschema::<up::Done>(g)]),
    ("down", |g| vec![subschema::<mpu_engine::down::Down>(g)]),
    ("status", |g| vec![subschema::<status::Status>(g)]),
    ("doctor", |g| vec![subschema::<doctor::DoctorReport>(g), subschema::<doctor::IssueReport>(g)]),
    ("ps", |g| vec![subschema::<ProcessList>(g)]),
    ("top", |g| vec![subschema::<ProcessList>(g)]),
    ("who", |g| vec![subschema::<Who>(g)]),
    ("probe", |g| vec![subschema::<crate::probe::compare::ProbeReport>(g)]),
    ("config", |g| {
        vec![subschema::<config::ConfigCheck>(g), subschema::<config::ConfigView>(g), subschema::<Applied>(g)]
    }),
    ("install", |g| vec![subschema::<Outcome>(g)]),
    ("uninstall", |g| vec![subschema::<Outcome>(g)]),
    ("agent", |g| vec![subschema::<agent::AgentResult>(g), subschema::<agent::ProbeAnswer>(g)]),
    ("nri", |_| Vec::new()),
    ("build", |g| vec![subschema::<mpu_engine::module::other_kernel::OtherKernelModule>(g)]),
    ("metrics", |_| Vec::new()),
];
