//! CDI, the Container Device Interface: files that say what a device adds to a container.
//!
//! Owns names, files, their validity, and what our own specs hold. Everything speaks `edits`. Refuses to know how edits
//! reach a container (`spec`) and how a driver is found (`driver`).
//!
//! - [`Registry`] reads the host's files and resolves names to edits.
//!
//! Outside truth: CDI specification 1.1.0 (`SPEC.md` of container-device-interface).

pub mod file;
pub mod name;
pub mod registry;
pub mod validate;
pub mod version;

pub use name::{Kind, QualifiedName};
pub use registry::Registry;
