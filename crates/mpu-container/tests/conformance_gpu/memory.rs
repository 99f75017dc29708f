//! Limits of GPU memory: containers get the hook, and none starts with a limit that would not be enforced. No driver here can
//! enforce one; `driver::memory` tests the written values.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

use crate::fake_host::Host;

const LIMIT: [&str; 2] = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GPU_MEMORY_LIMIT=4096"];
const UUIDS: [&str; 2] = ["GPU-00000000-1111-2222-3333-444444444444", "GPU-00000001-1111-2222-3333-444444444444"];

fn hooks(spec: &Value) -> Vec<Value> {
    spec["hooks"]["createRuntime"].as_array().cloned().unwrap_or_default()
}

/// A process that could be a container's: with mounts of its own, so that nothing mounted for it reaches the host.
struct Process(Child);

impl Process {
    fn new() -> Process {
        let mut command = Command::new("unshare");
        if rustix::process::geteuid().is_root() {
            command.args(["--mount", "--propagation", "private"]);
        }
        let child = command.args(["sleep", "60"]).stdin(Stdio::null()).spawn().unwrap();
        // It has its mounts when it is the other program.
        let name = format!("/proc/{}/comm", child.id());
        while fs::read_to_string(&name).is_ok_and(|comm| comm.trim() != "sleep") {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        Process(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Calls a program of the executable's with the state of a container.
fn call(host: &Host, name: &str, arguments: &[&str]) -> Output {
    let process = Process::new();
    if !host.at(name).exists() {
        symlink(env!("CARGO_BIN_EXE_mpu-container"), host.at(name)).unwrap();
    }
    let mut command = Command::new(host.at(name));
    command.args(arguments).env("NVIDIA_CTK_CONFIG_FILE_PATH", host.at("config.toml"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let state = json!({"ociVersion": "1.2.0", "id": "a", "pid": process.0.id(), "bundle": host.at("bundle")});
    // A program that refuses its arguments does not read it.
    let _ = child.stdin.take().unwrap().write_all(state.to_string().as_bytes());
    child.wait_with_output().unwrap()
}

fn refusal(output: &Output) -> String {
    let message = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    message
}

#[test]
fn memory_limit_hook_names_requested_gpus() {
    let host = Host::new();
    host.ask(&LIMIT[..1]);
    assert!(host.create().status.success());
    assert_eq!(hooks(&host.spec()), [json!(null); 0], "no limit is requested");
    host.ask(&LIMIT);
    assert!(host.create().status.success());
    let found = hooks(&host.spec());
    let root = host.at("driver").display().to_string();
    let words = [
        "nvidia-cdi-hook",
        "apply-cuda-memory-limits",
        "--driver-root",
        &root,
        "--gpu-id",
        UUIDS[0],
        "--gpu-id",
        UUIDS[1],
    ];
    assert_eq!((found.len(), &found[0]["args"]), (1, &json!(words)));
    for bad in ["4Gi", "", "-1"] {
        host.ask(&[LIMIT[0], &format!("NVIDIA_GPU_MEMORY_LIMIT={bad}")]);
        host.refused(&["NVIDIA_GPU_MEMORY_LIMIT", "MiB"]);
    }
    // The administrator can decide to start containers without their limits.
    host.configure("true", "auto", "");
    let text = fs::read_to_string(host.at("config.toml")).unwrap();
    host.write("config.toml", &format!("{text}modes.jit-cdi.nvcdi-disable-hooks = [\"apply-cuda-memory-limits\"]\n"));
    host.ask(&LIMIT);
    assert!(host.create().status.success());
    assert_eq!(hooks(&host.spec()), [json!(null); 0]);
}

#[test]
fn cdi_file_without_limit_hook_is_refused() {
    let host = Host::new();
    let file = |hooks: Value| {
        json!({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0", "containerEdits": {
            "env": ["A=1"], "hooks": hooks}}]})
        .to_string()
    };
    host.write("cdi/nvidia.json", &file(json!([])));
    let env = ["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0", LIMIT[1]];
    host.ask(&env);
    host.refused(&["GPU memory", "CDI file has no hook", "nvidia-ctk cdi generate"]);
    let hook =
        json!([{"hookName": "createRuntime", "path": "/bin/true", "args": ["hook", "apply-cuda-memory-limits"]}]);
    host.write("cdi/nvidia.json", &file(hook));
    assert!(host.create().status.success());
}

#[test]
fn hook_refuses_unenforceable_limit() {
    let host = Host::new();
    let root = host.at("driver").display().to_string();
    let hook = |more: &[&str]| {
        let all = [&["apply-cuda-memory-limits", "--driver-root", &root], more].concat();
        call(&host, "nvidia-cdi-hook", &all)
    };
    host.ask(&[]);
    assert!(hook(&["--gpu-id", UUIDS[0]]).status.success(), "no limit is requested");
    host.ask(&LIMIT);
    let message = refusal(&hook(&["--gpu-id", UUIDS[0]]));
    // The reason depends on this machine: its cgroups are old, or ours, or the made-up driver does not answer.
    assert!(
        message.starts_with("nvidia-cdi-hook: apply-cuda-memory-limits: the container asks for a limit of GPU memory"),
        "{message}"
    );
    assert!(refusal(&hook(&["--gpu-id", "GPU-other"])).contains("GPU-other: unknown device"));
    assert!(refusal(&hook(&["--gpu-id", " "])).contains("--gpu-id"));
    assert!(refusal(&hook(&[])).contains("--gpu-id"));
    host.ask(&["NVIDIA_GPU_MEMORY_LIMIT=much"]);
    assert!(refusal(&hook(&["--gpu-id", UUIDS[0]])).contains("NVIDIA_GPU_MEMORY_LIMIT=\"much\""));
    host.ask(&LIMIT);
    let nowhere =
        call(&host, "nvidia-cdi-hook", &["apply-cuda-memory-limits", "--driver-root=/nowhere", "--gpu-id", UUIDS[0]]);
    refusal(&nowhere);
    fs::remove_file(host.at("bundle/config.json")).unwrap();
    let without = hook(&["--gpu-id", UUIDS[0]]);
    assert!(without.status.success() && String::from_utf8(without.stderr).unwrap().contains("warning: no limit"));
}

#[test]
fn prestart_hook_refuses_it_too() {
    let host = Host::new();
    host.configure("true", "legacy", "");
    host.ask(&LIMIT);
    let message = refusal(&call(&host, "nvidia-container-runtime-hook", &["prestart"]));
    assert!(message.contains("the container asks for a limit of GPU memory") && message.contains("fix: "), "{message}");
}

#[test]
fn own_cdi_file_has_hook_for_each_gpu() {
    let host = Host::new();
    symlink(env!("CARGO_BIN_EXE_mpu-container"), host.at("nvidia-ctk")).unwrap();
    let generate = |more: &[&str]| {
        let mut command = Command::new(host.at("nvidia-ctk"));
        command
            .args(["cdi", "generate", "--format=json"])
            .arg(format!("--driver-root={}", host.at("driver").display()));
        let output = command.args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let limits = |spec: &Value, name: &str| -> Vec<Value> {
        let devices = spec["devices"].as_array().unwrap();
        let device = devices.iter().find(|device| device["name"] == name).unwrap();
        let hooks = device["containerEdits"]["hooks"].as_array().cloned().unwrap_or_default();
        hooks.into_iter().filter(|hook| hook["args"][1] == "apply-cuda-memory-limits").collect()
    };
    let spec = generate(&[]);
    let one = limits(&spec, "1");
    assert_eq!((one.len(), &one[0]["hookName"], &one[0]["args"][5]), (1, &json!("createRuntime"), &json!(UUIDS[1])));
    // One process for all of them.
    let all = limits(&spec, "all");
    assert_eq!((all.len(), &all[0]["args"][5], &all[0]["args"][7]), (1, &json!(UUIDS[0]), &json!(UUIDS[1])));
    assert_eq!(limits(&generate(&["--disable-hook=apply-cuda-memory-limits"]), "all"), [json!(null); 0]);
}
