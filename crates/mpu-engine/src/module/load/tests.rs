//! Kernels that take, refuse and hold a module, and what a person is told.

use super::fake::FakeKernel;
use super::*;
use crate::module::state::ARMED;
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::fake::FakeHost;
use std::path::PathBuf;

const PLAIN: Parameters<'_> = Parameters { policy: "", redirect: Redirect::Auto };

fn module(fake: &FakeHost) -> PathBuf {
    fake.write("/mpu.ko", "module");
    fake.host().at("/mpu.ko")
}

#[test]
fn a_loaded_module_is_asked_for_its_state() {
    let fake = FakeHost::in_order();
    let kernel = FakeKernel::taking(&fake, ARMED);
    let state = insert(&fake.host(), &kernel, Instance::Mpu, &module(&fake), PLAIN).expect("loaded");
    assert_eq!((state.phase, kernel.calls.get()), (Phase::Armed, (1, 0)));
}

#[test]
fn a_refused_module_does_not_stay() {
    let fake = FakeHost::in_order();
    let kernel = FakeKernel::taking(&fake, "version=0.1.0\nstate=refused\nrefused=os_find_ns_pid:-16\n");
    let error = insert(&fake.host(), &kernel, Instance::Mpu, &module(&fake), PLAIN).expect_err("refused");
    assert_eq!((error.code(), error.exit()), ("redirect_refused", Exit::Refused));
    assert!(error.to_string().contains("os_find_ns_pid: another module has one already"), "{error}");
    assert_eq!(kernel.calls.get(), (1, 1));
    assert!(!state::is_loaded(&fake.host()));
}

#[test]
fn a_module_that_says_nothing_does_not_stay() {
    let fake = FakeHost::in_order();
    let kernel = FakeKernel::taking(&fake, "");
    let error = insert(&fake.host(), &kernel, Instance::Mpu, &module(&fake), PLAIN).expect_err("mute");
    assert_eq!(error.code(), "no_state");
    assert!(!state::is_loaded(&fake.host()));
}

#[test]
fn errnos_of_loading_become_exit_codes() {
    let fake = FakeHost::in_order();
    let check = |errno: i32, exit: Exit| {
        let kernel = FakeKernel::taking(&fake, ARMED);
        kernel.inserts.borrow_mut().push(errno);
        let error = insert(&fake.host(), &kernel, Instance::Mpu, &module(&fake), PLAIN).expect_err("not taken");
        assert_eq!((error.code(), error.exit()), ("load_failed", exit), "errno {errno}");
        assert!(!state::is_loaded(&fake.host()));
    };
    check(libc::EPERM, Exit::Refused);
    check(libc::EKEYREJECTED, Exit::Refused);
    check(libc::ENOEXEC, Exit::Failed);
    check(libc::EINVAL, Exit::Failed);
}

#[test]
fn unloading_waits_for_callers_but_not_for_ever() {
    let fake = FakeHost::in_order();
    let kernel = FakeKernel::taking(&fake, ARMED);
    insert(&fake.host(), &kernel, Instance::Mpu, &module(&fake), PLAIN).expect("loaded");
    kernel.removes.borrow_mut().extend([libc::EAGAIN, libc::EAGAIN]);
    remove(&fake.host(), &kernel, Instance::Mpu, Duration::from_secs(5), "mpu down")
        .expect("unloaded at the third try");
    assert_eq!(kernel.calls.get(), (1, 3));

    fake.write("/sys/module/mpu/parameters/state", "version=1\nstate=armed\ninside=3\n");
    kernel.removes.borrow_mut().extend([libc::EAGAIN; 100]);
    let error = remove(&fake.host(), &kernel, Instance::Mpu, Duration::from_millis(20), "mpu down").expect_err("busy");
    assert!(matches!(error, LoadError::Busy { inside: 3, .. }), "{error:?}");
    assert!(state::is_loaded(&fake.host()));
}

fn held(fake: &FakeHost) -> FakeKernel<'_> {
    fake.write("/sys/module/mpu/parameters/state", state::HELD);
    fake.write("/proc/4242/comm", "python3\n");
    FakeKernel::taking(fake, state::HELD)
}

#[test]
fn whoever_stays_inside_is_named_and_the_module_goes_on_as_before() {
    let fake = FakeHost::in_order();
    let kernel = held(&fake);
    kernel.retires.borrow_mut().push(libc::EBUSY);
    let before = fake.snapshot();
    let try_it = || remove(&fake.host(), &kernel, Instance::Mpu, Duration::from_secs(10), "mpu down");
    let error = try_it().expect_err("held");
    assert_eq!((error.code(), error.exit(), kernel.calls.get()), ("in_use", Exit::Failed, (0, 0)));
    let said = error.to_string();
    assert!(said.contains("nothing was changed") && said.contains("process 4242 (python3)"), "{said}");
    assert!(error.fix().contains("then run `mpu down` again"), "{}", error.fix());
    assert_eq!((fake.snapshot(), kernel.told.borrow().as_slice()), (before, &[10_000][..]));
    try_it().expect("they have left");
    assert_eq!((kernel.calls.get(), state::is_loaded(&fake.host())), ((0, 1), false));
}

#[test]
fn a_module_takes_a_minute_at_most_and_a_longer_wait_is_several() {
    let fake = FakeHost::in_order();
    let kernel = held(&fake);
    kernel.retires.borrow_mut().extend([libc::EBUSY, libc::EBUSY]);
    let patience = Duration::from_secs(3600);
    remove(&fake.host(), &kernel, Instance::Mpu, patience, "mpu down").expect("unloaded at the third try");
    assert_eq!(*kernel.told.borrow(), [60_000; 3]);
}

#[test]
fn a_retired_module_that_is_held_says_that_it_translates_nothing() {
    let fake = FakeHost::in_order();
    let kernel = held(&fake);
    kernel.removes.borrow_mut().extend([libc::EAGAIN; 100]);
    let error = remove(&fake.host(), &kernel, Instance::Mpu, Duration::from_millis(20), "mpu down").expect_err("kept");
    assert!(matches!(error, LoadError::Kept { inside: 0, .. }), "{error:?}");
    kernel.removes.borrow_mut().clear();
    remove(&fake.host(), &kernel, Instance::Mpu, Duration::from_millis(20), "mpu down").expect("it can be repeated");
}

#[test]
fn a_redirect_that_the_kernel_keeps_leaves_a_module_until_the_next_boot() {
    let fake = FakeHost::in_order();
    let kernel = held(&fake);
    kernel.retires.borrow_mut().push(libc::EIO);
    let error = remove(&fake.host(), &kernel, Instance::Mpu, Duration::ZERO, "mpu down").expect_err("stuck");
    assert_eq!((error.code(), kernel.calls.get()), ("stuck", (0, 0)));
    assert!(error.fix().contains("reboot"));
}

#[test]
fn functions_that_are_refused_together_are_not_one_of_the_driver() {
    let fake = FakeHost::in_order();
    let kernel = FakeKernel::taking(&fake, "version=0.1.0\nabi=2\nstate=refused\nrefused=functions:16\n");
    let error = insert(&fake.host(), &kernel, Instance::Mpu, &module(&fake), PLAIN).expect_err("refused");
    assert_eq!((error.code(), error.exit()), ("redirect_refused", Exit::Refused));
    assert!(error.to_string().contains("the driver's functions: "), "{error}");
    assert!(error.fix().contains("enabled_functions"), "{error}");
}

#[test]
fn function_tracing_that_is_off_is_not_a_function_of_the_driver() {
    let fake = FakeHost::in_order();
    let kernel = FakeKernel::taking(&fake, "version=0.1.0\nabi=2\nstate=refused\nrefused=kernel.ftrace_enabled:16\n");
    let error = insert(&fake.host(), &kernel, Instance::Mpu, &module(&fake), PLAIN).expect_err("refused");
    assert_eq!((error.code(), error.exit()), ("redirect_refused", Exit::Refused));
    assert!(
        error.to_string().contains("kernel.ftrace_enabled = 0") && error.fix().contains("ftrace_enabled=1"),
        "{error}"
    );
    assert!(!error.to_string().contains("driver"), "{error}");
}

#[test]
fn a_module_that_is_gone_already_is_no_error() {
    let fake = FakeHost::in_order();
    let kernel = FakeKernel::taking(&fake, ARMED);
    kernel.removes.borrow_mut().push(libc::ENOENT);
    remove(&fake.host(), &kernel, Instance::Mpu, Duration::ZERO, "mpu down").expect("nothing to do");
    kernel.removes.borrow_mut().push(libc::EPERM);
    assert_eq!(
        remove(&fake.host(), &kernel, Instance::Mpu, Duration::ZERO, "mpu down").expect_err("not allowed").exit(),
        Exit::Refused
    );
}

#[test]
fn the_kernels_words_about_us_are_kept() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("kmsg");
    std::fs::write(&path, "4,1,2,-;mpu: version magic '6.1' should be '6.2'\n SUBSYSTEM=x\n").expect("a file");
    assert_eq!(last_words(File::open(path).expect("a file")), "mpu: version magic '6.1' should be '6.2'");
}
