//! `mpu doctor --report` on a host where tenants put their names into every place that they can write. The report must
//! have none.

use assert_cmd::Command;
use mpu_core::HostPid;
use mpu_engine::module::sources::Sources;
use mpu_host::host::fake::{FakeHost, RELEASE};
use mpu_notify::client::State;
use mpu_notify::fake::{self, FakeSupervisor};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const LONG: &str = "a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f90";
const POD: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";

/// Names of tenants, users and the host, and PIDs. Every freely chosen name contains `secret`.
const SECRETS: [&str; 11] =
    ["secret", "4242", "acme", "GPU-NODE", "ada", "lovelace", LONG, "a1b2c3d4e5f6", POD, "gpu-node-7", "zork"];

/// A host with the notify engine up, and with names in all places that the report may read directly or through tools.
fn hostile() -> FakeHost {
    let fake = FakeHost::in_order();
    fake.can_notify();
    fake.write("/proc/sys/kernel/hostname", "gpu-node-7.secret.example\n");
    fake.write("/etc/hostname", "gpu-node-7\n");
    fake.write("/etc/passwd", "root:x:0:0::/root:/bin/sh\nada:x:1000:1000:Ada secret lovelace:/home/ada:/bin/sh\n");
    fake.write("/proc/stat", "btime 1700000000\n");
    // A tenant's process: of docker, with its GPU, called like us.
    fake.write("/proc/4242/comm", "mpu: secret\n");
    fake.write("/proc/4242/status", "Name:\tmpu: secret\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t4242\t7\nSeccomp:\t0\n");
    fake.write("/proc/4242/cmdline", "secret\0--of=ada\0");
    fake.write("/proc/4242/stat", "4242 (mpu: secret) S 1 1 1 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 5 1000 10\n");
    fake.write("/proc/4242/cgroup", &format!("0::/zork.slice/docker-{LONG}.scope\n"));
    fake.link("/proc/4242/ns/pid", "pid:[4026532999]");
    fake.link("/proc/4242/fd/3", "/dev/nvidia0");
    fake.write(&format!("/var/lib/docker/containers/{LONG}/config.v2.json"), r#"{"Name":"/secret-trainer"}"#);
    fake.write(
        "/proc/4243/cgroup",
        &format!("0::/kubepods.slice/kubepods-pod{}.slice/cri-containerd-{LONG}.scope\n", POD.replace('-', "_")),
    );
    fake.write("/dev/nvidiactl", "");
    fake.write("/dev/nvidia0", "");
    fs::create_dir_all(fake.host().at("/run/user/1000/podman")).unwrap();
    fake.write("/run/user/1000/podman/podman.sock", "");
    fake.write("/run/user/secret/docker.sock", "");
    fake.write("/home/ada/secret.so", "nvmlDeviceGetCount");
    fake.write("/etc/ld.so.preload", "/home/ada/secret.so\n");
    fs::create_dir_all(fake.host().at("/sys/kernel/livepatch/zork")).unwrap();
    fs::create_dir_all(fake.host().at("/sys/kernel/livepatch/zork/nvidia/secret,1")).unwrap();
    fake.write("/proc/driver/nvidia/gpus/0000:65:00.0/information", "Model: \t\t NVIDIA H200\nGPU UUID: GPU-secret\n");
    fake.write(
        "/etc/mpu/config.toml",
        "engine = \"notify\"\n[[rule]]\npod = \"secret-*\"\nsees = \"host\"\n[[rule]]\ncgroup = \"/zork.slice/**\"\nsees = \"host\"\n",
    );
    fake.write(
        &format!("/var/lib/mpu/{RELEASE}/build.log"),
        &format!(
            "make: Entering directory '/usr/src/linux'\n  CC [M] /home/ada/secret/mpu_main.o\n\
             ada@gpu-node-7: error: stop, process 4242 (secret)\nin {LONG}\n\
             /home/ada/acme/mpu_calls.c:7:9: error: secret\n\
             gcc -I/home/ada/acme/inc on GPU-NODE-7 for processes 1, 4242 of /srv/x@acme/x y/mpu.ko\n\
             process 7 (a) acme, in container x)\n"
        ),
    );
    let dmesg = "[    1.000000] mpu: placed\n\
        [    2.000000] mpu: secret[4242]: segfault at 0 ip 0 sp 0 error 4 in secret[5]\n\
        [    3.000000] mpu: nothing is redirected: os_find_ns_pid: error -16\n\
        [    4.000000] oom-kill:task_memcg=/docker/secret,task=mpu,pid=4242,uid=1000\n\
        [    5.000000] mpu: nothing is redirected: secret ada: error -16\n\
        [    6.000000]  mpu_enter+0x12/0x80 [mpu]\n";
    fake.tool("dmesg", &format!("cat <<'END'\n{dmesg}END"));
    fake.tool(
        "systemctl",
        "echo ActiveState=active; echo Result=a secret of ada; echo Secret=secret; echo SubState=running; exit 1",
    );
    fake
}

/// A supervisor whose state has container names in all possible fields.
fn supervisor(fake: &FakeHost) -> FakeSupervisor {
    let state = State {
        restarts: 1,
        restarts_last_hour: 1,
        pid: HostPid::new(4242).unwrap(),
        passed_on: 5,
        translated: [("GPU_GET_PIDS".to_string(), 9), ("of secret".to_string(), 1)].into(),
        passed: [("out_of_reach".to_string(), 3)].into(),
        policy: vec!["pod secret-* host".to_string()],
        ..fake::state(&["secret-box"])
    };
    FakeSupervisor::on(fake, state)
}

fn mpu(fake: &FakeHost, arguments: &[&str]) -> std::process::Output {
    let mut command = Command::cargo_bin("mpu").unwrap();
    command.arg("--host-root").arg(fake.dir.path()).arg("doctor").args(arguments).env("SUDO_USER", "ada");
    command.output().unwrap()
}

fn printed(fake: &FakeHost, arguments: &[&str]) -> String {
    let done = mpu(fake, &[&["--report", "-"], arguments].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn report_without_option_has_no_tenant_names() {
    let fake = hostile();
    let _supervisor = supervisor(&fake);
    let report = printed(&fake, &[]);
    let found: Vec<(&str, &str)> = SECRETS
        .iter()
        .flat_map(|secret| report.lines().filter(|line| line.contains(*secret)).map(move |line| (*secret, line)))
        .collect();
    assert!(found.is_empty(), "{found:#?}\n{report}");
    // The facts for an issue must be in it.
    for wanted in [
        "550.163.01",
        RELEASE,
        "Debian GNU/Linux 12",
        "1 × NVIDIA H200",
        "notify passed out_of_reach 3",
        "notify translated GPU_GET_PIDS 9",
        "rule           pod <name> sees host",
        "ActiveState=active",
        "mpu_enter+0x12/0x80 [mpu]",
        "7 lines",
        "mpu_calls.c:7:9: error\n",
        "attention notify_unserved",
        "attention notify_rootless",
        "restarts     1",
    ] {
        assert!(report.contains(wanted), "no {wanted}:\n{report}");
    }
    // Without the module's sources, the executable cannot recognize the module's messages.
    if Sources::embedded().is_ok() {
        for wanted in ["mpu: placed", "os_find_ns_pid: error -16", "(3 more lines"] {
            assert!(report.contains(wanted), "no {wanted}:\n{report}");
        }
    }
    let all = printed(&fake, &["--with-names"]);
    for wanted in
        ["HAS names", "secret-trainer", "pid=4242", "pod secret-*", "/home/ada/secret.so", "process 7 (a) acme"]
    {
        assert!(all.contains(wanted), "no {wanted}:\n{all}");
    }
}

#[test]
fn report_omits_text_of_invalid_configuration() {
    let fake = hostile();
    fake.write("/etc/mpu/config.toml", "secret = \"zork\"\n[[rule]]\nada = 1\n");
    let report = printed(&fake, &[]);
    assert!(report.contains("not valid") && report.contains("broken    configuration"), "{report}");
    assert!(!report.contains("secret") && !report.contains("ada") && !report.contains("zork"), "{report}");
}

#[test]
fn large_logs_leave_report_bounded() {
    let fake = hostile();
    fake.write(&format!("/var/lib/mpu/{RELEASE}/build.log"), &"warning: x\n".repeat(300_000));
    fake.tool("dmesg", "yes ' mpu_enter+0x12/0x80 [mpu]' | head -n 100000");
    let report = printed(&fake, &[]);
    assert!(report.len() < 512 << 10, "{}", report.len());
    assert!(report.matches("mpu_enter+").count() == 200);
}

#[test]
fn forbidden_kernel_log_is_not_empty_one() {
    let fake = hostile();
    fake.tool("dmesg", "exit 1");
    let report = printed(&fake, &[]);
    assert!(report.contains("dmesg cannot be read"), "{report}");
}

#[test]
fn report_file_is_private_and_not_overwritten() {
    let fake = hostile();
    let file = fake.dir.path().join("report.txt");
    let name = file.to_str().unwrap();
    let done = mpu(&fake, &["--report", name]);
    assert!(done.status.success() && String::from_utf8_lossy(&done.stdout).contains("read it"));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let before = fs::read(&file).unwrap();
    let again = mpu(&fake, &["--report", name, "--with-names"]);
    let output = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(again.status.code() == Some(4) && output.contains("exists") && output.contains("--force"), "{output}");
    assert_eq!(fs::read(&file).unwrap(), before);
    let forced = mpu(&fake, &["--report", name, "--force", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&forced.stdout).unwrap();
    assert_eq!((report["report"].as_str(), report["has_names"].as_bool()), (Some(name), Some(false)));
    assert_eq!(report["bytes"].as_u64(), Some(fs::metadata(&file).unwrap().len()));
    let folder = fake.dir.path().to_str().unwrap();
    for words in [&["--report", folder][..], &["--report", folder, "--force"]] {
        let refused = mpu(&fake, words);
        let output = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(4) && output.contains("not a regular file"), "{output}");
    }
    for wrong in [&["--force"][..], &["--with-names"], &["--report", "--list"]] {
        assert_eq!(mpu(&fake, wrong).status.code(), Some(2), "{wrong:?}");
    }
    assert_eq!(mpu(&fake, &["--report", "/no/such/folder/report.txt"]).status.code(), Some(1));
    assert!(Path::new(name).exists());
}
