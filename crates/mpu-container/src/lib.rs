//! Puts NVIDIA's driver into containers: the OCI runtime wrapper, the prestart hook, the container CLI, CDI.
//!
//! Replaces NVIDIA's container toolkit and libnvidia-container, with their names and arguments, so that engines and scripts need no
//! change. The engines in `crates/mpu` translate PIDs, not this crate.
//!
//! Trust: the host's files and `config.toml` are trusted. The image, its environment and its file system are not. Their paths are
//! resolved only beneath the container's root, and are never used as paths on the host. No driver code is loaded or run on the
//! host.

pub mod beneath;
pub mod capability;
pub mod cdi;
pub mod cdi_hooks;
mod cgroups;
mod chain;
mod char_links;
pub mod cli;
pub mod config;
pub mod ctk;
pub mod driver;
pub mod edits;
pub mod engines;
mod executable;
mod glob;
pub mod installer;
mod kebab_name;
pub mod ldconfig;
pub mod limits;
pub mod links;
mod lock;
pub mod manual;
pub mod names;
pub mod output;
pub mod prestart;
pub mod program;
pub mod refresh;
pub mod request;
pub mod require;
pub mod runtime;
pub mod spec;
mod text_file;
