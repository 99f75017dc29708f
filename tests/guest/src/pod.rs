//! A pod of packaging/kubernetes in the guest: `mpu agent` as process 1 of a container with exactly what a manifest gives it: a read-only
//! root, the node's directories at their own paths, and either two capabilities and the GPU's devices, as by a RuntimeClass, or all
//! privileges and no device. Reads the manifest that `./x` rendered from the chart.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::bundle::{self, Bundle, bind, device, mount};
use crate::command::{Output, run_ok};
use crate::wait::wait_until;

pub const PRIVILEGED: &str = "/kubernetes/manifest.yaml";
pub const RUNTIME_CLASS: &str = "/kubernetes/manifest-runtime-class.yaml";

/// The capabilities of a privileged container that an agent could use.
const OF_ALL: [&str; 6] = ["SYS_MODULE", "SYS_ADMIN", "MKNOD", "DAC_OVERRIDE", "SYS_PTRACE", "SYS_RAWIO"];

/// A running agent. Deleted when dropped.
pub struct Pod {
    bundle: Bundle,
}

impl Pod {
    /// Starts it as the kubelet and a runtime with GPUs would.
    pub fn start(runtime: &'static str, manifest: &str, name: &str, arguments: &[&str]) -> Result<Self> {
        let manifest = std::fs::read_to_string(manifest).with_context(|| format!("cannot read {manifest}"))?;
        let bundle = Bundle::new(runtime, name, &spec(&manifest, name, arguments)?)?;
        bundle.make(runtime, &["run", "--detach"])?;
        Ok(Self { bundle })
    }

    pub fn probe(&self, question: &str) -> Result<Output> {
        self.bundle.run(&["/bin/mpu", "agent", question])
    }

    /// Waits until a probe has this exit status, and returns its output.
    pub fn wait(&self, question: &str, status: i32) -> Result<String> {
        let mut last = String::new();
        let waited = wait_until(&format!("{question} does not end with {status}"), || {
            let answer = self.probe(question)?;
            last = format!("{} {}", answer.out, answer.err);
            Ok(answer.status == status)
        });
        waited.with_context(|| last.clone())?;
        Ok(last)
    }

    /// Sends a signal to its process 1, and waits until it has ended.
    pub fn end(self, signal: &str) -> Result<()> {
        let Bundle { runtime, name, .. } = &self.bundle;
        run_ok(&[runtime, "kill", name, signal])?;
        wait_until(&format!("{name} does not end by {signal}"), || {
            Ok(!run_ok(&[runtime, "state", name])?.contains("\"running\""))
        })
    }
}

fn spec(manifest: &str, name: &str, arguments: &[&str]) -> Result<Value> {
    let mut mounts = vec![
        mount("/proc", "proc"),
        json!({"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro", "nosuid", "noexec", "nodev"]}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}),
    ];
    // The image: the guest's own programs, and a prebuilt module, because the guest has no compiler.
    for path in ["/bin", "/usr", "/lib", "/lib64", "/mpu"] {
        mounts.push(bind(path, "ro"));
    }
    for (path, writable) in node_mounts(manifest) {
        // The kubelet makes those that are missing.
        std::fs::create_dir_all(path).with_context(|| format!("cannot make {path}"))?;
        mounts.push(match path {
            "/tmp" => mount(path, "tmpfs"),
            _ => bind(path, if writable { "rw" } else { "ro" }),
        });
    }
    let capabilities = capabilities(manifest)?;
    let words = [&["/bin/mpu", "agent", "run"], arguments].concat();
    let mut devices = Vec::new();
    let mut allowed = vec![json!({"allow": is_privileged(manifest), "access": "rwm"})];
    // A privileged container gets the device nodes that exist when it starts. An agent starts before the driver.
    let by_runtime = [("nvidiactl", 255), ("nvidia0", 0)].into_iter().filter(|_| !is_privileged(manifest));
    for (node, minor) in by_runtime {
        devices.push(device(node, minor));
        allowed.push(json!({"allow": true, "type": "c", "major": 195, "minor": minor, "access": "rw"}));
    }
    let environment = ["PATH=/usr/bin:/bin".to_owned(), format!("MPU_AGENT_ID={name}")];
    let mut spec = bundle::spec(name, &words, &environment, mounts);
    spec["root"]["readonly"] = true.into();
    spec["process"]["capabilities"] =
        json!({"bounding": capabilities, "effective": capabilities, "permitted": capabilities});
    spec["linux"]["devices"] = devices.into();
    spec["linux"]["resources"] = json!({"devices": allowed});
    Ok(spec)
}

fn is_privileged(manifest: &str) -> bool {
    manifest.lines().any(|line| line.trim() == "privileged: true")
}

/// The agent's mounts in the manifest, and whether each is writable.
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
