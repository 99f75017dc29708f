//! CDI, the Container Device Interface: spec files describe devices by their edits to a container.
//!
//! - [`Registry`] reads the host's files and resolves names to edits.
//! - [`inject::edits_for`] generates a driver's edits for one container.
//! - [`generate()`] generates a spec of all devices of a host's driver; `transform` changes its root paths.
//!
//! Source: CDI specification 1.1.0 (`SPEC.md` of container-device-interface).

pub mod error;
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

pub use error::GenerateError;
pub use generate::{Request, generate};
pub use hooks::{HookName, Hooks};
pub use inject::Options;
pub use name::{Kind, QualifiedName};
pub use registry::Registry;

#[cfg(test)]
mod tests;
