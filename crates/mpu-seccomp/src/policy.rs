//! The administrator's settings: which containers get a listener, and the engine's socket.

use std::path::PathBuf;

/// The engine's default socket.
pub const SOCKET: &str = "/run/mpu/notify/listener.sock";

/// Which containers get the listener, and its socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notify {
    pub policy: NotifyPolicy,
    /// The engine's socket: an absolute path.
    pub socket: PathBuf,
}

impl Default for Notify {
    fn default() -> Notify {
        Notify { policy: NotifyPolicy::On, socket: SOCKET.into() }
    }
}

/// Which containers with a GPU send their calls to the notify engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotifyPolicy {
    /// All but those with `MPU_NOTIFY=off` in their environment.
    On,
    /// Those with `MPU_NOTIFY=on` in their environment.
    OptIn,
    Off,
    Always,
}

impl NotifyPolicy {
    /// Each policy with its word in config.toml.
    pub const ALL: [(&'static str, NotifyPolicy); 4] = [
        ("on", NotifyPolicy::On),
        ("opt-in", NotifyPolicy::OptIn),
        ("off", NotifyPolicy::Off),
        ("always", NotifyPolicy::Always),
    ];
}
