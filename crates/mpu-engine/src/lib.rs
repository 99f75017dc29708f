//! Engines: the ways to translate between the driver and its callers.
//!
//! Each engine is a module below this one. A new one adds a variant to [`Engine`], a line to [`up::preflight`] and its own module.

pub mod apply;
pub mod down;
pub mod module;
pub mod observe;
pub mod signing;
pub mod up;

use schemars::JsonSchema;
use serde::Serialize;

/// An engine that this build has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// The kernel module.
    Module,
    /// The supervisor in user space.
    Notify,
}

impl Engine {
    /// Every engine of this build, best first.
    pub const ALL: [Engine; 2] = [Engine::Module, Engine::Notify];

    /// Its name, as the command line and JSON write it.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Module => "module",
            Engine::Notify => "notify",
        }
    }
}
