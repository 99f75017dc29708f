//! Compares a measurement with the right answer, or, without an engine, with the prediction for the driver's release.

use super::verdict::{self, Fault, Verdict};
use super::{Evidence, ProbeError, Under, measure, this_program};
use mpu_engine::Engine;
use mpu_engine::module::state;
use mpu_host::driver::{self, Driver, Numbering};
use mpu_host::host::{CAP_SYS_ADMIN, Host};
use mpu_notify::guest;
use schemars::JsonSchema;
use serde::Serialize;

#[derive(Debug, Clone)]
pub struct Comparison {
    /// The engine that was translating, if one was.
    pub engine: Option<Engine>,
    /// Whether the result is as expected from the engine, or without one from the driver's release; none if nothing is expected.
    pub as_expected: Option<bool>,
    pub driver: Driver,
    /// The faults; empty if a container is seen right.
    pub faults: Vec<Fault>,
    pub found: Numbers,
    /// The numbering that the release predicts without an engine.
    pub predicted: Option<Numbers>,
    /// Whether the driver's symbols are those of its release; none if they cannot be read.
    pub symbols_agree: Option<bool>,
    pub evidence: Evidence,
}

/// The numbering in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Numbers {
    /// In GET_PIDS.
    pub list: Option<Numbering>,
    /// In GET_PID_INFO.
    pub details: Option<Numbering>,
}

/// Measures on this host, and compares.
pub fn probe(host: &Host) -> Result<Comparison, ProbeError> {
    let driver = Driver::loaded(host);
    // With two engines, the module: it serves all containers outside the other.
    let by_module =
        host.has_capability(CAP_SYS_ADMIN) && state::read(host)?.is_some_and(|state| state.phase.is_placed());
    let under = if by_module { Under::Module } else { Under::Notify };
    let evidence = measure(host, driver.as_ref(), &this_program(), &["probe-child"], under)?;
    let engine = match by_module {
        true => Some(Engine::Module),
        false => guest::would_be_taken(host).then_some(Engine::Notify),
    };
    let driver = driver.ok_or(ProbeError::NoDriver)?;
    Ok(compare(evidence, driver, engine, driver::converters_present(host)))
}

/// Compares a measurement with or without an engine.
pub fn compare(evidence: Evidence, driver: Driver, engine: Option<Engine>, symbols: Option<[bool; 2]>) -> Comparison {
    let Verdict { list, details, faults } = verdict::judge(&evidence);
    let found = Numbers { list, details };
    let native = driver.known().map(driver::native);
    let predicted = native.map(|row| Numbers { list: Some(row.pids), details: Some(row.pid_info) });
    let as_expected = match engine.is_some() {
        true => Some(faults.is_empty()),
        // A missing measurement contradicts nothing.
        false => predicted.map(|p| found.list == p.list && (found.details.is_none() || found.details == p.details)),
    };
    let symbols_agree = symbols.zip(driver.known()).map(|(present, release)| present == driver::converters_of(release));
    Comparison { engine, as_expected, driver, faults, found, predicted, symbols_agree, evidence }
}
