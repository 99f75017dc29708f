//! What the administrator decided: which containers, and where the engine listens.

use std::path::PathBuf;

/// Where the engine listens, unless the administrator says otherwise.
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

/// Which containers with a GPU have the notify engine told of their calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotifyPolicy {
    /// All but those whose environment says `MPU_NOTIFY=off`.
    On,
    /// Those whose environment says `MPU_NOTIFY=on`.
    OptIn,
    Off,
    Always,
}

impl NotifyPolicy {
    /// Every one, and its word.
    pub const ALL: [(&'static str, NotifyPolicy); 4] = [
        ("on", NotifyPolicy::On),
        ("opt-in", NotifyPolicy::OptIn),
        ("off", NotifyPolicy::Off),
        ("always", NotifyPolicy::Always),
    ];
}
