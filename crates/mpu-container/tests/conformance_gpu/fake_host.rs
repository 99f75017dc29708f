//! A fake host with a driver in a folder, the wrapper, and a bundle, for the tests of the executable.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::bundle::base_spec;
use crate::host;

/// A host with two GPUs, the wrapper, and a bundle.
pub struct Host(tempfile::TempDir);

impl Host {
    pub fn new() -> Host {
        let host = Host(tempfile::tempdir().unwrap());
        for name in ["nvidia-container-runtime", "nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy"] {
            symlink(env!("CARGO_BIN_EXE_mpu-container"), host.at(name)).unwrap();
        }
        host::make(&host.at("driver"), &[]).unwrap();
        host.configure("true", "auto", "");
        host.write_spec_with_env(&[]);
        host
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn configure(&self, runtime: &str, mode: &str, more: &str) {
        let (driver, cdi, log) = (self.at("driver"), self.at("cdi"), self.at("debug.log"));
        let text = format!(
            "{more}\n[nvidia-container-cli]\nroot = {driver:?}\nload-kmods = false\n[nvidia-container-runtime]\nruntimes = [{runtime:?}]\n\
             mode = {mode:?}\ndebug = {log:?}\nmodes.cdi.spec-dirs = [{cdi:?}]\n"
        );
        self.write("config.toml", &text);
    }

    /// Writes a specification whose environment has these variables, in an unusual format, so that a rewrite is visible.
    pub fn write_spec_with_env(&self, env: &[&str]) {
        let mut spec = base_spec();
        spec["process"]["env"] = json!(["PATH=/bin"]);
        spec["process"]["env"].as_array_mut().unwrap().extend(env.iter().map(|text| json!(text)));
        spec["x-unknown"] = json!({"z": 1.5, "a": []});
        self.write_spec(&spec);
    }

    pub fn write_spec(&self, spec: &Value) {
        self.write("bundle/config.json", &format!(" {}\n\n", serde_json::to_string_pretty(spec).unwrap()));
    }

    pub fn spec(&self) -> Value {
        serde_json::from_slice(&fs::read(self.at("bundle/config.json")).unwrap()).unwrap()
    }

    pub fn call(&self, name: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.at(name));
        command.args(arguments).env("NVIDIA_CTK_CONFIG_FILE_PATH", self.at("config.toml")).stdin(Stdio::null());
        command.current_dir(self.at("bundle")).output().unwrap()
    }
}

/// The paths of a specification's devices.
pub fn paths(spec: &Value) -> Vec<&str> {
    spec["linux"]["devices"].as_array().unwrap().iter().map(|node| node["path"].as_str().unwrap()).collect()
}
