//! `mpu down`: reports how the engine went down.

use crate::report::{Report, Style};
use mpu_engine::down::{Down, How};

impl Report for Down {
    fn text(&self, _: Style) -> String {
        match self.result {
            How::NotUp => "MPU is not up; nothing was changed\n".to_string(),
            How::Retired => match self.containers {
                1 => "MPU is down; one container still has its filter: its calls go through untouched until it \
                    ends\n"
                    .to_string(),
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
    use mpu_engine::down::down;
    use mpu_engine::module::foreign;
    use mpu_engine::module::load::fake::FakeKernel;
    use mpu_engine::module::record::Record;
    use mpu_engine::module::state::{self, ARMED};
    use mpu_host::exit::Exit;
    use mpu_host::explain::Explained;
    use mpu_host::host::fake::FakeHost;
    use mpu_notify as notify;
    use mpu_notify::fake::FakeSupervisor;
    use std::time::Duration;

    fn loaded(state: &str) -> FakeHost {
        let fake = FakeHost::in_order();
        fake.write("/sys/module/mpu/parameters/state", state);
        fake.write("/run/mpu/up.json", "{\"since\":1,\"module\":\"/mpu.ko\"}");
        fake
    }

    fn down_now(fake: &FakeHost) -> Result<Down, Explained> {
        down(&fake.host(), &FakeKernel::taking(fake, ARMED), Duration::ZERO)
    }

    #[test]
    fn repeated_down_is_not_up() {
        let fake = loaded(ARMED);
        let done = down_now(&fake).expect("down");
        crate::report::documented::check(&crate::report::json_of("down", &done));
        assert_eq!(done.result, How::Unloaded);
        assert!(!state::is_loaded(&fake.host()) && Record::read(&fake.host()).is_none());
        let done = down_now(&fake).expect("nothing to do");
        assert_eq!((done.result, done.exit()), (How::NotUp, Exit::Ok));
    }

    #[test]
    fn down_leaves_foreign_modules_loaded() {
        let fake = FakeHost::in_order();
        foreign::fake::load(&fake, "mpu");
        foreign::fake::load(&fake, "mpu_next");
        let before = fake.snapshot();
        assert_eq!(down_now(&fake).expect("nothing to do").result, How::NotUp);
        assert_eq!(fake.snapshot(), before);
        fake.write("/sys/module/mpu/parameters/state", ARMED);
        let kernel = FakeKernel::taking(&fake, ARMED);
        let done = down(&fake.host(), &kernel, Duration::ZERO).expect("down");
        assert_eq!((done.result, kernel.calls.get()), (How::Unloaded, (0, 1)));
        assert!(fake.host().at("/sys/module/mpu_next").is_dir());
    }

    #[test]
    fn down_counts_containers_with_filter() {
        let fake = loaded(ARMED);
        let supervisor = FakeSupervisor::on(&fake, notify::fake::state(&["a", "b"]));
        let done = down_now(&fake).expect("down");
        assert_eq!((done.result, done.containers, state::is_loaded(&fake.host())), (How::Retired, 2, false));
        assert!(done.text(Style::Plain).contains("2 containers still have its filter"));
        drop(supervisor);
        let one = Down { containers: 1, ..done }.text(Style::Plain);
        assert!(one.contains("one container still has its filter: its calls"), "{one}");
        let _without = FakeSupervisor::on(&fake, notify::fake::state(&[]));
        let done = down_now(&fake).expect("down");
        assert_eq!((done.result, done.containers), (How::Ended, 0));
    }

    #[test]
    fn busy_module_keeps_record_and_down_repeats() {
        for (state, errnos, message) in [
            (ARMED, (Some(libc::EAGAIN), None), "the module is in use"),
            (state::HELD, (None, Some(libc::EBUSY)), "process 4242 (python3) in control 0x00000283 for 12.3 s"),
        ] {
            let fake = loaded(state);
            fake.write("/proc/4242/comm", "python3\n");
            let kernel = FakeKernel::taking(&fake, ARMED);
            kernel.removes.borrow_mut().extend(errnos.0);
            kernel.retires.borrow_mut().extend(errnos.1);
            let before = fake.snapshot();
            let error = down(&fake.host(), &kernel, Duration::ZERO).expect_err("held");
            assert_eq!((error.code(), error.exit()), ("in_use", Exit::Failed));
            assert!(error.to_string().contains(message), "{error}");
            assert_eq!(fake.snapshot(), before);
            let done = down(&fake.host(), &kernel, Duration::from_secs(10)).expect("down");
            assert_eq!(done.result, How::Unloaded);
        }
    }
}
