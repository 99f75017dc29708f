//! Fake hosts on which `/dev/full` is `/dev/nvidia-uvm-tools` and `/dev/tty` is a GPU's DRM node.

use super::*;
use crate::report::{self, Report, Style, documented};
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::fake::FakeHost;
use std::cell::{Cell, RefCell};

const LONG: &str = "a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f90";

fn host() -> FakeHost {
    let fake = FakeHost::in_order();
    fake.can_notify();
    fake.write("/proc/1/comm", "systemd\n");
    fake.write("/proc/stat", "cpu 1 2 3\nbtime 1700000000\n");
    fake.write("/etc/passwd", "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n");
    fake.write("/proc/devices", "Character devices:\n  1 nvidia-uvm\n195 nvidia\n");
    fake.write("/proc/driver/nvidia/gpus/0000:17:00.0/information", "GPU UUID: \t GPU-aaaa1111\nDevice Minor: \t 1\n");
    fake.write("/proc/driver/nvidia/gpus/0000:65:00.0/information", "GPU UUID: \t GPU-bbbb2222\nDevice Minor: \t 0\n");
    fake.link("/sys/dev/char/5:0", "../../devices/pci0000:64/0000:65:00.0/drm/card1");
    fake.write("/sys/module/nvidia/refcnt", "3\n");
    fake.write("/sys/module/nvidia/holders/nvidia_uvm/refcnt", "");
    fake.write("/sys/module/nvidia_uvm/refcnt", "2\n");
    fake
}

fn stat(pid: u32, ticks: u64) -> String {
    format!("{pid} (x) S 1 1 1 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 {ticks} 1000 10\n")
}

/// A process that has the device open.
fn process(fake: &FakeHost, pid: u32, device: &str, cgroup: &str) {
    fake.write(&format!("/proc/{pid}/stat"), &stat(pid, 12_300));
    fake.write(&format!("/proc/{pid}/maps"), "");
    fake.write(&format!("/proc/{pid}/status"), "Name:\tpy\\nth\u{1b}on3\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t7\n");
    fake.write(&format!("/proc/{pid}/cmdline"), "python3\0train.py\0");
    fake.write(&format!("/proc/{pid}/cgroup"), &format!("0::{cgroup}\n"));
    fake.link(&format!("/proc/{pid}/fd/3"), device);
    std::fs::create_dir_all(fake.host().at(format!("/proc/{pid}/task"))).expect("folders");
}

fn list_holders(fake: &FakeHost, gpu: Option<&str>) -> Result<Who, WhoError> {
    let options = WhoOptions { gpu: gpu.map(str::to_string), wait: None };
    who(&fake.host(), &options, &|line| panic!("{line}"))
}

#[test]
fn holders_have_owner_and_end_command() {
    let fake = host();
    let pod = "/kubepods.slice/kubepods-pod0f4a5d3c_1b2c_3d4e_5f60_718293a4b5c6.slice";
    process(&fake, 10, "/dev/full", &format!("{pod}/cri-containerd-{LONG}.scope"));
    let annotations = r#"{"annotations":{"io.kubernetes.cri.container-name":"worker",
        "io.kubernetes.cri.sandbox-name":"train-0","io.kubernetes.cri.sandbox-namespace":"vision"}}"#;
    fake.write(&format!("/run/containerd/io.containerd.runtime.v2.task/k8s.io/{LONG}/config.json"), annotations);
    process(&fake, 11, "/dev/full", "/system.slice/slurmstepd.scope/job_77/step_0/user/task_0");
    process(&fake, 12, "/dev/tty", "/system.slice/nvidia-persistenced.service");
    fake.write("/sys/fs/cgroup/system.slice/nvidia-persistenced.service/cgroup.procs", "12\n");
    fake.link("/proc/12/exe", "/usr/bin/nvidia-persistenced (deleted)");
    process(&fake, 13, "socket:[5]", "/");
    fake.write("/proc/13/fdinfo/3", "scm_fds: 2\n");
    let seen = list_holders(&fake, Some("65:00.0")).expect("a GPU");
    documented::check(&report::json_of("who", &seen));
    let ends: Vec<&str> = seen.processes.iter().map(|process| process.end.as_deref().unwrap_or_default()).collect();
    assert_eq!(
        ends,
        ["kubectl delete pod --namespace vision train-0", "scancel 77.0", "systemctl stop nvidia-persistenced.service"]
    );
    let first = &seen.processes[0];
    assert_eq!((first.uid, first.user.as_deref(), first.started), (Some(1000), Some("ada"), Some(1_700_000_123)));
    assert_eq!(seen.processes[2].role, Some(Role::Persistenced));
    assert_eq!(seen.processes[2].uses[0].node.gpu, Some(1));
    assert_eq!((seen.in_flight.len(), seen.free, seen.exit()), (1, false, Exit::Ok));
    let text = seen.text(Style::Plain);
    for words in ["pod vision/train-0", "job 77.0", "(persistence daemon)", "py\\nth\u{fffd}on3", "GPU 1 is in use"] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    assert!(!text.contains('\u{1b}') && !text.contains("MODULE"), "{text}");
}

#[test]
fn unit_with_other_users_is_not_stopped() {
    let fake = host();
    process(&fake, 10, "/dev/full", "/system.slice/train.service/worker");
    process(&fake, 11, "/dev/full", "/system.slice/jupyterhub.service");
    process(&fake, 12, "/dev/full", "/system.slice/unreadable.service");
    process(&fake, 13, "/dev/full", "/kubepods/train.service");
    fake.write("/proc/20/status", "Name:\tjupyterhub\nUid:\t0\t0\t0\t0\n");
    fake.write("/sys/fs/cgroup/systemd/system.slice/train.service/cgroup.procs", "10\n99\n");
    fake.write("/sys/fs/cgroup/systemd/system.slice/jupyterhub.service/cgroup.procs", "20\n11\n");
    let seen = list_holders(&fake, None).expect("root");
    let found: Vec<_> = seen.processes.iter().map(|one| (one.unit.as_deref(), one.end.as_deref())).collect();
    let expected = [
        (Some("train.service"), Some("systemctl stop train.service")),
        (Some("jupyterhub.service"), Some("kill 11")),
        (Some("unreadable.service"), Some("kill 12")),
        (None, Some("kill 13")),
    ];
    assert_eq!(found, expected);
}

#[test]
fn homes_of_users_are_not_read() {
    let fake = host();
    let unit = format!("/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{LONG}.scope");
    process(&fake, 10, "/dev/full", &unit);
    let config = format!("/home/ada/.local/share/docker/containers/{LONG}/config.v2.json");
    fake.write(&config, r#"{"Name":"/train"}"#);
    let seen = list_holders(&fake, None).expect("root");
    let container = seen.processes[0].container.as_ref().expect("a container");
    assert_eq!((container.user, container.name.as_deref()), (Some(1000), None));
}

#[test]
fn gpu_has_notes_of_its_own() {
    let fake = host();
    process(&fake, 10, "/dev/tty", "/");
    process(&fake, 11, "socket:[5]", "/");
    fake.write("/proc/11/fdinfo/3", "scm_fds: 2\n");
    let seen = list_holders(&fake, Some("0")).expect("a GPU");
    assert!(seen.free && seen.notes.len() == 1 && seen.notes[0].contains("sockets of PID 11;"), "{:?}", seen.notes);
    // A mapping that cannot be looked at.
    fake.write("/proc/11/maps", "7f00000000-7f00001000 rw-s 00000000 00:05 9 /x\n");
    let seen = list_holders(&fake, Some("0")).expect("a GPU");
    assert!(!seen.free && seen.not_read.len() == 1 && seen.notes.len() == 2, "{:?}", seen.notes);
    assert!(!seen.notes.iter().any(|note| note.contains("nvidia_uvm")), "GPU 1's holder uses it: {:?}", seen.notes);
}

#[test]
fn control_characters_reach_no_terminal() {
    let fake = host();
    process(&fake, 10, "/dev/full", "/");
    fake.write("/proc/10/cmdline", "a\u{9b}31m\0b\u{202e}c\u{7f}\0");
    let seen = list_holders(&fake, None).expect("root");
    let line = report::json_of("who", &seen);
    assert!(!line.contains(mpu_os::text::is_control), "{line}");
    let read: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(read["processes"][0]["command"], "a\u{9b}31m b\u{202e}c\u{7f}");
}

#[test]
fn gpu_leaves_out_holders_of_others() {
    let fake = host();
    process(&fake, 10, "/dev/full", "/");
    process(&fake, 11, "/dev/tty", "/");
    let pids = |gpu: Option<&str>| -> Vec<u32> {
        list_holders(&fake, gpu).expect("a GPU").processes.iter().map(|process| process.pid.get()).collect()
    };
    assert_eq!(pids(None), [10, 11]);
    for requested in ["1", "GPU-bbbb", "65:00.0", "00000000:65:00.0"] {
        assert_eq!(pids(Some(requested)), [10, 11], "{requested}");
    }
    assert_eq!(pids(Some("0")), [10], "a node of all GPUs may be of this one");
    let error = list_holders(&fake, Some("7")).expect_err("none");
    assert_eq!((error.code(), error.exit()), ("no_such_gpu", Exit::Usage));
    assert!(error.to_string().contains("has 0, 1"), "{error}");
}

#[test]
fn module_users_are_listed() {
    let fake = host();
    process(&fake, 10, "/dev/full", "/");
    let seen = list_holders(&fake, None).expect("root");
    let modules: Vec<_> =
        seen.modules.iter().map(|m| (m.name.as_str(), m.references, m.processes.len(), m.end.as_str())).collect();
    assert_eq!(modules, [("nvidia_uvm", Some(2), 1, "rmmod nvidia_uvm"), ("nvidia", Some(3), 0, "rmmod nvidia")]);
    let text = seen.text(Style::Plain);
    assert!(text.contains("nvidia_uvm") && text.ends_with("the NVIDIA driver is in use\n"), "{text}");
}

#[test]
fn references_without_process_are_explained() {
    let fake = host();
    let seen = list_holders(&fake, None).expect("root");
    assert!(!seen.free && seen.processes.is_empty());
    assert!(
        seen.notes[0].contains("nvidia_uvm 2, nvidia 2") && seen.notes[0].contains("in flight"),
        "{:?}",
        seen.notes
    );
    fake.write("/sys/module/nvidia_uvm/refcnt", "0\n");
    fake.write("/sys/module/nvidia/refcnt", "1\n");
    let seen = list_holders(&fake, None).expect("root");
    assert!(seen.free && seen.notes.is_empty(), "{:?}", seen.notes);
    fake.remove("/sys/module/nvidia");
    let seen = list_holders(&fake, None).expect("root");
    assert_eq!((seen.driver.as_deref(), seen.free, seen.exit()), (None, true, Exit::Ok));
    assert!(list_holders(&fake, Some("9")).is_err());
}

#[test]
fn wait_ends_when_free_or_in_time() {
    let fake = host();
    process(&fake, 10, "/dev/full", "/");
    let lines = RefCell::new(Vec::new());
    let log = |line: &str| {
        lines.borrow_mut().push(line.to_string());
        fake.remove("/proc/10");
        fake.write("/sys/module/nvidia_uvm/refcnt", "0\n");
        fake.write("/sys/module/nvidia/refcnt", "1\n");
    };
    let wait = |seconds| WhoOptions { gpu: None, wait: Some(seconds) };
    let seen = who(&fake.host(), &wait(30), &log).expect("root");
    assert_eq!((seen.free, seen.exit()), (true, Exit::Ok));
    assert_eq!(*lines.borrow(), ["waiting for 1 process; 4 references of the driver's modules"]);
    fake.write("/sys/module/nvidia/refcnt", "2\n");
    let logged = Cell::new(0);
    let seen = who(&fake.host(), &wait(1), &|_| logged.set(logged.get() + 1)).expect("root");
    assert_eq!((seen.free, seen.exit(), seen.exit().code(), logged.get()), (false, Exit::Busy, 5, 1));
    let seen = who(&fake.host(), &wait(0), &|line| panic!("{line}")).expect("root");
    assert_eq!(seen.exit(), Exit::Busy);
}

#[test]
fn wait_includes_late_description_of_gpu() {
    let fake = host();
    let options = |gpu: &str, seconds| WhoOptions { gpu: Some(gpu.to_string()), wait: Some(seconds) };
    let error = who(&fake.host(), &options("7", 600), &|line| panic!("{line}")).expect_err("all are described");
    assert_eq!(error.code(), "no_such_gpu");

    fake.remove("/proc/driver/nvidia/gpus");
    let lines = RefCell::new(Vec::new());
    let log = |line: &str| {
        lines.borrow_mut().push(line.to_string());
        fake.write(
            "/proc/driver/nvidia/gpus/0000:65:00.0/information",
            "GPU UUID: \t GPU-bbbb2222\nDevice Minor: \t 0\n",
        );
    };
    let error = who(&fake.host(), &options("GPU-bbbb", 0), &log).expect_err("the time is over");
    assert_eq!((error.code(), lines.borrow().len()), ("no_such_gpu", 0));
    let seen = who(&fake.host(), &options("GPU-bbbb", 60), &log).expect("it came");
    assert_eq!((seen.gpu.and_then(|gpu| gpu.uuid).as_deref(), seen.free), (Some("GPU-bbbb2222"), true));
    assert_eq!(*lines.borrow(), ["waiting for the driver to describe GPU GPU-bbbb"]);
}

#[test]
fn reused_pid_is_not_reported() {
    let fake = host();
    process(&fake, 10, "/dev/full", "/");
    let host = fake.host();
    let observation = Observation::of(&host, None, &mut Scanner::default()).expect("root");
    // The process ends, and another gets its number.
    fake.write("/proc/10/stat", &stat(10, 99_999));
    assert_eq!(observation.report(&host, None).processes, []);
    let observation = Observation::of(&host, None, &mut Scanner::default()).expect("root");
    fake.remove("/proc/10");
    assert_eq!(observation.report(&host, None).processes, []);
}

#[test]
fn other_users_and_namespaces_are_refused() {
    let fake = host();
    fake.write("/proc/self/status", "CapEff:\t0000000000000000\n");
    let error = list_holders(&fake, None).expect_err("not root");
    assert_eq!((error.code(), error.exit()), ("not_root", Exit::Refused));
    let fake = host();
    fake.remove("/proc/1");
    let error = list_holders(&fake, None).expect_err("hidden");
    assert_eq!((error.code(), error.exit()), ("hidden_processes", Exit::Refused));
    let fake = host();
    fake.remove("/proc/self/ns/pid");
    let error = list_holders(&fake, None).expect_err("elsewhere");
    assert_eq!((error.code(), error.exit()), ("not_on_host", Exit::NotReady));
}
