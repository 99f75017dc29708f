//! What can go wrong with the module engine: the sum of its parts' errors, and nothing about any of them.

use super::elsewhere::ElsewhereError;
use super::prebuilt::{self, PassedOver};
use super::{build::BuildError, checks::Unfit, load_error::LoadError, sources::SourceError, state::StateError};
use mpu_host::config::UnknownDriver;
use mpu_host::explain::{chain, Explain, Sum};

/// Why the module is not up, not down, or not told what it was to be told.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// This host cannot, or must not, run the engine.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The driver's release is one that the administrator does not want.
    #[error(transparent)]
    UnknownDriver(#[from] UnknownDriver),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A module for another kernel could not be built.
    #[error(transparent)]
    Elsewhere(#[from] ElsewhereError),
    #[error(transparent)]
    State(#[from] StateError),
    /// Any of these, after modules that were there could not be used.
    #[error("{}; passed over: {}", chain(error), prebuilt::in_words(passed_over))]
    After { error: Box<ModuleError>, passed_over: Vec<PassedOver> },
    /// Any of these, when it was to take the place of another version.
    #[error("{}; {}", chain(error), what_is_up(now.as_deref()))]
    Replacing { error: Box<ModuleError>, now: Option<String> },
}

fn what_is_up(now: Option<&str>) -> String {
    now.map_or_else(|| "no engine is up now".to_string(), |version| format!("MPU {version} is up"))
}

impl ModuleError {
    pub fn after(self, passed_over: Vec<PassedOver>) -> ModuleError {
        match passed_over.is_empty() {
            true => self,
            false => ModuleError::After { error: Box::new(self), passed_over },
        }
    }

    /// The same, of one that was to take the place of another version.
    pub fn replacing(self, now: Option<String>) -> ModuleError {
        ModuleError::Replacing { error: Box::new(self), now }
    }

    pub fn plain(&self) -> &ModuleError {
        match self {
            ModuleError::After { error, .. } | ModuleError::Replacing { error, .. } => error.plain(),
            error => error,
        }
    }
}

impl Sum for ModuleError {
    fn inner(&self) -> &dyn Explain {
        match self {
            ModuleError::Unfit(e) => e,
            ModuleError::UnknownDriver(e) => e,
            ModuleError::Source(e) => e,
            ModuleError::Build(e) => e,
            ModuleError::Load(e) => e,
            ModuleError::Elsewhere(e) => e,
            ModuleError::State(e) => e,
            ModuleError::After { error, .. } | ModuleError::Replacing { error, .. } => error.inner(),
        }
    }
}
