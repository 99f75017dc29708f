use super::turns::TurnError;
use mpu_engine::error::EngineError;
use mpu_host::explain::{Explain, Sum};

/// Why an agent does not begin, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The agents of this node cannot agree.
    #[error(transparent)]
    Turn(#[from] TurnError),
    /// The engine is not as it should be.
    #[error(transparent)]
    Engine(EngineError),
}

impl<E> From<E> for AgentError
where
    EngineError: From<E>,
{
    fn from(error: E) -> AgentError {
        AgentError::Engine(error.into())
    }
}

impl Sum for AgentError {
    fn inner(&self) -> &dyn Explain {
        match self {
            AgentError::Turn(e) => e,
            AgentError::Engine(e) => e,
        }
    }
}
