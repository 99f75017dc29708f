//! Makes containers with the wrapper, as engines do.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::bundle::{base_spec, find_in_path, make_root};
use crate::lifecycle::run_lifecycle;
use crate::listener::{Engine, build_caller};

/// A folder with the wrapper, a configuration, and a bundle.
pub struct Host {
    dir: tempfile::TempDir,
    /// The runtime behind the wrapper.
    pub runtime: &'static str,
}

/// Result of a container's run.
pub struct RunResult {
    /// Output of its program, the wrapper and the runtime.
    pub output: String,
    /// Whether it was created and started, and the script succeeded.
    pub succeeded: bool,
    /// Its specification as the runtime got it.
    pub spec: Value,
    pub log: String,
}

impl RunResult {
    /// Checks that the container ran with exactly this output, and that the wrapper's log has these words.
    pub fn check(&self, lines: &[String], log: &str) {
        assert!(self.succeeded, "{}", self.output);
        let output: Vec<&str> = self.output.lines().filter(|line| !line.contains("level=")).collect();
        assert_eq!(output, lines, "{}", self.output);
        assert!(self.log.contains(log), "{log}: {}", self.log);
    }
}

impl Host {
    /// Runs a test with each installed runtime.
    pub fn each(mut test: impl FnMut(&Host)) {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: not root, who alone can make containers with every namespace");
        }
        let Some(busybox) = find_in_path("busybox") else {
            return println!("skipped: no busybox for a container's root");
        };
        if find_in_path("cc").is_none() {
            return println!("skipped: no cc for the program that calls");
        }
        for runtime in ["runc", "crun"] {
            let Some(low) = find_in_path(runtime) else {
                println!("skipped: no {runtime}");
                continue;
            };
            let host = Host { dir: tempfile::tempdir().unwrap(), runtime };
            make_root(&host.at("bundle/rootfs"), &busybox);
            build_caller(&host.at("bundle/rootfs/bin/caller"));
            symlink(env!("CARGO_BIN_EXE_mpu-container"), host.at("nvidia-container-runtime")).unwrap();
            host.configure(&low, "");
            fs::create_dir(host.at("cdi")).unwrap();
            host.write_cdi_file(json!({"path": "/dev/nvidiactl", "hostPath": "/dev/null"}));
            test(&host);
        }
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// Writes the configuration, with additional lines for its last section.
    pub fn configure(&self, low: &std::path::Path, policy: &str) {
        let (cdi, log, socket) = (self.at("cdi"), self.at("debug.log"), self.at("run/listener.sock"));
        let text = format!(
            "[nvidia-container-runtime]\nruntimes = [{low:?}]\nmode = \"cdi\"\nlog-level = \"debug\"\ndebug = {log:?}\n\
             modes.cdi.spec-dirs = [{cdi:?}]\n[mpu]\nnotify-socket = {socket:?}\n{policy}\n"
        );
        fs::write(self.at("config.toml"), text).unwrap();
    }

    pub fn write_cdi_file(&self, node: Value) {
        let file = json!({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
            "devices": [{"name": "0", "containerEdits": {"deviceNodes": [node]}}]});
        fs::write(self.at("cdi/nvidia.json"), file.to_string()).unwrap();
    }

    /// An engine at the configuration's socket.
    pub fn engine(&self) -> Engine {
        Engine::at(&self.at("run/listener.sock"))
    }

    /// A container whose program is the caller with these arguments, as an engine describes it.
    pub fn spec(&self, words: &[&str]) -> Value {
        let mut spec = base_spec();
        spec["process"]["args"] = [&["caller"], words].concat().into();
        spec["process"]["env"] = json!(["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0"]);
        spec["x-unknown"] = json!({"z": 1.50});
        spec
    }

    /// Creates and starts a container, runs the script, waits for the container's end, and deletes it.
    pub fn run(&self, spec: &Value, script: &str) -> RunResult {
        fs::write(self.at("bundle/config.json"), spec.to_string()).unwrap();
        let _ = fs::remove_file(self.at("debug.log"));
        let output = run_lifecycle(self.dir.path(), &self.name(), script);
        RunResult {
            output: String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
            succeeded: output.status.success(),
            spec: serde_json::from_slice(&fs::read(self.at("bundle/config.json")).unwrap()).unwrap(),
            log: fs::read_to_string(self.at("debug.log")).unwrap_or_default(),
        }
    }

    /// The container's name, unique on this machine: its cgroup has the same name.
    pub fn name(&self) -> String {
        let folder = self.dir.path().file_name().unwrap_or_default().to_string_lossy();
        format!("notify-{}-{}", self.runtime, folder.trim_start_matches('.'))
    }
}
