//! The notify engine: MPU in user space, for hosts whose kernel takes no module.
//!
//! Owns a supervisor in the host's PID namespace. The first process of a container carries a filter that hands the driver's
//! controls and events to it; it asks the driver itself and gives the caller a translated answer (docs/notify.md). Knows nothing of how
//! the filter gets into a container: that is `mpu-container`'s, `mpu nri`'s or `mpu run`'s.

mod budget;
mod bytes;
mod caller;
pub mod client;
mod counters;
mod driver;
pub mod error;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod filter;
pub mod guest;
mod id;
mod kernel;
mod listener;
mod log;
pub mod raise;
pub mod run;
mod setting;
pub mod supervisor;
mod sys;
pub mod systemd;

/// Where an OCI runtime hands over the listener of a new container. That it takes a connection means: an engine is up.
pub const LISTENER_SOCKET: &str = "/run/mpu/notify/listener.sock";
/// There while the supervisor takes no new container. Its socket still takes connections: an `exec` into an old one needs it.
pub const RETIRED: &str = "/run/mpu/notify/retired";
/// Where the supervisor is asked and told things.
pub const CONTROL_SOCKET: &str = "/run/mpu/notify/control.sock";

/// Deaths of supervisors of the last hour that are counted one by one.
pub const MOST_COUNTED: u64 = 8;
