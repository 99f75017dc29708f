//! The sum of the modules' errors, for where commands end. Nothing below commands knows it.

use crate::agent::AgentError;
use crate::agent::turns::TurnError;
use crate::install::InstallError;
use crate::issue::ReportError;
use crate::metrics::MetricsError;
use crate::nri::NriError;
use crate::probe::ProbeError;
use crate::processes::ProcessError;
use crate::top::TopError;
use crate::who::WhoError;
use mpu_engine::error::EngineError;
use mpu_host::explain::{Explain, Sum};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Engine(EngineError),
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Turn(#[from] TurnError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Top(#[from] TopError),
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error(transparent)]
    Nri(#[from] NriError),
    #[error(transparent)]
    Who(#[from] WhoError),
}

impl<E> From<E> for Error
where
    EngineError: From<E>,
{
    fn from(error: E) -> Error {
        Error::Engine(error.into())
    }
}

impl Sum for Error {
    fn inner(&self) -> &dyn Explain {
        match self {
            Error::Engine(e) => e,
            Error::Probe(e) => e,
            Error::Agent(e) => e,
            Error::Turn(e) => e,
            Error::Process(e) => e,
            Error::Top(e) => e,
            Error::Install(e) => e,
            Error::Report(e) => e,
            Error::Metrics(e) => e,
            Error::Nri(e) => e,
            Error::Who(e) => e,
        }
    }
}
