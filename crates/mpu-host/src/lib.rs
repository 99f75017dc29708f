//! Facts of a host: its files, its driver, its containers, its configuration; and explanations of errors. Changes nothing on the host
//! ([`sys`] changes the calling process).

pub mod cgroup;
pub mod config;
pub mod containers;
pub mod driver;
pub mod exit;
pub mod explain;
pub mod folder;
pub mod holders;
pub mod host;
pub mod kernel_release;
pub mod maker;
pub mod phase;
pub mod progress;
pub mod sys;
pub mod time;

pub use exit::Exit;
pub use explain::Explain;
pub use host::Host;
