//! Compares a measurement with the right answer, or, without an engine, with the prediction for the driver's release.

use super::verdict::{self, Fault, Verdict};
use super::{ChildEngine, Evidence, ProbeError, measure, this_program};
use crate::driver_view::DriverView;
use mpu_engine::Engine;
use mpu_engine::module::state;
use mpu_host::config::{Config, Visibility};
use mpu_host::driver::{self, Driver, Numbering};
use mpu_host::host::{CAP_SYS_ADMIN, Host};
use mpu_notify::supervised_child;
use schemars::JsonSchema;
use serde::Serialize;

/// What was found.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Probed")]
pub struct ProbeReport {
    /// Whether a container is seen right.
    pub right: bool,
    /// Whether an engine is translating.
    pub engine_up: bool,
    /// Which. With the notify engine, the child gets its listener, as containers under the wrapper do.
    pub engine: Option<Engine>,
    /// The view that the configuration gives to containers. What it permits is no fault under an engine.
    pub visibility: Visibility,
    /// Whether the result is as expected from the engine, or without one from the driver's release; null if nothing is expected.
    pub as_expected: Option<bool>,
    /// The driver.
    pub driver: DriverView,
    /// What is wrong.
    pub faults: Vec<FaultView>,
    /// The numbering of the list, and the one that the details take.
    pub found: Numbers,
    /// The numbering that the release predicts without an engine.
    pub predicted: Option<Numbers>,
    /// Whether the driver's symbols are those of its release; null if they cannot be read.
    pub symbols_agree: Option<bool>,
    /// The evidence.
    pub evidence: Evidence,
}

/// A fault with its sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FaultView {
    /// Its name.
    pub fault: Fault,
    /// What it means in a container.
    pub explanation: &'static str,
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
pub fn probe(host: &Host) -> Result<ProbeReport, ProbeError> {
    let driver = Driver::loaded(host);
    // If both engines are up, measure the module: it serves every container without the notify engine's listener.
    let by_module =
        host.has_capability(CAP_SYS_ADMIN) && state::read(host)?.is_some_and(|state| state.phase.is_placed());
    let under = if by_module { ChildEngine::Module } else { ChildEngine::Notify };
    let evidence = measure(host, driver.as_ref(), &this_program(), &["probe-child"], under)?;
    let engine = match by_module {
        true => Some(Engine::Module),
        false => supervised_child::is_available(host).then_some(Engine::Notify),
    };
    let driver = driver.ok_or(ProbeError::NoDriver)?;
    let visibility = Config::of(host).map(|config| config.visibility).unwrap_or_default();
    Ok(compare(evidence, &driver, engine, visibility, driver::converters_present(host)))
}

/// Compares a measurement with or without an engine.
pub fn compare(
    evidence: Evidence,
    driver: &Driver,
    engine: Option<Engine>,
    visibility: Visibility,
    symbols: Option<[bool; 2]>,
) -> ProbeReport {
    let Verdict { list, details, mut faults } = verdict::evaluate(&evidence);
    if engine.is_some() {
        faults.retain(|fault| !is_permitted(*fault, visibility));
    }
    let found = Numbers { list, details };
    let native = driver.known().map(driver::native);
    let predicted = native.map(|row| Numbers { list: Some(row.pids), details: Some(row.pid_info) });
    let as_expected = match engine.is_some() {
        true => (visibility != Visibility::Host).then_some(faults.is_empty()),
        // A missing measurement contradicts nothing.
        false => predicted.map(|p| found.list == p.list && (found.details.is_none() || found.details == p.details)),
    };
    ProbeReport {
        right: faults.is_empty(),
        engine_up: engine.is_some(),
        engine,
        visibility,
        as_expected,
        driver: DriverView::from(driver),
        faults: faults.into_iter().map(|fault| FaultView { fault, explanation: fault.explanation() }).collect(),
        found,
        predicted,
        symbols_agree: symbols.zip(driver.known()).map(|(present, release)| present == driver::converters_of(release)),
        evidence,
    }
}

/// Whether the configured view permits this. The child is in the pod or cgroup of this process, which also uses the
/// GPU.
fn is_permitted(fault: Fault, visibility: Visibility) -> bool {
    match visibility {
        Visibility::Own => false,
        Visibility::Pod => matches!(fault, Fault::ListForeign | Fault::DetailsForeign | Fault::SamplesForeign),
        Visibility::Host => true,
    }
}
