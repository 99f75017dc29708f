//! Engines: the ways in which translation gets between the driver and its callers.
//!
//! Owns the choice. An engine is a module below this one; there is one today. A second one adds a variant to
//! [`Engine`], a line to [`choose`] and its own module, and nothing else here.

pub mod module;
pub mod notify;
pub mod observe;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An engine that this build has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// The kernel module.
    Module,
}

impl Engine {
    /// Every engine of this build.
    pub const ALL: [Engine; 1] = [Engine::Module];

    /// Its name, as the command line and JSON write it.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Module => "module",
        }
    }
}

/// What the caller asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// The one that this host runs best
    Auto,
    /// The kernel module
    Module,
}

/// An engine and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The engine.
    pub engine: Engine,
    /// Why this one, as half a sentence.
    pub why: &'static str,
}

/// Picks the engine.
pub fn choose(asked: Asked) -> Choice {
    match asked {
        Asked::Module => Choice { engine: Engine::Module, why: "asked for" },
        Asked::Auto => Choice { engine: Engine::Module, why: "the only engine of this version" },
    }
}
