//! Which module file is taken, and why: one that was built elsewhere, one that DKMS installed, or one that is built here.
//!
//! Owns the order. Where each kind lies, and what makes one unfit, is the kind's own business.

use super::installed;
use super::prebuilt::{self, Found, PassedOver};
use super::sources::Built;
use crate::signing;
use mpu_host::config::Modules;
use mpu_host::host::Host;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a module's file comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// It was named on the command line.
    Given,
    /// It was built elsewhere, and brought here.
    Prebuilt,
    /// DKMS, or a person, installed it among the kernel's modules.
    Installed,
    /// `mpu up` built it here at an earlier time.
    Kept,
    /// It was built now.
    Built,
}

impl Origin {
    /// In words, for a person.
    pub fn in_words(self) -> &'static str {
        match self {
            Origin::Given => "named on the command line",
            Origin::Prebuilt => "built elsewhere",
            Origin::Installed => "installed among the kernel's modules",
            Origin::Kept => "built before",
            Origin::Built => "built now",
        }
    }
}

/// What is there for a kernel without building anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyMade {
    /// The module, and where it comes from.
    pub file: Option<(Origin, Built)>,
    /// Modules that are there, and are not used.
    pub passed_over: Vec<PassedOver>,
    /// Whether one of those could be used if it were signed.
    pub wants_signature: bool,
}

/// Looks. On a kernel that demands signatures an unsigned module from elsewhere is none: here one may be built and signed.
pub fn ready_made(host: &Host, release: &str, modules: Modules) -> ReadyMade {
    const UNSIGNED: &str = "carries no signature, and this kernel accepts signed modules only";
    let demanded = signing::demanded(host);
    let found = prebuilt::find(host, release, |built| match demanded && !built.signed {
        true => Err(UNSIGNED.to_string()),
        false => Ok(()),
    });
    let wants_signature = found.passed_over.iter().any(|over| over.why == UNSIGNED);
    let Found { taken, mut passed_over } = found;
    let mut file = taken.map(|built| (Origin::Prebuilt, built));
    if file.is_none() && modules == Modules::Any {
        let of_host = installed::find(host, release);
        file = of_host.taken.map(|built| (Origin::Installed, built));
        passed_over.extend(of_host.passed_over);
    }
    ReadyMade { file, passed_over, wants_signature }
}

impl ReadyMade {
    /// What was passed over, as half a sentence; empty if nothing was.
    pub fn in_words(passed_over: &[PassedOver]) -> String {
        passed_over.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }
}
