//! Takes the running engine down.

use super::module::checks::{self, Unfit};
use super::module::error::ModuleError;
use super::module::load::{self, Kernel};
use super::module::record::Record;
use super::module::state::{self, Instance};
use mpu_host::explain::Explained;
use mpu_host::host::{CAP_SYS_MODULE, Host};
use mpu_notify::raise::{self, Lowered};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::{Duration, Instant};

// Comments that rustdoc sees would go into the schema of reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum How {
    Unloaded,
    Ended,
    // It stays for containers with its filter, and passes their calls on.
    Retired,
    NotUp,
}

/// What was done.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct Down {
    /// `unloaded` (the module), `ended` (the notify engine), `retired` (the notify engine, which stays for containers with its filter)
    /// or `not_up`.
    pub result: How,
    /// Containers with the notify engine's filter: their calls pass untouched until they end.
    pub containers: usize,
    /// Seconds taken.
    pub seconds: f64,
}

/// Takes MPU down. Waits up to `patience` for processes inside the module.
pub fn down(host: &Host, kernel: &dyn Kernel, patience: Duration) -> Result<Down, Explained> {
    let began = Instant::now();
    checks::root(host)?;
    let unloaded = lower_module(host, kernel, patience)?;
    let lowered = match kernel.is_for(host) {
        true => raise::lower(host)?,
        false => None,
    };
    let (result, containers) = match (unloaded, lowered) {
        (true, None | Some(Lowered::Ended)) => (How::Unloaded, 0),
        (_, Some(Lowered::Retired { containers })) => (How::Retired, containers),
        (false, Some(Lowered::Ended)) => (How::Ended, 0),
        (false, None) => (How::NotUp, 0),
    };
    let took = if result == How::NotUp { Duration::ZERO } else { began.elapsed() };
    Ok(Down { result, containers, seconds: took.as_secs_f64() })
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
    load::check_is_running_kernel(host, kernel)?;
    for instance in Instance::ALL.into_iter().filter(|instance| instance.is_loaded(host)) {
        load::remove(host, kernel, instance, patience, "mpu down")?;
    }
    Record::remove(host);
    Ok(true)
}
