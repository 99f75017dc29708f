//! The driver in reports.

use mpu_host::driver::{self, Driver, Flavour};
use schemars::JsonSchema;
use serde::Serialize;

/// The driver, in reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DriverView {
    /// As the driver writes it.
    pub version: String,
    /// Open or proprietary.
    pub flavour: Flavour,
    /// Whether this MPU was checked against its branch.
    pub known: bool,
    /// How its release lies outside what was checked; null if it does not.
    pub unknown_because: Option<String>,
    /// The era of its native behaviour, if known.
    pub era: Option<u8>,
    /// What a container sees on it without MPU.
    pub natively: Option<&'static str>,
}

impl From<&Driver> for DriverView {
    fn from(driver: &Driver) -> DriverView {
        let era = driver.known().map(|release| driver::native(release).era);
        DriverView {
            version: driver.version.clone(),
            flavour: driver.flavour,
            known: era.is_some(),
            unknown_because: driver.unknown_because(),
            era,
            natively: era.map(driver::in_words),
        }
    }
}

impl DriverView {
    pub(crate) fn line(&self) -> String {
        let flavour = match self.flavour {
            Flavour::Open => " (open)",
            Flavour::Proprietary => " (proprietary)",
            Flavour::Unknown => "",
        };
        match (self.natively, &self.unknown_because) {
            (Some(natively), _) => format!("{}{flavour}; {natively}", self.version),
            (None, why) => {
                let why = why.as_deref().unwrap_or("a release that this MPU does not know");
                format!(
                    "{}{flavour}; {why}: MPU translates what it finds there, and `mpu probe` measures whether that \
                    is right",
                    self.version
                )
            }
        }
    }
}
