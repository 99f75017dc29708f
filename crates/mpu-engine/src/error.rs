//! Errors of either engine.

use super::module::error::ModuleError;
use mpu_host::config::ConfigError;
use mpu_host::explain::{Explain, Sum};
use mpu_notify::error::NotifyError;

/// Why an engine is not up, not down, or not configured.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Module(ModuleError),
    #[error(transparent)]
    Notify(#[from] NotifyError),
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl<E> From<E> for EngineError
where
    ModuleError: From<E>,
{
    fn from(error: E) -> EngineError {
        EngineError::Module(error.into())
    }
}

impl Sum for EngineError {
    fn inner(&self) -> &dyn Explain {
        match self {
            EngineError::Module(e) => e,
            EngineError::Notify(e) => e,
            EngineError::Config(e) => e,
        }
    }
}
