//! Replaces a running version by another one without a gap. The new version is loaded as `mpu_next` and takes over, the old `mpu` is
//! unloaded, the new one is loaded as `mpu` and takes over from itself, and `mpu_next` is unloaded. After any failure one of them works, and
//! the next try continues from there (kmod/mpu_peer.h). Only an old module that cannot hand over is unloaded first.

use super::build::NEXT;
use super::error::ModuleError;
use super::load::{self, Kernel, Parameters};
use super::load_error::{ALL_FUNCTIONS, LoadError};
use super::state::{Instance, Phase, State};
use mpu_host::host::Host;
use std::path::Path;
use std::time::Duration;

/// Callers that waited for the hand-over are in the old module's text until their calls end.
const UNLOAD_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replaced {
    pub version: String,
    /// Whether every call meanwhile was translated. False if the old module could not hand over.
    pub gapless: bool,
}

/// Replaces the running module by `path` (`mpu.ko`, with `mpu_next.ko` beside it).
pub fn swap(
    host: &Host,
    kernel: &dyn Kernel,
    old: &State,
    path: &Path,
    parameters: Parameters<'_>,
) -> Result<(State, Replaced), ModuleError> {
    let next = path.with_file_name(NEXT);
    let replaced = Replaced { version: old.version.clone(), gapless: true };
    let remove = |instance| load::remove(host, kernel, instance, UNLOAD_TIMEOUT, "mpu up --replace");
    // An interrupted replacement left it.
    let idle = old.instance.other();
    if idle.is_loaded(host) {
        remove(idle)?;
    }
    if old.instance == Instance::Mpu {
        if !next.is_file() {
            return Err(LoadError::NoNext { path: next }.into());
        }
        match insert_and_take_over(host, kernel, Instance::MpuNext, &next, parameters) {
            Err(error) if cannot_hand_over(old, &error) => {
                remove(Instance::Mpu)?;
                let state = load::insert(host, kernel, Instance::Mpu, path, parameters)?;
                return Ok((state, Replaced { gapless: false, ..replaced }));
            }
            loaded => loaded?,
        };
        remove(Instance::Mpu)?;
    }
    let state = insert_and_take_over(host, kernel, Instance::Mpu, path, parameters)?;
    remove(Instance::MpuNext)?;
    Ok((state, replaced))
}

/// Loads an instance that takes over from the other. If it could not, and the kernel must not free it yet, it begins retired
/// (mpu_is_stuck() in kmod/mpu_stuck.c): the other one stays at work.
fn insert_and_take_over(
    host: &Host,
    kernel: &dyn Kernel,
    instance: Instance,
    path: &Path,
    parameters: Parameters<'_>,
) -> Result<State, ModuleError> {
    let state = load::insert(host, kernel, instance, path, parameters)?;
    match state.phase {
        Phase::Retired => {
            // Report this reason; the next try begins with the remains.
            let _ = load::remove(host, kernel, instance, UNLOAD_TIMEOUT, "mpu up --replace");
            Err(LoadError::TakeoverFailed.into())
        }
        Phase::Stuck => Err(LoadError::Stuck.into()),
        _ => Ok(state),
    }
}

/// Whether the old module has another hand-over format (`MPU_PEER_ABI`), or none.
fn cannot_hand_over(old: &State, error: &ModuleError) -> bool {
    match error {
        ModuleError::Load(LoadError::Insert { source, .. }) => source.raw_os_error() == Some(libc::EPROTO),
        // Format 1 cannot hand over, so the new instance finds the functions redirected by the old one. Any other redirected function
        // belongs to another module, also after the old one is unloaded.
        ModuleError::Load(LoadError::Redirect { errno: libc::EBUSY, symbol }) => {
            old.abi == "1" && (symbol == ALL_FUNCTIONS || old.hooks.contains(symbol))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::load::fake::FakeKernel;
    use crate::module::state::{self, ARMED, Phase};
    use mpu_host::config::Redirect;
    use mpu_host::explain::Explain;
    use mpu_host::host::fake::FakeHost;

    const RULE: Parameters<'_> = Parameters { policy: "host /a", redirect: Redirect::Auto };
    const OLD: &str = "version=0.0.9\nstate=armed\n";

    const TAKEN: &str = "version=0.2.0\nabi=2\nstate=refused\nrefused=os_is_init_ns:-16\n";

    fn setup(instance: Instance, state: &str) -> FakeHost {
        let fake = FakeHost::in_order();
        fake.write(instance.parameter("state").to_str().expect("a path"), state);
        fake.write("/m/mpu.ko", "module");
        fake.write("/m/mpu_next.ko", "module");
        fake
    }

    fn swapped(kernel: &FakeKernel<'_>) -> Result<(State, Replaced), ModuleError> {
        let host = kernel.host.host();
        let old = state::read(&host).expect("readable").expect("up");
        swap(&host, kernel, &old, &host.at("/m/mpu.ko"), RULE)
    }

    fn now(fake: &FakeHost) -> State {
        state::read(&fake.host()).expect("readable").expect("up")
    }

    #[test]
    fn swap_ends_under_usual_name_with_policy() {
        for (from, calls) in [(Instance::Mpu, (2, 2)), (Instance::MpuNext, (1, 1))] {
            let fake = setup(from, OLD);
            let kernel = FakeKernel::taking(&fake, ARMED);
            let (state, replaced) = swapped(&kernel).expect("swapped");
            assert_eq!((state.instance, state.phase, kernel.calls.get()), (Instance::Mpu, Phase::Armed, calls));
            assert_eq!(replaced, Replaced { version: "0.0.9".into(), gapless: true });
            assert!(!Instance::MpuNext.is_loaded(&fake.host()));
            assert_eq!(state::read_policy(&fake.host()).expect("readable"), Some(vec!["host /a".to_string()]));
        }
    }

    #[test]
    fn lingering_callers_are_named_and_block_swap() {
        for (old, expected) in [(OLD, ""), (state::HELD, ": 2 callers are inside the driver: process 4242")] {
            let fake = setup(Instance::Mpu, old);
            let kernel = FakeKernel::taking(&fake, ARMED);
            kernel.inserts.borrow_mut().push(libc::ETIMEDOUT);
            let before = fake.snapshot();
            let error = swapped(&kernel).expect_err("busy");
            assert_eq!((error.code(), kernel.calls.get()), ("callers_inside", (1, 0)));
            assert!(error.to_string().contains(&format!("could not take over{expected}")), "{error}");
            assert!(error.fix().contains("mpu up --replace"));
            assert_eq!(fake.snapshot(), before);
        }
    }

    #[test]
    fn module_without_handover_is_replaced_with_gap() {
        // An old module without hand-over that has the function is unloaded first.
        let has_it = "version=0.0.9\nabi=1\nstate=armed\nhooks=nvidia_unlocked_ioctl,os_is_init_ns\n";
        for (old, errno, first, calls) in [(OLD, libc::EPROTO, None, (2, 1)), (has_it, 0, Some(TAKEN), (2, 2))] {
            let fake = setup(Instance::Mpu, old);
            let kernel = FakeKernel::taking(&fake, ARMED);
            kernel.inserts.borrow_mut().push(errno);
            kernel.states.borrow_mut().extend(first.map(str::to_string));
            let (state, replaced) = swapped(&kernel).expect("replaced");
            assert_eq!((state.instance, state.phase), (Instance::Mpu, Phase::Armed));
            assert_eq!((replaced.gapless, kernel.calls.get()), (false, calls));
        }
    }

    #[test]
    fn failed_takeover_keeps_old_module() {
        let tracing = TAKEN.replace("os_is_init_ns", "kernel.ftrace_enabled");
        let retired = "version=0.2.0\nabi=2\nstate=retired\nrefused=mpu_peer:-12\ninside=0\n";
        let hooks = "hooks=nvidia_unlocked_ioctl";
        for (old, first) in [
            (format!("version=0.0.9\nabi=2\nstate=armed\n{hooks},os_is_init_ns\n"), TAKEN),
            (format!("version=0.0.9\nabi=1\nstate=armed\n{hooks}\n"), TAKEN),
            (format!("version=0.0.9\nabi=1\nstate=armed\n{hooks},os_is_init_ns\n"), tracing.as_str()),
            (OLD.to_string(), retired),
        ] {
            let fake = setup(Instance::Mpu, &old);
            let kernel = FakeKernel::taking(&fake, ARMED);
            kernel.states.borrow_mut().push(first.to_string());
            swapped(&kernel).expect_err("not taken over");
            assert!(!Instance::MpuNext.is_loaded(&fake.host()));
            assert_eq!((now(&fake).version.as_str(), kernel.calls.get()), ("0.0.9", (1, 1)), "{old}{first}");
        }
        // The second step: the new version is up under the other name.
        let fake = setup(Instance::Mpu, OLD);
        let kernel = FakeKernel::taking(&fake, ARMED);
        let next = "version=0.2.0\nabi=2\nstate=armed\n";
        kernel.states.borrow_mut().extend([next.to_string(), retired.to_string()]);
        swapped(&kernel).expect_err("not taken over");
        assert_eq!((now(&fake).instance, now(&fake).phase), (Instance::MpuNext, Phase::Armed));
    }

    #[test]
    fn interrupted_swap_is_finished_by_next() {
        let fake = setup(Instance::Mpu, OLD);
        let kernel = FakeKernel::taking(&fake, ARMED);
        // The new version is up as mpu_next, and then mpu does not load.
        kernel.inserts.borrow_mut().extend([0, libc::ENOMEM]);
        swapped(&kernel).expect_err("no memory");
        assert_eq!((now(&fake).instance, now(&fake).phase), (Instance::MpuNext, Phase::Armed));
        swapped(&kernel).expect("finished");
        assert!(Instance::Mpu.is_loaded(&fake.host()) && !Instance::MpuNext.is_loaded(&fake.host()));
    }

    #[test]
    fn missing_twin_stops_swap() {
        let fake = setup(Instance::Mpu, OLD);
        fake.remove("/m/mpu_next.ko");
        let kernel = FakeKernel::taking(&fake, ARMED);
        let error = swapped(&kernel).expect_err("no file");
        assert_eq!((error.code(), kernel.calls.get()), ("no_next_module", (0, 0)));
    }
}
