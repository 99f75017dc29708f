//! The module in reports: its state, and the result of the translation test.

use crate::report::Style;
use mpu_engine::module::load_error;
use mpu_engine::module::proof::Proof;
use mpu_engine::module::state::{Phase, State};
use schemars::JsonSchema;
use serde::Serialize;

/// Whether the module was seen to translate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ProofView {
    /// `seen`. `not_asked`: nothing could ask, as no driver is loaded or there is no GPU. `exempt`: a rule of the policy is for the process
    /// that asked. `not_translated`. `not_entered`: the driver's calls do not reach the module.
    #[schemars(extend("enum" = ["seen", "not_asked", "exempt", "not_translated", "not_entered"]))]
    pub result: &'static str,
    /// The same as a sentence.
    pub because: String,
    #[serde(skip)]
    pub(crate) is_fault: bool,
}

impl From<&Proof> for ProofView {
    fn from(proof: &Proof) -> ProofView {
        ProofView { result: proof.name(), because: proof.in_words(), is_fault: proof.is_fault() }
    }
}

impl ProofView {
    pub(crate) fn line(&self, style: Style) -> String {
        match self.is_fault {
            true => style.bad(&self.because),
            false => self.because.clone(),
        }
    }
}

/// Which copy of a control's argument the module uses. None while no redirect is placed.
pub(crate) fn argument_line(state: &State, style: Style) -> Option<String> {
    let argument = state.argument?;
    Some(match argument.errno {
        None => "the driver's own copy of a call's argument decides, which no caller can change".to_string(),
        Some(errno) => format!(
            "{}: MPU uses the caller's memory, as the probe in the driver could not be placed ({}): a \
                hostile container that changes \
             it at the right moment can see what the driver shows by itself",
            style.warn("claimed"),
            std::io::Error::from_raw_os_error(errno)
        ),
    })
}

pub(crate) fn state_line(state: &State, style: Style) -> String {
    match (&state.phase, &state.refused) {
        (Phase::Armed, _) => format!("{}: callers in containers are translated", style.good("armed")),
        (Phase::Placed, _) => {
            format!("{}: the redirects stand; no translation was seen yet", style.warn("placed"))
        }
        (Phase::Stuck, _) => format!(
            "{}: the kernel did not remove a redirect; answers to containers may be right or wrong; only a reboot helps",
            style.bad("stuck")
        ),
        (Phase::Waiting, _) => {
            format!("{}: the NVIDIA driver is not loaded; MPU arms itself when it comes", style.warn("waiting"))
        }
        (Phase::Refused, Some(refusal)) => {
            let why = load_error::not_placed(&refusal.symbol, refusal.errno);
            format!("{}: {why}; nothing is redirected", style.bad("refused"))
        }
        (Phase::Retired, _) => {
            format!(
                "{}: the redirects are removed, and nothing is translated; `mpu up` reloads the module",
                style.bad("retired")
            )
        }
        (other, _) => format!("{}: a state that this mpu does not know", style.warn(other.word())),
    }
}
