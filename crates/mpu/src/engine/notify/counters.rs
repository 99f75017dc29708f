//! What the engine did, in numbers.
//!
//! Owns the counters, by the names that every engine uses. Knows nobody who counts.

use mpu_abi::Control;
use mpu_core::{Outcome, Reason};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters since this supervisor began.
#[derive(Debug, Default)]
pub(super) struct Counters {
    translated: [AtomicU64; Control::ALL.len()],
    passed: [AtomicU64; Reason::ALL.len()],
    /// Calls that carry no PID, and went on to the driver.
    pub(super) passed_on: AtomicU64,
    /// Calls that are being translated now.
    pub(super) inside: AtomicU64,
}

impl Counters {
    /// A call of this control was answered.
    pub(super) fn count(&self, control: Control, outcome: Outcome) {
        match outcome {
            Outcome::Rewritten { .. } => {
                if let Some(counter) = self.translated.get(control as usize) {
                    counter.fetch_add(1, Relaxed);
                }
            }
            Outcome::Not(reason) => self.pass(reason),
        }
    }

    /// A call was not translated in the usual way.
    pub(super) fn pass(&self, reason: Reason) {
        if let Some(counter) = self.passed.get(reason as usize) {
            counter.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn translated(&self) -> BTreeMap<String, u64> {
        let named = Control::ALL.iter().zip(&self.translated);
        named.map(|(control, counter)| (control.name().to_string(), counter.load(Relaxed))).collect()
    }

    pub(super) fn passed(&self) -> BTreeMap<String, u64> {
        let named = Reason::ALL.iter().zip(&self.passed);
        named.map(|(reason, counter)| (reason.name().to_string(), counter.load(Relaxed))).collect()
    }
}
