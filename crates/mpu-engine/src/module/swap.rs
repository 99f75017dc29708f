//! Lets one version of the module take over from another that is up, without a moment in which neither translates.
//!
//! Owns the dance of the two names: the new version comes as `mpu_next` and takes over, the old `mpu` goes, the new one
//! comes as `mpu` and takes over from itself, and `mpu_next` goes. How instances hand over is the module's own business
//! (kmod/mpu_peer.h). Whatever fails, one of them goes on, and the next try begins from there. Only an old module that cannot hand
//! over goes before the new one comes; what becomes of a host on which that then does not come is `before`'s.

use super::build::NEXT;
use super::error::ModuleError;
use super::load::{self, Kernel, Parameters};
use super::load_error::{LoadError, TOGETHER};
use super::state::{Instance, Phase, State};
use mpu_host::host::Host;
use std::path::Path;
use std::time::Duration;

/// Callers that waited at the door are still in the old one's text until their calls end.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replaced {
    pub version: String,
    /// Whether every call in between was translated. Not if the old module could not hand over.
    pub gapless: bool,
}

/// Puts `path` (`mpu.ko`, with `mpu_next.ko` beside it) in the place of the module that is up.
pub fn swap(
    host: &Host,
    kernel: &dyn Kernel,
    old: &State,
    path: &Path,
    parameters: Parameters<'_>,
) -> Result<(State, Replaced), ModuleError> {
    let next = path.with_file_name(NEXT);
    let replaced = Replaced { version: old.version.clone(), gapless: true };
    let remove = |instance| load::remove(host, kernel, instance, PATIENCE, "mpu up --replace");
    // Left by a swap that was interrupted.
    let idle = old.instance.other();
    if idle.is_loaded(host) {
        remove(idle)?;
    }
    if old.instance == Instance::Mpu {
        if !next.is_file() {
            return Err(LoadError::NoNext { path: next }.into());
        }
        match takes_over(host, kernel, Instance::MpuNext, &next, parameters) {
            Err(error) if cannot_hand_over(old, &error) => {
                remove(Instance::Mpu)?;
                let state = load::insert(host, kernel, Instance::Mpu, path, parameters)?;
                return Ok((state, Replaced { gapless: false, ..replaced }));
            }
            taken => taken?,
        };
        remove(Instance::Mpu)?;
    }
    let state = takes_over(host, kernel, Instance::Mpu, path, parameters)?;
    remove(Instance::MpuNext)?;
    Ok((state, replaced))
}

/// Loads an instance that takes over from the other. One that could not, and that the kernel must not free yet, begins retired
/// (mpu_stays() in kmod/mpu_main.c): the other goes on.
fn takes_over(
    host: &Host,
    kernel: &dyn Kernel,
    instance: Instance,
    path: &Path,
    parameters: Parameters<'_>,
) -> Result<State, ModuleError> {
    let state = load::insert(host, kernel, instance, path, parameters)?;
    match state.phase {
        Phase::Retired => {
            // The reason is what the caller must hear; the next try begins with what is left here.
            let _ = load::remove(host, kernel, instance, PATIENCE, "mpu up --replace");
            Err(LoadError::NotTaken.into())
        }
        Phase::Stuck => Err(LoadError::Stuck.into()),
        _ => Ok(state),
    }
}

/// Whether the old module speaks another language than the new one (`MPU_PEER_ABI`), or none.
fn cannot_hand_over(old: &State, error: &ModuleError) -> bool {
    match error {
        ModuleError::Load(LoadError::Insert { source, .. }) => source.raw_os_error() == Some(libc::EPROTO),
        // One of format 1 knows of no other instance, so the new one finds the functions taken that it has redirected. Whatever else is
        // taken, somebody else holds, and would hold it from then on, too.
        ModuleError::Load(LoadError::Redirect { errno: libc::EBUSY, symbol }) => {
            old.abi == "1" && (symbol == TOGETHER || old.hooks.contains(symbol))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::load::fake::FakeKernel;
    use crate::module::state::{self, Phase, ARMED};
    use mpu_host::config::Redirect;
    use mpu_host::explain::Explain;
    use mpu_host::host::fake::FakeHost;

    const RULE: Parameters<'_> = Parameters { policy: "host /a", redirect: Redirect::Auto };
    const OLD: &str = "version=0.0.9\nstate=armed\n";

    fn setup(instance: Instance) -> FakeHost {
        let fake = FakeHost::in_order();
        fake.write(instance.parameter("state").to_str().expect("a path"), OLD);
        fake.write("/m/mpu.ko", "module");
        fake.write("/m/mpu_next.ko", "module");
        fake
    }

    fn swapped(fake: &FakeHost, kernel: &FakeKernel<'_>) -> Result<(State, Replaced), ModuleError> {
        let old = state::read(&fake.host()).expect("readable").expect("up");
        swap(&fake.host(), kernel, &old, &fake.host().at("/m/mpu.ko"), RULE)
    }

    #[test]
    fn the_new_version_ends_up_under_the_usual_name_with_its_policy() {
        for (from, calls) in [(Instance::Mpu, (2, 2)), (Instance::MpuNext, (1, 1))] {
            let fake = setup(from);
            let kernel = FakeKernel::taking(&fake, ARMED);
            let (state, replaced) = swapped(&fake, &kernel).expect("swapped");
            assert_eq!((state.instance, state.phase, kernel.calls.get()), (Instance::Mpu, Phase::Armed, calls));
            assert_eq!(replaced, Replaced { version: "0.0.9".into(), gapless: true });
            assert!(!Instance::MpuNext.is_loaded(&fake.host()));
            assert_eq!(state::read_policy(&fake.host()).expect("readable"), Some(vec!["host /a".to_string()]));
        }
    }

    #[test]
    fn callers_that_stay_inside_leave_the_old_one_in_place() {
        let fake = setup(Instance::Mpu);
        let kernel = FakeKernel::taking(&fake, ARMED);
        kernel.inserts.borrow_mut().push(libc::ETIMEDOUT);
        let error = swapped(&fake, &kernel).expect_err("busy");
        assert_eq!((error.code(), kernel.calls.get()), ("callers_inside", (1, 0)));
        assert!(error.fix().contains("mpu up --replace"));
        assert_eq!(state::read(&fake.host()).expect("readable").expect("up").version, "0.0.9");
    }

    #[test]
    fn who_stays_inside_during_a_hand_over_is_named() {
        let fake = setup(Instance::Mpu);
        fake.write("/sys/module/mpu/parameters/state", state::HELD);
        let kernel = FakeKernel::taking(&fake, ARMED);
        kernel.inserts.borrow_mut().push(libc::ETIMEDOUT);
        let before = fake.snapshot();
        let said = swapped(&fake, &kernel).expect_err("busy").to_string();
        assert!(said.contains("could not take over: 2 callers are inside the driver: process 4242"), "{said}");
        assert_eq!(fake.snapshot(), before);
    }

    #[test]
    fn a_module_that_cannot_hand_over_is_replaced_with_a_gap_that_is_told() {
        let fake = setup(Instance::Mpu);
        let kernel = FakeKernel::taking(&fake, ARMED);
        kernel.inserts.borrow_mut().push(libc::EPROTO);
        let (state, replaced) = swapped(&fake, &kernel).expect("replaced");
        assert_eq!((state.instance, replaced.gapless, kernel.calls.get()), (Instance::Mpu, false, (2, 1)));
    }

    const TAKEN: &str = "version=0.2.0\nabi=2\nstate=refused\nrefused=os_is_init_ns:-16\n";

    /// What is up after a new version found a function taken, and how often modules came and went.
    fn after_busy(old: &str, states: &[&str]) -> (Option<String>, (usize, usize)) {
        let fake = setup(Instance::Mpu);
        fake.write("/sys/module/mpu/parameters/state", old);
        let kernel = FakeKernel::taking(&fake, ARMED);
        kernel.states.borrow_mut().extend(states.iter().map(ToString::to_string));
        swapped(&fake, &kernel).expect_err("busy");
        assert!(!Instance::MpuNext.is_loaded(&fake.host()));
        (state::read(&fake.host()).expect("readable").map(|state| state.version), kernel.calls.get())
    }

    #[test]
    fn a_function_that_somebody_else_holds_does_not_cost_the_old_one() {
        let knows_of_others = "version=0.0.9\nabi=2\nstate=armed\nhooks=nvidia_unlocked_ioctl,os_is_init_ns\n";
        assert_eq!(after_busy(knows_of_others, &[TAKEN]), (Some("0.0.9".into()), (1, 1)));
        let has_it_not = "version=0.0.9\nabi=1\nstate=armed\nhooks=nvidia_unlocked_ioctl\n";
        assert_eq!(after_busy(has_it_not, &[TAKEN]), (Some("0.0.9".into()), (1, 1)));
        let tracing = TAKEN.replace("os_is_init_ns", "kernel.ftrace_enabled");
        let has_it = "version=0.0.9\nabi=1\nstate=armed\nhooks=nvidia_unlocked_ioctl,os_is_init_ns\n";
        assert_eq!(after_busy(has_it, &[&tracing]), (Some("0.0.9".into()), (1, 1)));
    }

    #[test]
    fn one_that_knows_of_no_other_and_has_the_function_goes_first() {
        let fake = setup(Instance::Mpu);
        let has_it = "version=0.0.9\nabi=1\nstate=armed\nhooks=nvidia_unlocked_ioctl,os_is_init_ns\n";
        fake.write("/sys/module/mpu/parameters/state", has_it);
        let kernel = FakeKernel::taking(&fake, ARMED);
        kernel.states.borrow_mut().push(TAKEN.to_string());
        let (state, replaced) = swapped(&fake, &kernel).expect("replaced");
        assert_eq!((state.phase, replaced.gapless, kernel.calls.get()), (Phase::Armed, false, (2, 2)));
    }

    #[test]
    fn a_new_one_that_did_not_take_over_and_stays_loaded_does_not_cost_the_old_one() {
        let retired = "version=0.2.0\nabi=2\nstate=retired\nrefused=mpu_peer:-12\ninside=0\n";
        assert_eq!(after_busy(OLD, &[retired]).0, Some("0.0.9".into()));
        // The second step: the new one is up under the other name.
        let next = "version=0.2.0\nabi=2\nstate=armed\n";
        assert_eq!(
            {
                let fake = setup(Instance::Mpu);
                let kernel = FakeKernel::taking(&fake, ARMED);
                kernel.states.borrow_mut().extend([next.to_string(), retired.to_string()]);
                swapped(&fake, &kernel).expect_err("not taken over");
                let now = state::read(&fake.host()).expect("readable").expect("up");
                (now.instance, now.phase)
            },
            (Instance::MpuNext, Phase::Armed)
        );
    }

    #[test]
    fn a_swap_that_broke_off_is_finished_by_the_next() {
        let fake = setup(Instance::Mpu);
        let kernel = FakeKernel::taking(&fake, ARMED);
        // The new one is up as mpu_next, and then mpu does not load.
        kernel.inserts.borrow_mut().extend([0, libc::ENOMEM]);
        swapped(&fake, &kernel).expect_err("no memory");
        let now = state::read(&fake.host()).expect("readable").expect("up");
        assert_eq!((now.instance, now.phase), (Instance::MpuNext, Phase::Armed));
        swapped(&fake, &kernel).expect("finished");
        assert!(Instance::Mpu.is_loaded(&fake.host()) && !Instance::MpuNext.is_loaded(&fake.host()));
    }

    #[test]
    fn without_the_other_file_nothing_is_touched() {
        let fake = setup(Instance::Mpu);
        fake.remove("/m/mpu_next.ko");
        let kernel = FakeKernel::taking(&fake, ARMED);
        let error = swapped(&fake, &kernel).expect_err("no file");
        assert_eq!((error.code(), kernel.calls.get()), ("no_next_module", (0, 0)));
    }
}
