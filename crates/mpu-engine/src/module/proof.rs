//! Proves by the module's own counters, after a call to the driver, that it translates. An `armed` module has translated already; only
//! a `placed` one is probed.

use super::error::ModuleError;
use super::state::{self, Phase, State};
use mpu_host::host::Host;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// The module has translated since its redirects were placed.
    Seen,
    /// No process could call the driver, so there is no proof.
    NotAsked {
        why: String,
    },
    /// A rule of the policy exempts the child, so there was nothing to translate.
    Exempt,
    /// Calls reach the module, and it translates none of them.
    NotTranslated,
    NotEntered,
}

impl Proof {
    pub fn name(&self) -> &'static str {
        match self {
            Proof::Seen => "seen",
            Proof::NotAsked { .. } => "not_asked",
            Proof::Exempt => "exempt",
            Proof::NotTranslated => "not_translated",
            Proof::NotEntered => "not_entered",
        }
    }

    pub fn is_fault(&self) -> bool {
        matches!(self, Proof::NotTranslated | Proof::NotEntered)
    }

    pub fn in_words(&self) -> String {
        match self {
            Proof::Seen => "a translation was seen to happen".to_string(),
            Proof::NotAsked { why } => {
                format!(
                    "no translation was seen yet, and none could be asked for: {why}; the first container that \
                    asks will show it"
                )
            }
            Proof::Exempt => {
                "a rule of the policy is for the process that asked, so there was nothing to translate (`mpu config \
                    show`)"
                    .to_string()
            }
            Proof::NotTranslated => {
                "a process in a fresh PID namespace asked the driver, and nothing was translated: `mpu status` has \
                    the reason by name"
                    .to_string()
            }
            Proof::NotEntered => {
                "a process in a fresh PID namespace asked the driver, and its calls did not come to the module: the \
                    driver's entry is another \
                 function than the redirected one. Update MPU, and report the driver's version"
                    .to_string()
            }
        }
    }
}

/// Calls the driver from a process in a fresh PID namespace, within a time. The error says why that failed.
pub type ProbeFn = fn(&Host, Duration) -> Result<(), String>;

/// Reads whether the module translates, and probes if that is unknown. None if no redirect is placed, or for a module of format 1,
/// which has no counters.
pub fn prove(
    host: &Host,
    state: State,
    probe: ProbeFn,
    patience: Duration,
) -> Result<(State, Option<Proof>), ModuleError> {
    let is_old = state.entered.is_none() && state.translated.is_none();
    match state.phase {
        Phase::Armed if !is_old => return Ok((state, Some(Proof::Seen))),
        Phase::Placed => {}
        _ => return Ok((state, None)),
    }
    let exempt = || -> Result<u64, ModuleError> {
        let passed = state::read_counters(host)?.unwrap_or_default().passed;
        Ok(passed
            .into_iter()
            .find(|(reason, _)| reason == mpu_core::Reason::Exempt.name())
            .map_or(0, |(_, count)| count))
    };
    let before = exempt()?;
    let probed = probe(host, patience);
    // The module may have gone meanwhile, or lost its driver.
    let now = state::read_instance(host, state.instance)?.unwrap_or(state);
    let proof = match (&now.phase, probed) {
        (Phase::Armed, _) => Proof::Seen,
        (Phase::Placed, Ok(())) if exempt()? > before => Proof::Exempt,
        (Phase::Placed, Ok(())) if now.entered == Some(0) => Proof::NotEntered,
        (Phase::Placed, Ok(())) => Proof::NotTranslated,
        (Phase::Placed, Err(why)) => Proof::NotAsked { why },
        _ => return Ok((now, None)),
    };
    Ok((now, Some(proof)))
}

#[cfg(any(test, feature = "fake"))]
pub mod fake {
    //! Fake probes: they change a fake host as the module would.

    use super::super::state::PLACED;
    use super::*;

    /// Writes the module's state file.
    pub fn write_state(host: &Host, text: &str) {
        std::fs::write(host.at("/sys/module/mpu/parameters/state"), text).expect("a file");
    }

    pub fn translates(host: &Host, _: Duration) -> Result<(), String> {
        write_state(
            host,
            &PLACED.replace("state=placed", "state=armed").replace("=0\ntranslated=0", "=4\ntranslated=1"),
        );
        Ok(())
    }

    /// The child's calls go elsewhere.
    pub fn misses(_: &Host, _: Duration) -> Result<(), String> {
        Ok(())
    }

    /// The child's calls arrive, and none is translated.
    pub fn only_enters(host: &Host, _: Duration) -> Result<(), String> {
        write_state(host, &PLACED.replace("entered=0", "entered=4"));
        Ok(())
    }

    /// The same, with a rule for the child.
    pub fn is_exempt(host: &Host, patience: Duration) -> Result<(), String> {
        std::fs::write(host.at("/sys/module/mpu/parameters/counters"), "passed.exempt=1\n").expect("a file");
        only_enters(host, patience)
    }

    pub fn cannot(_: &Host, _: Duration) -> Result<(), String> {
        Err("there is no GPU".to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::fake::{cannot, is_exempt, misses, only_enters, translates};
    use super::*;
    use crate::module::state::{ARMED, PLACED};
    use mpu_host::host::fake::FakeHost;

    fn prove_state(text: &str, probe: ProbeFn) -> (Phase, Option<Proof>) {
        let fake = FakeHost::in_order();
        fake.write("/sys/module/mpu/parameters/state", text);
        fake.write("/sys/module/mpu/parameters/counters", "passed.exempt=0\n");
        let state = state::read(&fake.host()).expect("readable").expect("up");
        let (state, proof) = prove(&fake.host(), state, probe, Duration::ZERO).expect("readable");
        (state.phase, proof)
    }

    #[test]
    fn placed_module_is_armed_after_translation() {
        assert_eq!(prove_state(PLACED, translates), (Phase::Armed, Some(Proof::Seen)));
        assert_eq!(prove_state(PLACED, misses), (Phase::Placed, Some(Proof::NotEntered)));
        assert_eq!(prove_state(PLACED, only_enters), (Phase::Placed, Some(Proof::NotTranslated)));
        assert_eq!(prove_state(PLACED, is_exempt), (Phase::Placed, Some(Proof::Exempt)));
        let (phase, proof) = prove_state(PLACED, cannot);
        let proof = proof.expect("it was to be proven");
        assert_eq!((phase, proof.name(), proof.is_fault()), (Phase::Placed, "not_asked", false));
        assert!(
            proof.in_words().contains("no translation was seen yet") && proof.in_words().contains("there is no GPU")
        );
    }

    #[test]
    fn only_placed_module_needs_probe_call() {
        let never: ProbeFn = |_, _| panic!("asked");
        assert_eq!(prove_state(&PLACED.replace("placed", "armed"), never), (Phase::Armed, Some(Proof::Seen)));
        assert_eq!(prove_state(ARMED, never), (Phase::Armed, None), "format 1 has no counters");
        assert_eq!(prove_state("version=1\nabi=2\nstate=waiting\n", never), (Phase::Waiting, None));
        assert_eq!(prove_state("version=1\nabi=2\nstate=stuck\n", never), (Phase::Stuck, None));
    }
}
