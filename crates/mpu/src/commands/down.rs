//! `mpu down`: unload, and say what had to be waited for.

use crate::error::Error;
use crate::report::{Report, Style};
use mpu_engine as engine;
use mpu_engine::down::{Down, How};
use mpu_engine::module::load::Kernel;
use mpu_host::host::Host;
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;

/// What was done.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Down")]
pub struct Done {
    /// `unloaded` (the module), `ended` (the notify engine), `retired` (the same, which goes on for containers that have its filter)
    /// or `not_up`.
    #[schemars(with = "&'static str", extend("enum" = How::ALL))]
    pub result: How,
    /// Containers that still have the notify engine's filter: their calls go through untouched until they end.
    pub containers: usize,
    /// Seconds that it took.
    pub seconds: f64,
}

/// Takes MPU down, with some patience for whoever holds the module.
pub fn down(host: &Host, kernel: &dyn Kernel, patience: Duration) -> Result<Done, Error> {
    let Down { how, containers, took } = engine::down::down(host, kernel, patience)?;
    Ok(Done { result: how, containers, seconds: took.as_secs_f64() })
}

impl Report for Done {
    const COMMAND: &'static str = "down";

    fn text(&self, _: Style) -> String {
        match self.result {
            How::NotUp => "MPU is not up; nothing was changed\n".to_string(),
            How::Retired => match self.containers {
                1 => "MPU is down; one container still has its filter: its calls go through untouched until it \
                    ends\n".to_string(),
                more => format!(
                    "MPU is down; {more} containers still have its filter: their calls go through untouched until they end\n"
                ),
            },
            How::Unloaded | How::Ended => format!(
                "MPU is down, after {:.1} s; containers see what the driver shows them by itself\n",
                self.seconds
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_engine::module::foreign;
    use mpu_engine::module::load::fake::FakeKernel;
    use mpu_engine::module::record::Record;
    use mpu_engine::module::state::{self, ARMED};
    use mpu_host::exit::Exit;
    use mpu_host::explain::Explain;
    use mpu_host::host::fake::FakeHost;
    use mpu_notify as notify;
    use mpu_notify::fake::FakeSupervisor;

    fn loaded() -> FakeHost {
        let fake = FakeHost::in_order();
        fake.write("/sys/module/mpu/parameters/state", ARMED);
        fake.write("/run/mpu/up.json", "{\"since\":1,\"module\":\"/mpu.ko\"}");
        fake
    }

    #[test]
    fn down_unloads_and_forgets() {
        let fake = loaded();
        let done = down(&fake.host(), &FakeKernel::taking(&fake, ARMED), Duration::ZERO).expect("down");
        crate::report::documented::check("`mpu down --json`", &crate::report::json(&done));
        assert_eq!(done.result, How::Unloaded);
        assert!(!state::is_loaded(&fake.host()) && Record::read(&fake.host()).is_none());
    }

    #[test]
    fn down_twice_is_fine() {
        let fake = FakeHost::in_order();
        let kernel = FakeKernel::taking(&fake, ARMED);
        let done = down(&fake.host(), &kernel, Duration::ZERO).expect("nothing to do");
        assert_eq!((done.result, kernel.calls.get(), done.exit()), (How::NotUp, (0, 0), Exit::Ok));
    }

    #[test]
    fn down_leaves_foreign_modules_loaded() {
        let fake = FakeHost::in_order();
        foreign::fake::load(&fake, "mpu");
        foreign::fake::load(&fake, "mpu_next");
        let (kernel, before) = (FakeKernel::taking(&fake, ARMED), fake.snapshot());
        let done = down(&fake.host(), &kernel, Duration::ZERO).expect("nothing to do");
        assert_eq!((done.result, kernel.calls.get()), (How::NotUp, (0, 0)));
        assert_eq!(fake.snapshot(), before);
        fake.write("/sys/module/mpu/parameters/state", ARMED);
        let done = down(&fake.host(), &kernel, Duration::ZERO).expect("down");
        assert_eq!((done.result, kernel.calls.get()), (How::Unloaded, (0, 1)));
        assert!(fake.host().at("/sys/module/mpu_next").is_dir());
    }

    #[test]
    fn containers_that_still_have_the_filter_are_told_of() {
        let fake = loaded();
        let supervisor = FakeSupervisor::on(&fake, notify::fake::state(&["a", "b"]));
        let done = down(&fake.host(), &FakeKernel::taking(&fake, ARMED), Duration::ZERO).expect("down");
        assert_eq!((done.result, done.containers, state::is_loaded(&fake.host())), (How::Retired, 2, false));
        assert!(done.text(Style::Plain).contains("2 containers still have its filter"));
        drop(supervisor);
        let one = Done { containers: 1, ..done };
        assert!(
            one.text(Style::Plain).contains("one container still has its filter: its calls"),
            "{}",
            one.text(Style::Plain)
        );
        let _without = FakeSupervisor::on(&fake, notify::fake::state(&[]));
        let done = down(&fake.host(), &FakeKernel::taking(&fake, ARMED), Duration::ZERO).expect("down");
        assert_eq!((done.result, done.containers), (How::Ended, 0));
    }

    #[test]
    fn a_held_module_stays_and_keeps_its_record() {
        let fake = loaded();
        let kernel = FakeKernel::taking(&fake, ARMED);
        kernel.removes.borrow_mut().push(libc::EAGAIN);
        let error = down(&fake.host(), &kernel, Duration::ZERO).expect_err("held");
        assert_eq!((error.code(), error.exit()), ("in_use", Exit::Failed));
        assert!(Record::read(&fake.host()).is_some());
    }

    #[test]
    fn who_stays_inside_is_named_nothing_is_changed_and_it_can_be_repeated() {
        let fake = FakeHost::in_order();
        fake.write("/sys/module/mpu/parameters/state", state::HELD);
        fake.write("/proc/4242/comm", "python3\n");
        fake.write("/run/mpu/up.json", "{\"since\":1,\"module\":\"/mpu.ko\"}");
        let kernel = FakeKernel::taking(&fake, ARMED);
        kernel.retires.borrow_mut().push(libc::EBUSY);
        let before = fake.snapshot();
        let error = down(&fake.host(), &kernel, Duration::from_secs(10)).expect_err("held");
        assert_eq!((error.code(), error.exit(), kernel.calls.get()), ("in_use", Exit::Failed, (0, 0)));
        assert!(error.to_string().contains("process 4242 (python3) in control 0x00000283 for 12.3 s"), "{error}");
        assert_eq!(fake.snapshot(), before);
        assert_eq!(down(&fake.host(), &kernel, Duration::from_secs(10)).expect("down").result, How::Unloaded);
    }

    #[test]
    fn only_root_takes_it_down() {
        let fake = loaded();
        fake.write("/proc/self/status", "CapEff:\t0000000000000000\n");
        let nothing_up = FakeHost::in_order();
        nothing_up.write("/proc/self/status", "CapEff:\t0000000000000000\n");
        let kernel = FakeKernel::taking(&nothing_up, ARMED);
        assert_eq!(down(&nothing_up.host(), &kernel, Duration::ZERO).expect_err("not root").code(), "not_root");
        let kernel = FakeKernel::taking(&fake, ARMED);
        let error = down(&fake.host(), &kernel, Duration::ZERO).expect_err("not root");
        assert_eq!((error.code(), error.exit(), kernel.calls.get()), ("not_root", Exit::Refused, (0, 0)));
    }
}
