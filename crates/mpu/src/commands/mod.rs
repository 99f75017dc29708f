//! The commands: each takes a host and options, has its work done, and gives a report.
//!
//! Owns the reports and their words. Parsing arguments is `cli`'s, doing things is the engines' and the other rooms'; what reports
//! have in common is `report`'s.

pub mod agent;
pub mod config;
pub mod doctor;
pub mod down;
pub mod install;
pub mod metrics;
pub mod probe;
pub mod ps;
pub mod schema;
pub mod status;
pub mod up;
mod views;

pub use views::{ArgumentView, DriverView, HolderView, NotifyView, ProofView, Refusal, StateView};
