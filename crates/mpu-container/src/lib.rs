//! Puts NVIDIA's driver into containers: the OCI runtime wrapper, the prestart hook, the container CLI, CDI.
//!
//! Replaces NVIDIA's container toolkit and libnvidia-container, under their names and with their arguments, so that engines and
//! scripts need no change. PIDs are not translated here but by the engines (`crates/mpu`).
//!
//! Trust: the host's files and `config.toml` are trusted. The image, its environment and its file system are not: a path in them is
//! only resolved beneath the container's root, and never names a path of the host. No code of the driver is loaded or run on
//! the host's side.

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
