//! The notify engine: MPU in user space, for hosts that cannot load the kernel module.
//!
//! A seccomp filter in the container sends the driver's controls and events to a supervisor in the host's PID namespace. The
//! supervisor calls the driver and gives the caller a translated answer (docs/notify.md). `mpu-container`, `mpu nri` or `mpu run`
//! install the filter.

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

mod id;
mod kernel;
mod listener;
mod log;
pub mod raise;
pub mod run;
mod setting;
pub mod supervised_child;
pub mod supervisor;
mod sys;
pub mod systemd;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A poisoned lock occurs in tests only: a release build aborts at a panic, and its keeper restarts it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Folder of the engine's sockets and log, which only root can enter.
const FOLDER: &str = "/run/mpu/notify";
/// OCI runtimes send listeners of new containers here. If it accepts connections, an engine runs.
pub const LISTENER_SOCKET: &str = "/run/mpu/notify/listener.sock";
/// Exists while the supervisor takes no new container. The socket still accepts connections, for an `exec` into an old one.
pub const RETIRED: &str = "/run/mpu/notify/retired";
/// Takes requests for the supervisor.
pub const CONTROL_SOCKET: &str = "/run/mpu/notify/control.sock";
/// Log of a supervisor without systemd, and of its keeper. It starts anew after 1 MiB.
pub const LOG: &str = "/run/mpu/notify/log";

/// Restarts in the last hour are counted up to this number.
pub const MOST_COUNTED: u64 = 8;
