//! Puts NVIDIA's driver into containers: the OCI runtime wrapper, the prestart hook, the container CLI, CDI.
//!
//! Owns what NVIDIA's container toolkit and libnvidia-container do, under their names and with their arguments, so that
//! engines and scripts need no change. Knows nothing of PIDs: what a container *sees* of the GPU's processes is the
//! engines' business (`crates/mpu`); what a container *has* is decided here.
//!
//! Who trusts whom: the host's files and `config.toml` are the administrator's. The image, its environment and its file
//! system are a stranger's: a path in them is only ever resolved beneath the container's root, and none of them names a
//! path of the host. No code of the driver is loaded or run on the host's side.

pub mod beneath;
pub mod capability;
pub mod cdi;
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
pub mod hook;
pub mod hooks;
pub mod installer;
pub mod ldconfig;
pub mod limits;
pub mod links;
mod lock;
pub mod manual;
pub mod names;
pub mod output;
pub mod program;
pub mod refresh;
pub mod request;
pub mod require;
pub mod runtime;
pub mod spec;
mod text_file;
mod words;
