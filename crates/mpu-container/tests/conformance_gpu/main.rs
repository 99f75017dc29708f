//! The wrapper with containers that request a GPU, on a fake driver in a folder, and with real runtimes where a container must run.
//! Cases that one call's specification can show are in `parity/gpu.toml`.
//!
//! If only the specification matters, the runtime behind the wrapper is `true`.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::json;

#[path = "../common/bundle.rs"]
mod bundle;
mod fake_host;
#[path = "../../src/driver/fake_library.rs"]
mod fake_library;
#[path = "../common/host.rs"]
mod host;
#[path = "../common/lifecycle.rs"]
mod lifecycle;
mod refresh;
use bundle::{base_spec, find_in_path, make_root};
use fake_host::{Host, paths};
use lifecycle::run_lifecycle;

#[test]
fn legacy_mode_twice_adds_one_hook() {
    let host = Host::new();
    for name in ["nvidia-container-runtime.legacy", "nvidia-container-runtime"] {
        host.configure("true", if name.ends_with("legacy") { "auto" } else { "legacy" }, "");
        host.write_spec_with_env(&["NVIDIA_VISIBLE_DEVICES=all"]);
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
            assert!(spec.get("mounts").is_some_and(|mounts| mounts == &base_spec()["mounts"]), "the hook's business");
        }
    }
}

#[test]
fn wrapper_becomes_runtime_process() {
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
fn real_container_has_nodes() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: not root, who alone can make device nodes");
    }
    let Some(busybox) = find_in_path("busybox") else { return eprintln!("skipped: no busybox for a container's root") };
    for runtime in ["runc", "crun"] {
        let Some(path) = find_in_path(runtime) else {
            eprintln!("skipped: no {runtime}");
            continue;
        };
        let host = Host::new();
        host.configure(path.to_str().unwrap(), "auto", "");
        host.write_spec_with_env(&["NVIDIA_VISIBLE_DEVICES=1"]);
        make_root(&host.at("bundle/rootfs"), &busybox);
        let mut spec = host.spec();
        spec["process"]["args"] = json!([
            "sh",
            "-c",
            "stat -c '%n %t %T' /dev/nvidia*; echo $NVIDIA_VISIBLE_DEVICES; cat /dev/nvidiactl; ls /usr/lib/*"
        ]);
        host.write_spec(&spec);
        let output = run_lifecycle(&host.at(""), &format!("gpu-{runtime}"), "");
        let seen = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        for line in
            ["/dev/nvidia1 c3 1", "/dev/nvidiactl c3 ff", "void", "No such device or address", "libcuda.so.580.159.04"]
        {
            assert!(seen.contains(line), "{runtime}: {line}: {seen}");
        }
        assert!(!seen.contains("/dev/nvidia0"), "{seen}");
    }
}
