//! A pod of packaging/kubernetes in the guest: `mpu agent` as process 1 of a container that has what a manifest gives it and nothing
//! more: a read-only root, the node's directories at their own paths, and either two capabilities and the GPU's devices alone, as a
//! RuntimeClass gives them, or all privileges and no device at all, as where no RuntimeClass is.
//!
//! Reads the manifest that `./x` rendered into the guest from the chart.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{json, Value};

use crate::command::{must, run, Output};
use crate::wait::until;

pub const PRIVILEGED: &str = "/kubernetes/manifest.yaml";
pub const RUNTIME_CLASS: &str = "/kubernetes/manifest-runtime-class.yaml";

/// Of what a privileged container has, what an agent could use.
const OF_ALL: [&str; 6] = ["SYS_MODULE", "SYS_ADMIN", "MKNOD", "DAC_OVERRIDE", "SYS_PTRACE", "SYS_RAWIO"];

/// A running agent. Deleted when dropped.
pub struct Pod {
    runtime: &'static str,
    name: String,
    bundle: PathBuf,
}

impl Pod {
    /// Starts it as the kubelet and a runtime with GPUs would.
    pub fn start(runtime: &'static str, manifest: &str, name: &str, arguments: &[&str]) -> Result<Self> {
        let bundle = PathBuf::from(format!("/run/bundle/{name}"));
        std::fs::create_dir_all(bundle.join("rootfs"))?;
        let manifest = std::fs::read_to_string(manifest).with_context(|| format!("cannot read {manifest}"))?;
        std::fs::write(bundle.join("config.json"), serde_json::to_vec_pretty(&spec(&manifest, name, arguments)?)?)?;
        let pod = Self { runtime, name: name.to_owned(), bundle };
        let bundle = pod.bundle.display().to_string();
        must(&[runtime, "run", "--detach", "--bundle", &bundle, name])
            .with_context(|| format!("{runtime} cannot start the agent"))?;
        Ok(pod)
    }

    pub fn probe(&self, question: &str) -> Result<Output> {
        run(&[self.runtime, "exec", &self.name, "/bin/mpu", "agent", question])
    }

    /// Waits until a probe has this exit status, and returns its words.
    pub fn wait(&self, question: &str, status: i32) -> Result<String> {
        let mut last = String::new();
        let waited = until(&format!("{question} does not end with {status}"), || {
            let told = self.probe(question)?;
            last = format!("{} {}", told.out, told.err);
            Ok(told.status == status)
        });
        waited.with_context(|| last.clone())?;
        Ok(last)
    }

    /// Sends its process 1 a signal, and waits for its end.
    pub fn end(self, signal: &str) -> Result<()> {
        must(&[self.runtime, "kill", &self.name, signal])?;
        until(&format!("{} does not end by {signal}", self.name), || {
            Ok(!must(&[self.runtime, "state", &self.name])?.contains("\"running\""))
        })
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if let Err(error) = must(&[self.runtime, "delete", "--force", &self.name]) {
            println!("guest: cannot delete {}: {error:#}", self.name);
        }
        let _ = std::fs::remove_dir_all(&self.bundle);
    }
}

fn spec(manifest: &str, name: &str, arguments: &[&str]) -> Result<Value> {
    let bind =
        |path: &str, how: &str| json!({"destination": path, "type": "bind", "source": path, "options": ["rbind", how]});
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        json!({"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro", "nosuid", "noexec", "nodev"]}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}),
    ];
    // The image: the guest's own programs, and the module that nothing in the guest could compile.
    for path in ["/bin", "/usr", "/lib", "/lib64", "/mpu"] {
        mounts.push(bind(path, "ro"));
    }
    for (path, writable) in node_mounts(manifest) {
        // The kubelet makes those that are missing.
        std::fs::create_dir_all(path).with_context(|| format!("cannot make {path}"))?;
        mounts.push(match path {
            "/tmp" => json!({"destination": path, "type": "tmpfs", "source": "tmpfs"}),
            _ => bind(path, if writable { "rw" } else { "ro" }),
        });
    }
    let capabilities = capabilities(manifest)?;
    let words = [&["/bin/mpu", "agent", "run"], arguments].concat();
    let mut devices = Vec::new();
    let mut allowed = vec![json!({"allow": is_privileged(manifest), "access": "rwm"})];
    // A privileged container's /dev has what the host's had when it began, and an agent begins before the driver.
    let by_runtime = [("nvidiactl", 255), ("nvidia0", 0)].into_iter().filter(|_| !is_privileged(manifest));
    for (node, minor) in by_runtime {
        devices.push(
            json!({"path": format!("/dev/{node}"), "type": "c", "major": 195, "minor": minor, "fileMode": 0o666}),
        );
        allowed.push(json!({"allow": true, "type": "c", "major": 195, "minor": minor, "access": "rw"}));
    }
    let kinds = ["pid", "mount", "ipc", "uts", "network", "cgroup"];
    let namespaces: Vec<_> = kinds.iter().map(|kind| json!({"type": kind})).collect();
    Ok(json!({
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs", "readonly": true},
        "process": {
            "cwd": "/",
            "user": {"uid": 0, "gid": 0},
            "args": words,
            "env": ["PATH=/usr/bin:/bin".to_owned(), format!("MPU_AGENT_ID={name}")],
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
        },
        "mounts": mounts,
        "linux": {"namespaces": namespaces, "devices": devices, "resources": {"devices": allowed}},
    }))
}

fn is_privileged(manifest: &str) -> bool {
    manifest.lines().any(|line| line.trim() == "privileged: true")
}

/// The agent's mounts in the manifest, and whether it may write there.
fn node_mounts(manifest: &str) -> impl Iterator<Item = (&str, bool)> {
    manifest.lines().filter_map(|line| {
        let line = line.trim().strip_prefix("- {name: ")?.strip_suffix('}')?;
        let path = line.split(", ").find_map(|part| part.strip_prefix("mountPath: "))?.trim_matches('"');
        Path::new(path).is_absolute().then_some((path, !line.contains("readOnly: true")))
    })
}

fn capabilities(manifest: &str) -> Result<Vec<String>> {
    let named = |names: &mut dyn Iterator<Item = &str>| names.map(|name| format!("CAP_{name}")).collect();
    if is_privileged(manifest) {
        return Ok(named(&mut OF_ALL.into_iter()));
    }
    let list = manifest.lines().find_map(|line| line.trim().strip_prefix("add: [")?.strip_suffix(']'));
    let list = list.context("the manifest adds no capabilities")?;
    Ok(named(&mut list.split(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_are_read() {
        let restricted = "            - {name: modules, mountPath: /lib/modules, readOnly: true}\n  - {name: run, mountPath: /run/mpu}\n\
                          - {name: token, mountPath: x}\n  add: [SYS_MODULE, SYS_ADMIN]\n";
        assert_eq!(node_mounts(restricted).collect::<Vec<_>>(), [("/lib/modules", false), ("/run/mpu", true)]);
        assert_eq!(capabilities(restricted).unwrap(), ["CAP_SYS_MODULE", "CAP_SYS_ADMIN"]);
        assert_eq!(capabilities("  privileged: true\n").unwrap().len(), OF_ALL.len());
    }
}
