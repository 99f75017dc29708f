//! Lets one version of the module take over from another that is up, without a moment in which neither translates.
//!
//! Owns the dance of the two names: the new version comes as `mpu_next` and takes over, the old `mpu` goes, the new one
//! comes as `mpu` and takes over from itself, and `mpu_next` goes. How instances hand over is the module's own business
//! (kmod/mpu_peer.h). Whatever fails, one of them goes on, and the next try begins from there.

use super::build::NEXT;
use super::error::ModuleError;
use super::load::{self, Kernel};
use super::load_error::LoadError;
use super::state::{Instance, State};
use mpu_host::host::Host;
use std::path::Path;
use std::time::Duration;

/// Callers that waited at the door are still in the old one's text until their calls end.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replaced {
    /// Its version.
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
    policy: &str,
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
        match load::insert(host, kernel, Instance::MpuNext, &next, policy) {
            Err(error) if cannot_hand_over(&error) => {
                remove(Instance::Mpu)?;
                let state = load::insert(host, kernel, Instance::Mpu, path, policy)?;
                return Ok((state, Replaced { gapless: false, ..replaced }));
            }
            taken => taken?,
        };
        remove(Instance::Mpu)?;
    }
    let state = load::insert(host, kernel, Instance::Mpu, path, policy)?;
    remove(Instance::MpuNext)?;
    Ok((state, replaced))
}

/// Whether the old module speaks another language than the new one (`MPU_PEER_ABI`), or none.
fn cannot_hand_over(error: &ModuleError) -> bool {
    match error {
        ModuleError::Load(LoadError::Insert { source, .. }) => source.raw_os_error() == Some(libc::EPROTO),
        // It knows of no other instance, so the new one found the driver's functions taken.
        ModuleError::Load(LoadError::Redirect { errno, .. }) => *errno == libc::EBUSY,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::load::fake::FakeKernel;
    use crate::module::state::{self, Phase, ARMED};
    use mpu_host::explain::Explain;
    use mpu_host::host::fake::FakeHost;

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
        swap(&fake.host(), kernel, &old, &fake.host().at("/m/mpu.ko"), "host /a")
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
        assert!(said.contains("the old one keeps running: 2 callers are inside the driver: process 4242"), "{said}");
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
