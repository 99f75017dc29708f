//! The module in reports: its state, the callers inside it, and the result of the translation test.

use crate::report::Style;
use mpu_engine::module::holders::{self, HolderInfo};
use mpu_engine::module::load_error;
use mpu_engine::module::proof::Proof;
use mpu_engine::module::state::{Argument, Phase, Refusal, State};
use mpu_host::host::Host;
use schemars::JsonSchema;
use serde::Serialize;

/// The module's state, in reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StateView {
    /// `armed`: a translation was seen since the redirects were placed. `placed`: they stand, and none was seen yet. `waiting`: no driver
    /// is loaded. `refused`: a redirect could not be placed. `retired`: the redirects are removed, and the module waits to be unloaded.
    /// `stuck`: the kernel did not remove a redirect, and only a reboot helps.
    #[schemars(with = "String")]
    pub state: Phase,
    /// The module's version.
    pub version: String,
    /// Functions of the driver that are redirected.
    pub hooks: Vec<String>,
    /// Which copy of a control's argument decides; null while nothing is placed, and of a module before format 2.
    pub argument: Option<ArgumentView>,
    /// Calls of containers that came to the redirect since it was placed; null of a module before format 2.
    pub entered: Option<u64>,
    /// Translations since the redirects were placed; null of a module before format 2.
    pub translated: Option<u64>,
    /// Callers inside a redirected function.
    pub inside: u64,
    /// Those of them that stay there, the longest first, sixteen at most.
    pub holders: Vec<HolderInfo>,
    /// Callers whose task died inside the driver since the module was loaded; each is a crash of the driver.
    pub orphans: u64,
    /// The redirect that could not be placed.
    pub refused: Option<Refusal>,
}

/// Which copy of a control's argument decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ArgumentView {
    /// `driver`: its own copy, which no caller can change. `claimed`: the caller's memory, as the probe in the driver could not be placed;
    /// a hostile container that changes it at the right moment then sees the driver's own answer.
    #[schemars(extend("enum" = ["driver", "claimed"]))]
    pub source: &'static str,
    /// With `claimed`, why the probe could not be placed.
    pub errno: Option<i32>,
}

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

impl StateView {
    pub(crate) fn of(host: &Host, state: &State) -> StateView {
        let argument = state.argument.map(|argument| match argument {
            Argument::Driver => ArgumentView { source: "driver", errno: None },
            Argument::Claimed { errno } => ArgumentView { source: "claimed", errno: Some(errno) },
        });
        StateView {
            state: state.phase.clone(),
            version: state.version.clone(),
            hooks: state.hooks.clone(),
            argument,
            entered: state.entered,
            translated: state.translated,
            inside: state.inside,
            holders: holders::describe_holders(host, state),
            orphans: state.orphans,
            refused: state.refused.clone(),
        }
    }
}

impl StateView {
    /// Which copy of a control's argument the module uses. None while no redirect is placed.
    pub(crate) fn argument_line(&self, style: Style) -> Option<String> {
        let argument = self.argument.as_ref()?;
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

    pub(crate) fn is_claimed(&self) -> bool {
        self.argument.as_ref().is_some_and(|argument| argument.errno.is_some())
    }

    pub(crate) fn line(&self, style: Style) -> String {
        match (&self.state, &self.refused) {
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
}
