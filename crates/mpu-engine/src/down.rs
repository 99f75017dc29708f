//! Takes MPU down, whichever engine is up.

use super::error::EngineError;
use super::module::checks::{self, Unfit};
use super::module::error::ModuleError;
use super::module::load::{self, Kernel};
use super::module::record::Record;
use super::module::state::{self, Instance};
use mpu_host::host::{Host, CAP_SYS_MODULE};
use mpu_notify::raise::{self, Lowered};
use serde::Serialize;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    Unloaded,
    Ended,
    /// It goes on for containers that have its filter, and lets their calls through.
    Retired,
    NotUp,
}

impl How {
    pub const ALL: [How; 4] = [How::Unloaded, How::Ended, How::Retired, How::NotUp];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Down {
    pub how: How,
    pub containers: usize,
    pub took: Duration,
}

/// Takes MPU down, with some patience for whoever holds the module.
pub fn down(host: &Host, kernel: &dyn Kernel, patience: Duration) -> Result<Down, EngineError> {
    let began = Instant::now();
    checks::root(host)?;
    let unloaded = lower_module(host, kernel, patience)?;
    let lowered = match kernel.is_for(host) {
        true => raise::lower(host)?,
        false => None,
    };
    let (how, containers) = match (unloaded, lowered) {
        (true, None | Some(Lowered::Ended)) => (How::Unloaded, 0),
        (_, Some(Lowered::Retired { containers })) => (How::Retired, containers),
        (false, Some(Lowered::Ended)) => (How::Ended, 0),
        (false, None) => (How::NotUp, 0),
    };
    let took = if how == How::NotUp { Duration::ZERO } else { began.elapsed() };
    Ok(Down { how, containers, took })
}

/// Unloads the module; false if there was none.
pub fn lower_module(host: &Host, kernel: &dyn Kernel, patience: Duration) -> Result<bool, ModuleError> {
    if !state::is_loaded(host) {
        return Ok(false);
    }
    if !host.has_capability(CAP_SYS_MODULE) {
        return Err(Unfit::NotRoot.into());
    }
    if host.modules_disabled() {
        return Err(Unfit::ModulesDisabled.into());
    }
    load::same_host(host, kernel)?;
    for instance in Instance::ALL.into_iter().filter(|instance| instance.is_loaded(host)) {
        load::remove(host, kernel, instance, patience, "mpu down")?;
    }
    Record::remove(host);
    Ok(true)
}
