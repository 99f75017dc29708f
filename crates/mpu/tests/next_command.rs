//! `mpu doctor` names the next command in each state, from a bare node to a container with right answers.

use assert_cmd::Command;
use mpu_host::host::fake::{FakeHost, RELEASE};

const DOCKER: &str = r#"{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}"#;

/// The line `next:`, and the same in JSON.
fn next(fake: &FakeHost) -> Option<String> {
    let doctor = |arguments: &[&str]| {
        let mut command = Command::cargo_bin("mpu").unwrap();
        command.arg("--host-root").arg(fake.dir.path()).arg("doctor").args(arguments).output().unwrap().stdout
    };
    let text = String::from_utf8(doctor(&[])).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("next: ")).map(str::to_string);
    let json: serde_json::Value = serde_json::from_slice(&doctor(&["--json"])).unwrap();
    assert_eq!(json["next"].as_str().map(str::to_string), line, "{text}");
    if let Some(line) = &line {
        assert!(text.lines().nth(1).is_some_and(|second| second.ends_with(line)), "it comes first: {text}");
    }
    line
}

fn is_next(fake: &FakeHost, state: &str, command: &str) {
    let next = next(fake).unwrap_or_default();
    assert!(next.starts_with(command), "{state}: {next}");
}

/// A node with Docker and an unloaded driver, without MPU.
fn bare() -> FakeHost {
    let fake = FakeHost::in_order();
    fake.can_notify();
    fake.remove("/sys/module/nvidia");
    fake.write(&format!("/lib/modules/{RELEASE}/modules.dep"), "updates/dkms/nvidia.ko.xz:\n");
    fake.write("/run/docker.sock", "");
    fake.tool("systemctl", "exit 1");
    fake
}

fn drive(fake: &FakeHost) {
    fake.write("/sys/module/nvidia/version", "550.163.01\n");
    fake.write("/dev/nvidiactl", "");
    fake.write("/dev/nvidia0", "");
}

fn come_up(fake: &FakeHost) {
    let state =
        format!("version={}\nabi=1\nstate=armed\nhooks=os_memcpy_to_user\ninside=0\n", env!("CARGO_PKG_VERSION"));
    fake.write("/sys/module/mpu/parameters/state", &state);
    fake.write("/sys/module/mpu/parameters/counters", "");
    fake.write("/sys/module/mpu/parameters/policy", "");
}

#[test]
fn doctor_names_each_setup_step() {
    let fake = bare();
    fake.write(&format!("/lib/modules/{RELEASE}/modules.dep"), "kernel/fs/ext4.ko:\n");
    is_next(&fake, "no driver", "# install NVIDIA's driver");
    fake.write(&format!("/lib/modules/{RELEASE}/modules.dep"), "updates/dkms/nvidia.ko.xz:\n");
    is_next(&fake, "a driver that is not loaded", "sudo modprobe nvidia");
    fake.write("/sys/module/nvidia/version", "550.163.01\n");
    is_next(&fake, "no device files", "sudo nvidia-modprobe");
    drive(&fake);
    is_next(&fake, "not up", "sudo mpu up");
    come_up(&fake);
    is_next(&fake, "nothing puts GPUs into containers", "sudo apt-get install ./mpu-container_");
    fake.tool("nvidia-ctk", "");
    is_next(
        &fake,
        "Docker is not configured",
        "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl reload docker",
    );
    fake.write("/etc/docker/daemon.json", DOCKER);
    is_next(&fake, "the next boot starts without", "sudo mpu install");
    fake.write("/usr/lib/systemd/system/mpu.service", "");
    is_next(&fake, "the same, by package", "sudo systemctl enable mpu.service");
    let enabled = "/etc/systemd/system/multi-user.target.wants/mpu.service";
    fake.link(enabled, "/usr/lib/systemd/system/mpu.service");
    assert_eq!(next(&fake), None, "all is right");
}

#[test]
fn next_command_is_same_without_module() {
    for (state, lock) in [("no headers", false), ("locked down", true)] {
        let fake = bare();
        drive(&fake);
        match lock {
            true => fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n"),
            false => fake.remove(&format!("/lib/modules/{RELEASE}/build")),
        }
        is_next(&fake, state, "sudo mpu up");
        // If the module is configured, doctor names the missing part directly.
        fake.write("/etc/mpu/config.toml", "engine = \"module\"\n");
        is_next(&fake, state, if lock { "# run `mpu up --build-only`" } else { "sudo apt-get install linux-headers-" });
        fake.write("/etc/mpu/config.toml", "engine = \"modul\"\n");
        is_next(&fake, "a wrong word", "# ");
    }
}

#[test]
fn doctor_without_root_suggests_sudo_first() {
    let fake = bare();
    fake.write("/proc/self/status", "Name:\tmpu\nCapEff:\t0000000000000000\n");
    is_next(&fake, "not root", "sudo mpu doctor");
}
