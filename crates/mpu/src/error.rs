//! The sum of the modules' errors, and nothing about any of them.

use crate::agent::turns::TurnError;
use crate::config::ConfigError;
use crate::engine::module::{
    build::BuildError, checks::Unfit, load::LoadError, sources::SourceError, state::StateError,
};
use crate::engine::notify::error::NotifyError;
use crate::exit::Exit;
use crate::explain::Explain;
use crate::install::InstallError;
use crate::metrics::MetricsError;
use crate::probe::ProbeError;
use crate::processes::ProcessError;
use crate::top::TopError;

/// Any failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This host cannot, or must not, run the engine.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The module's sources are not to be had.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The module could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The module could not be loaded or unloaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The module's state could not be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// The notify engine is not up, or not told what it was to be told.
    #[error(transparent)]
    Notify(#[from] NotifyError),
    /// The driver could not be asked.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The agents of this node cannot agree.
    #[error(transparent)]
    Turn(#[from] TurnError),
    /// GPU processes cannot be seen.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The live list cannot be shown.
    #[error(transparent)]
    Top(#[from] TopError),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The installation was not changed.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// Metrics cannot be given.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
}

impl Error {
    fn inner(&self) -> &dyn Explain {
        match self {
            Error::Unfit(e) => e,
            Error::Source(e) => e,
            Error::Build(e) => e,
            Error::Load(e) => e,
            Error::State(e) => e,
            Error::Notify(e) => e,
            Error::Probe(e) => e,
            Error::Turn(e) => e,
            Error::Process(e) => e,
            Error::Top(e) => e,
            Error::Config(e) => e,
            Error::Install(e) => e,
            Error::Metrics(e) => e,
        }
    }
}

impl Explain for Error {
    fn code(&self) -> &'static str {
        self.inner().code()
    }
    fn exit(&self) -> Exit {
        self.inner().exit()
    }
    fn fix(&self) -> String {
        self.inner().fix()
    }
}
