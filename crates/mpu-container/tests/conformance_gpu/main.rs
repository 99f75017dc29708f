//! What the wrapper does to a container that asks for a GPU, and what it says when it cannot: through the executable, with
//! a driver made up in a folder, and with real runtimes where a container must run.
//!
//! Where only the specification matters, the runtime behind the wrapper is `true`: it does nothing, whatever it is asked.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{json, Value};

#[path = "../common/bundle.rs"]
mod bundle;
mod like_nvidia;
mod made_up;
mod memory;
mod refresh;
use bundle::{base, found, make_root};
use made_up::{paths, Host};

#[test]
fn a_gpu_is_described_on_the_spot() {
    let host = Host::new();
    for asks in [
        "NVIDIA_VISIBLE_DEVICES=0",
        "NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=0",
        "NVIDIA_VISIBLE_DEVICES=gpu-00000000-1111-2222-3333-444444444444",
    ] {
        host.ask(&[asks]);
        let output = host.create();
        assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
        let spec = host.spec();
        assert_eq!(
            paths(&spec),
            ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia0", "/dev/nvidiactl"],
            "{asks}"
        );
        let rules = spec["linux"]["resources"]["devices"].as_array().unwrap();
        assert_eq!(rules.len(), 5, "what was denied, and each node");
        assert!(rules.contains(&json!({"allow": true, "type": "c", "major": 195, "minor": 255, "access": "rwm"})));
        assert!(spec["process"]["env"].as_array().unwrap().contains(&json!("NVIDIA_VISIBLE_DEVICES=void")));
        assert!(!spec["process"]["env"].as_array().unwrap().contains(&json!(asks)));
        assert_eq!(spec["x-unknown"], json!({"z": 1.5, "a": []}));
    }
    host.ask(&["NVIDIA_VISIBLE_DEVICES=none"]);
    assert!(host.create().status.success());
    assert!(!paths(&host.spec()).contains(&"/dev/nvidia0"), "the driver without a device");
}

#[test]
fn what_asks_for_no_gpu_is_left_alone() {
    let host = Host::new();
    for asks in [
        &[][..],
        &["NVIDIA_VISIBLE_DEVICES=void"],
        &["NVIDIA_VISIBLE_DEVICES="],
        &["CUDA=1", "nvidia_visible_devices=all"],
    ] {
        let before = host.ask(asks);
        let output = host.create();
        assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
        assert_eq!(host.text(), before, "{asks:?}");
    }
}

#[test]
fn another_make_of_the_hook_is_taken_out_where_it_has_no_work() {
    let host = Host::new();
    host.ask(&["NVIDIA_VISIBLE_DEVICES=all"]);
    let mut spec = host.spec();
    let hooks =
        json!([{"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["x", "prestart"]}, {"path": "/bin/other"}]);
    spec["hooks"] = json!({ "prestart": hooks });
    host.set(&spec);
    assert!(host.create().status.success());
    assert_eq!(host.spec()["hooks"]["prestart"], json!([{"path": "/bin/other"}]));
}

#[test]
fn legacy_is_one_hook_and_nodes_that_systemd_knows() {
    let host = Host::new();
    for name in ["nvidia-container-runtime.legacy", "nvidia-container-runtime"] {
        host.configure("true", if name.ends_with("legacy") { "auto" } else { "legacy" }, "");
        host.ask(&["NVIDIA_VISIBLE_DEVICES=all"]);
        for _ in 0..2 {
            assert!(host.call(name, &["create", "id"]).status.success());
            let spec = host.spec();
            let hooks = spec["hooks"]["prestart"].as_array().unwrap();
            assert_eq!(hooks.len(), 1, "and no other, however often");
            assert_eq!(hooks[0]["args"], json!(["nvidia-container-runtime-hook", "prestart"]));
            let program = fs::canonicalize(hooks[0]["path"].as_str().unwrap()).unwrap();
            assert_eq!(program, fs::canonicalize(env!("CARGO_BIN_EXE_mpu-container")).unwrap());
            assert!(paths(&spec).contains(&"/dev/nvidia1"));
            assert!(spec["process"]["env"].as_array().unwrap().contains(&json!("NVIDIA_VISIBLE_DEVICES=all")));
            assert!(spec.get("mounts").is_some_and(|mounts| mounts == &base()["mounts"]), "the hook's business");
        }
    }
}

#[test]
fn cdi_files_are_used_and_not_when_they_are_out_of_date() {
    let host = Host::new();
    let file = |library: &str| {
        json!({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0", "containerEdits": {
            "deviceNodes": [{"path": "/dev/mine", "hostPath": "/dev/null"}],
            "mounts": [{"hostPath": library, "containerPath": "/usr/lib/lib"}]}}]})
        .to_string()
    };
    host.write("cdi/nvidia.json", &file("/etc/hostname"));
    for (name, asks) in [
        ("nvidia-container-runtime", "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0"),
        ("nvidia-container-runtime.cdi", "NVIDIA_VISIBLE_DEVICES=0"),
    ] {
        host.ask(&[asks]);
        assert!(host.call(name, &["create", "id"]).status.success());
        assert_eq!(paths(&host.spec()), ["/dev/mine"]);
    }
    // By annotation, and a GPU that no file describes.
    for (device, node) in [("0", "/dev/mine"), ("1", "/dev/nvidia1")] {
        host.ask(&[]);
        let mut spec = host.spec();
        spec["annotations"] = json!({"cdi.k8s.io/x": format!("nvidia.com/gpu={device}")});
        host.set(&spec);
        assert!(host.create().status.success());
        assert!(paths(&host.spec()).contains(&node));
    }
    host.write("cdi/nvidia.json", &file("/usr/lib/libcuda.so.1.2.3"));
    host.ask(&["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0"]);
    host.refused(&["out of date: /usr/lib/libcuda.so.1.2.3 is not there", "nvidia-ctk cdi generate"]);
}

#[test]
fn a_refusal_says_what_why_and_what_to_do() {
    let host = Host::new();
    let cases: &[(&str, &str, &[&str])] = &[
        ("auto", "NVIDIA_VISIBLE_DEVICES=7", &["7: unknown device", "nvidia-smi -L"]),
        ("legacy", "NVIDIA_VISIBLE_DEVICES=7", &["7: unknown device"]),
        ("cdi", "NVIDIA_VISIBLE_DEVICES=7", &["nvidia.com/gpu=7", "nvidia-ctk cdi list"]),
        ("auto", "NVIDIA_VISIBLE_DEVICES=example.com/x=7", &["unresolvable CDI device example.com/x=7"]),
        ("auto", "NVIDIA_VISIBLE_DEVICES=0,example.com/x=7", &["cannot be asked for together"]),
        ("csv", "NVIDIA_VISIBLE_DEVICES=0", &["csv", "not supported"]),
    ];
    for (mode, asks, says) in cases {
        host.configure("true", mode, "");
        host.ask(&[asks]);
        host.refused(says);
    }
    host.configure("true", "auto", "");
    host.write("bundle/config.json", "{\"process\": ");
    host.refused(&["config.json is not JSON", "line 1"]);
    host.configure("/nowhere/runc", "auto", "");
    host.refused(&["none of these OCI runtimes was found: /nowhere/runc", "config.toml"]);
    host.write("config.toml", "[nvidia-container-runtime]\nmode = 7\n");
    host.refused(&["config.toml, line 2"]);
}

#[test]
fn without_a_driver_nothing_starts_and_the_engine_is_told() {
    let host = Host::new();
    fs::remove_dir_all(host.at("driver/proc/driver")).unwrap();
    fs::create_dir_all(host.at("driver/proc/driver/nvidia")).unwrap();
    for mode in ["auto", "jit-cdi", "legacy"] {
        host.configure("true", mode, "");
        host.ask(&["NVIDIA_VISIBLE_DEVICES=all"]);
        host.refused(&["the nvidia driver is not loaded", "modprobe nvidia"]);
    }
    let log = host.at("engine.json");
    let arguments = ["--log", log.to_str().unwrap(), "--log-format", "json", "create", "id"];
    assert_eq!(host.call("nvidia-container-runtime", &arguments).status.code(), Some(1));
    let text = fs::read_to_string(log).unwrap();
    let record: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(record["level"], "error");
    assert!(record["msg"].as_str().unwrap().contains("driver is not loaded") && record["time"].is_string());
}

#[test]
fn the_runtime_becomes_this_process() {
    let host = Host::new();
    host.configure("/bin/sh", "auto", "");
    let mut child = Command::new(host.at("nvidia-container-runtime"))
        .args(["-c", "echo $$; echo $MARK; cat; echo err >&2; kill -TERM $$"])
        .env("NVIDIA_CTK_CONFIG_FILE_PATH", host.at("config.toml"))
        .env("MARK", "kept")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"in\n").unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{pid}\nkept\nin\n"));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "err\n");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(15));
    assert_eq!(host.call("nvidia-container-runtime", &["-c", "exit 77"]).status.code(), Some(77));
}

#[test]
fn versions_come_one_after_the_other() {
    let host = Host::new();
    host.configure("/bin/echo", "auto", "");
    let said = |arguments: &[&str]| String::from_utf8(host.call("nvidia-container-runtime", arguments).stdout).unwrap();
    let ours = env!("CARGO_PKG_VERSION");
    let ours = format!("NVIDIA Container Runtime version 1.20.0\nmpu-container: {ours}\nspec: 1.3.0\n\n");
    // GNU's echo prints only its version for this one argument.
    assert!(said(&["--version"]).starts_with(&format!("{ours}echo (GNU coreutils)")));
    assert_eq!(said(&["-v"]), format!("{ours}-v\n"));
    assert_eq!(said(&["exec", "id", "tool", "--version"]), "exec id tool --version\n");
}

#[test]
fn the_wrapper_does_not_call_itself() {
    let host = Host::new();
    let own = host.at("nvidia-container-runtime");
    host.configure(own.to_str().unwrap(), "auto", "");
    host.refused(&["is this program itself", "config.toml"]);
}

#[test]
fn the_debug_file_tells_what_was_done() {
    let host = Host::new();
    host.ask(&["NVIDIA_VISIBLE_DEVICES=1"]);
    assert!(host.create().status.success());
    let log = fs::read_to_string(host.at("debug.log")).unwrap();
    assert!(log.contains("mode jit-cdi, devices 1") && log.contains("handing on to "), "{log}");
    // Nobody's container fails because of a log.
    fs::remove_file(host.at("debug.log")).unwrap();
    fs::create_dir(host.at("debug.log")).unwrap();
    host.ask(&["NVIDIA_VISIBLE_DEVICES=1"]);
    assert!(host.create().status.success());
}

#[test]
fn a_real_container_has_the_nodes() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: not root, who alone can make device nodes");
    }
    let Some(busybox) = found("busybox") else { return eprintln!("skipped: no busybox for a container's root") };
    for runtime in ["runc", "crun"] {
        let Some(path) = found(runtime) else {
            eprintln!("skipped: no {runtime}");
            continue;
        };
        let host = Host::new();
        host.configure(path.to_str().unwrap(), "auto", "");
        host.ask(&["NVIDIA_VISIBLE_DEVICES=1"]);
        make_root(&host.at("bundle/rootfs"), &busybox);
        let mut spec = host.spec();
        spec["process"]["args"] = json!([
            "sh",
            "-c",
            "stat -c '%n %t %T' /dev/nvidia*; echo $NVIDIA_VISIBLE_DEVICES; cat /dev/nvidiactl; ls /usr/lib/*"
        ]);
        host.set(&spec);
        let seen = live(&host, &format!("gpu-{runtime}"));
        for line in
            ["/dev/nvidia1 c3 1", "/dev/nvidiactl c3 ff", "void", "No such device or address", "libcuda.so.580.159.04"]
        {
            assert!(seen.contains(line), "{runtime}: {line}: {seen}");
        }
        assert!(!seen.contains("/dev/nvidia0"), "{seen}");
    }
}

/// Creates, starts, waits for the end, deletes; what was said.
fn live(host: &Host, id: &str) -> String {
    let script = r#"umount -l /sys/fs/cgroup/unified 2>/dev/null
        r() { "$RUNTIME" --root "$STATE" "$@"; }
        r create -b . $C && r start $C
        for i in $(seq 3000); do r state $C | grep -q '"stopped"' && break; sleep 0.05; done
        for i in $(seq 3000); do r delete $C 2>/dev/null && break; sleep 0.05; done"#;
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .current_dir(host.at("bundle"))
        .env("RUNTIME", host.at("nvidia-container-runtime"))
        .env("NVIDIA_CTK_CONFIG_FILE_PATH", host.at("config.toml"))
        .env("STATE", host.at("state"))
        .env("C", id)
        .output()
        .unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// Without a command there is nothing to hand on, and nothing to fail: the runtime's own business.
#[test]
fn our_own_name_has_a_page() {
    let output = Command::new(env!("CARGO_BIN_EXE_mpu-container")).args(["runtime", "--help"]).output().unwrap();
    assert!(output.status.success());
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("docker run") && page.contains("NVIDIA_VISIBLE_DEVICES"));
}
