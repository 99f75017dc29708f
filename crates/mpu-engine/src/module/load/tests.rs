//! Kernels that accept, refuse and keep a module, and the message for each.

use super::fake::FakeKernel;
use super::*;
use crate::module::state::{ARMED, HELD};
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::fake::FakeHost;

fn insert_into(fake: &FakeHost, kernel: &FakeKernel<'_>) -> Result<State, ModuleError> {
    fake.write("/mpu.ko", "module");
    let plain = Parameters { policy: "", redirect: Redirect::Auto };
    insert(&fake.host(), kernel, Instance::Mpu, &fake.host().at("/mpu.ko"), plain)
}

fn remove_within(kernel: &FakeKernel<'_>, patience: Duration) -> Result<(), LoadError> {
    remove(&kernel.host.host(), kernel, Instance::Mpu, patience, "mpu down")
}

/// A module of format 2 with callers inside.
fn holders(fake: &FakeHost) -> FakeKernel<'_> {
    fake.write("/sys/module/mpu/parameters/state", HELD);
    fake.write("/proc/4242/comm", "python3\n");
    FakeKernel::taking(fake, HELD)
}

#[test]
fn loaded_module_gives_its_state() {
    let fake = FakeHost::in_order();
    let kernel = FakeKernel::taking(&fake, ARMED);
    assert_eq!(insert_into(&fake, &kernel).expect("loaded").phase, Phase::Armed);
    assert_eq!(kernel.calls.get(), (1, 0));
}

#[test]
fn module_without_redirection_is_unloaded() {
    let refused = |what: &str| format!("version=0.1.0\nabi=2\nstate=refused\nrefused={what}\n");
    for (state, code, exit, message, fix) in [
        (String::new(), "no_state", Exit::Failed, "", ""),
        (
            refused("os_find_ns_pid:-16"),
            "redirect_refused",
            Exit::Refused,
            "os_find_ns_pid: another module has one already",
            "",
        ),
        (refused("functions:16"), "redirect_refused", Exit::Refused, "the driver's functions: ", "enabled_functions"),
        (
            refused("kernel.ftrace_enabled:16"),
            "redirect_refused",
            Exit::Refused,
            "kernel.ftrace_enabled = 0",
            "ftrace_enabled=1",
        ),
    ] {
        let fake = FakeHost::in_order();
        let kernel = FakeKernel::taking(&fake, &state);
        let error = insert_into(&fake, &kernel).expect_err(code);
        assert_eq!((error.code(), error.exit(), kernel.calls.get().0), (code, exit, 1));
        assert!(error.to_string().contains(message) && error.fix().contains(fix), "{error}");
        assert_eq!(error.to_string().contains("driver"), !state.contains("ftrace") && !state.is_empty(), "{error}");
        assert!(!state::is_loaded(&fake.host()));
    }
}

#[test]
fn load_errnos_become_exit_codes() {
    for (errno, exit) in [
        (libc::EPERM, Exit::Refused),
        (libc::EKEYREJECTED, Exit::Refused),
        (libc::ENOEXEC, Exit::Failed),
        (libc::EINVAL, Exit::Failed),
    ] {
        let fake = FakeHost::in_order();
        let kernel = FakeKernel::taking(&fake, ARMED);
        kernel.inserts.borrow_mut().push(errno);
        let error = insert_into(&fake, &kernel).expect_err("not taken");
        assert_eq!((error.code(), error.exit()), ("load_failed", exit), "errno {errno}");
        assert!(!state::is_loaded(&fake.host()));
    }
}

#[test]
fn unload_waits_for_callers_until_timeout() {
    let fake = FakeHost::in_order();
    let kernel = FakeKernel::taking(&fake, ARMED);
    insert_into(&fake, &kernel).expect("loaded");
    kernel.removes.borrow_mut().extend([libc::EAGAIN, libc::EAGAIN]);
    remove_within(&kernel, Duration::from_secs(5)).expect("unloaded at the third try");
    assert_eq!(kernel.calls.get(), (1, 3));

    fake.write("/sys/module/mpu/parameters/state", "version=1\nstate=armed\ninside=3\n");
    kernel.removes.borrow_mut().extend([libc::EAGAIN; 100]);
    let error = remove_within(&kernel, Duration::from_millis(20)).expect_err("busy");
    assert!(matches!(error, LoadError::Busy { inside: 3, .. }), "{error:?}");
    assert!(state::is_loaded(&fake.host()));
}

#[test]
fn caller_inside_is_named_and_blocks_unload() {
    let fake = FakeHost::in_order();
    let kernel = holders(&fake);
    kernel.retires.borrow_mut().push(libc::EBUSY);
    let before = fake.snapshot();
    let error = remove_within(&kernel, Duration::from_secs(10)).expect_err("held");
    assert_eq!((error.code(), error.exit(), kernel.calls.get()), ("in_use", Exit::Failed, (0, 0)));
    let message = error.to_string();
    assert!(message.contains("nothing was changed") && message.contains("process 4242 (python3)"), "{message}");
    assert!(error.fix().contains("then run `mpu down` again"), "{}", error.fix());
    assert_eq!((fake.snapshot(), kernel.retire_timeouts.borrow().as_slice()), (before, &[10_000][..]));
    remove_within(&kernel, Duration::from_secs(10)).expect("they have left");
    assert_eq!((kernel.calls.get(), state::is_loaded(&fake.host())), ((0, 1), false));
}

#[test]
fn long_wait_is_split_into_minutes() {
    let fake = FakeHost::in_order();
    let kernel = holders(&fake);
    kernel.retires.borrow_mut().extend([libc::EBUSY, libc::EBUSY]);
    remove_within(&kernel, Duration::from_secs(3600)).expect("unloaded at the third try");
    assert_eq!(*kernel.retire_timeouts.borrow(), [60_000; 3]);
}

#[test]
fn retired_held_module_can_be_unloaded_later() {
    let fake = FakeHost::in_order();
    let kernel = holders(&fake);
    kernel.removes.borrow_mut().extend([libc::EAGAIN; 100]);
    let error = remove_within(&kernel, Duration::from_millis(20)).expect_err("kept");
    assert!(matches!(error, LoadError::StillReferenced { inside: 0, .. }), "{error:?}");
    kernel.removes.borrow_mut().clear();
    remove_within(&kernel, Duration::from_millis(20)).expect("it can be repeated");
}

#[test]
fn unload_errnos_become_errors() {
    let fake = FakeHost::in_order();
    let kernel = holders(&fake);
    kernel.retires.borrow_mut().push(libc::EIO);
    let error = remove_within(&kernel, Duration::ZERO).expect_err("stuck");
    assert_eq!((error.code(), kernel.calls.get()), ("stuck", (0, 0)));
    assert!(error.fix().contains("reboot"));
    kernel.removes.borrow_mut().extend([libc::ENOENT, libc::EPERM]);
    remove_within(&kernel, Duration::ZERO).expect("it is gone already");
    assert_eq!(remove_within(&kernel, Duration::ZERO).expect_err("not allowed").exit(), Exit::Refused);
}

#[test]
fn last_kernel_message_is_found() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("kmsg");
    std::fs::write(&path, "4,1,2,-;mpu: version magic '6.1' should be '6.2'\n SUBSYSTEM=x\n").expect("a file");
    assert_eq!(last_kernel_message(File::open(path).expect("a file")), "mpu: version magic '6.1' should be '6.2'");
}
