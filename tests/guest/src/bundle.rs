//! An OCI bundle and the container that a runtime makes of it. Both are deleted when dropped.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::command::{Output, run, run_ok};

pub struct Bundle {
    pub runtime: &'static str,
    pub name: String,
    folder: PathBuf,
}

impl Bundle {
    /// Writes it; its root is an empty folder.
    pub fn new(runtime: &'static str, name: &str, spec: &Value) -> Result<Self> {
        let bundle = Self { runtime, name: name.to_owned(), folder: PathBuf::from(format!("/run/bundle/{name}")) };
        std::fs::create_dir_all(bundle.file("rootfs")).context("cannot make the container's root")?;
        std::fs::write(bundle.file("config.json"), serde_json::to_vec_pretty(spec)?)?;
        Ok(bundle)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs a program that makes the container. It writes the PID of process 1 into the file `init`.
    pub fn make(&self, program: &str, verb: &[&str]) -> Result<()> {
        let [pid_file, folder] = [self.file("init"), self.folder.clone()].map(|path| path.display().to_string());
        run_ok(&[&[program], verb, &["--pid-file", &pid_file, "--bundle", &folder, &self.name]].concat())
            .with_context(|| format!("{program} cannot start {}", self.name))
            .map(drop)
    }

    /// The runtime's command that runs a program in the container.
    pub fn exec(&self) -> [&str; 3] {
        [self.runtime, "exec", &self.name]
    }

    pub fn run(&self, words: &[&str]) -> Result<Output> {
        run(&[&self.exec()[..], words].concat())
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        if let Err(error) = run_ok(&[self.runtime, "delete", "--force", &self.name]) {
            println!("guest: cannot delete container {}: {error:#}", self.name);
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A spec with new namespaces of six kinds, whose process is root.
pub fn spec(name: &str, words: &[&str], environment: &[String], mounts: Vec<Value>) -> Value {
    let kinds = ["pid", "mount", "ipc", "uts", "network", "cgroup"];
    let namespaces: Vec<_> = kinds.iter().map(|kind| json!({"type": kind})).collect();
    json!({
        "ociVersion": "1.0.2",
        "hostname": name,
        "root": {"path": "rootfs"},
        "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": words, "env": environment},
        "mounts": mounts,
        "linux": {"namespaces": namespaces},
    })
}

/// A device node of the driver.
pub fn device(node: &str, minor: u32) -> Value {
    json!({"path": format!("/dev/{node}"), "type": "c", "major": 195, "minor": minor, "fileMode": 0o666})
}

pub fn mount(destination: &str, kind: &str) -> Value {
    json!({"destination": destination, "type": kind, "source": kind})
}

/// A bind mount of a host folder at the same path.
pub fn bind(path: &str, how: &str) -> Value {
    json!({"destination": path, "type": "bind", "source": path, "options": ["rbind", how]})
}
