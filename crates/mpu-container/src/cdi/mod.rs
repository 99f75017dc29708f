//! CDI, the Container Device Interface: files with the edits that a device makes to a container.
//!
//! - [`Registry`] reads the host's files and resolves names to edits.
//! - [`edits_for`] makes a driver's edits for a container that is about to start.
//! - [`generate()`] makes a file of all that a host's driver has; `transform` moves its paths.
//!
//! Source: CDI specification 1.1.0 (`SPEC.md` of container-device-interface).

pub mod extra;
pub mod file;
pub mod generate;
pub mod hooks;
pub mod inject;
pub mod name;
pub mod registry;
pub mod transform;
pub mod validate;
pub mod version;

pub use generate::{GenerateError, Request, generate};
pub use hooks::{HookName, Hooks};
pub use inject::{Options, edits_for};
pub use name::{Kind, QualifiedName};
pub use registry::Registry;

#[cfg(test)]
mod tests;
