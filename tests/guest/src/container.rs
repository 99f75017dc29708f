//! A real container in the guest: an OCI bundle run by crun or runc, with its own PID, mount, IPC, UTS, cgroup and network namespaces,
//! the GPU's device nodes, and NVIDIA's user space mounted as NVIDIA's own runtime would. Deleted when dropped.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use crate::client::Client;
use crate::command::must;
use crate::holder::Holder;

/// A running container.
pub struct Container {
    runtime: &'static str,
    name: String,
    client: String,
    bundle: PathBuf,
}

/// Folders of the guest that every container sees, read-only.
const SHARED: [&str; 5] = ["/bin", "/usr", "/lib", "/lib64", "/nvidia"];

impl Container {
    /// Makes a bundle and starts it: its process 1 sleeps.
    pub fn start(runtime: &'static str, name: &str, client: &str) -> Result<Self> {
        let bundle = PathBuf::from(format!("/run/bundle/{name}"));
        std::fs::create_dir_all(bundle.join("rootfs")).context("cannot make the container's root")?;
        std::fs::write(bundle.join("config.json"), serde_json::to_vec_pretty(&spec(name, client)?)?)?;
        let container = Self { runtime, name: name.to_owned(), client: client.to_owned(), bundle };
        let bundle = container.bundle.display().to_string();
        must(&[runtime, "run", "--detach", "--bundle", &bundle, name])
            .with_context(|| format!("{runtime} cannot start {name}"))?;
        Ok(container)
    }

    /// nvidia-smi in this container.
    pub fn client(&self) -> Client<'_> {
        Client::through(vec![self.runtime.to_owned(), "exec".to_owned(), self.name.clone()], &self.client)
    }

    /// Runs a program in this container, as `docker exec` would, and returns its standard output.
    pub fn exec(&self, words: &[&str]) -> Result<String> {
        must(&[&[self.runtime, "exec", &self.name], words].concat())
    }

    /// Starts a GPU process in this container.
    pub fn hold(&self, arguments: &[&str]) -> Result<Holder> {
        self.hold_as("/bin/gpu-hold", arguments)
    }

    /// Starts a GPU process in this container under another name of gpu-hold.
    pub fn hold_as(&self, program: &str, arguments: &[&str]) -> Result<Holder> {
        let pid_file = self.bundle.join("pid");
        let _ = std::fs::remove_file(&pid_file);
        let mut command = Command::new(self.runtime);
        command.args(["exec", "--pid-file"]).arg(&pid_file).args([self.name.as_str(), program]).args(arguments);
        Holder::start(command, |_| {
            let text = std::fs::read_to_string(&pid_file).context("the runtime wrote no PID file")?;
            text.trim().parse().context("the PID file holds no number")
        })
    }

    /// Process 1's PID in the init namespace.
    pub fn pid_outside(&self) -> Result<u32> {
        let state: serde_json::Value = serde_json::from_str(&must(&[self.runtime, "state", &self.name])?)?;
        Ok(u32::try_from(state["pid"].as_u64().context("the runtime tells no PID")?)?)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Err(error) = must(&[self.runtime, "delete", "--force", &self.name]) {
            println!("guest: cannot delete container {}: {error:#}", self.name);
        }
        let _ = std::fs::remove_dir_all(&self.bundle);
    }
}

fn spec(name: &str, client: &str) -> Result<serde_json::Value> {
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}),
        json!({"destination": "/dev/shm", "type": "tmpfs", "source": "shm"}),
        json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}),
    ];
    for folder in SHARED {
        mounts.push(json!({"destination": folder, "type": "bind", "source": folder, "options": ["rbind", "ro"]}));
    }
    let mut devices =
        vec![json!({"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255, "fileMode": 0o666})];
    for gpu in 0..gpus()? {
        devices.push(
            json!({"path": format!("/dev/nvidia{gpu}"), "type": "c", "major": 195, "minor": gpu, "fileMode": 0o666}),
        );
    }
    let kinds = ["pid", "mount", "ipc", "uts", "network", "cgroup"];
    let namespaces: Vec<_> = kinds.iter().map(|kind| json!({"type": kind})).collect();
    Ok(json!({
        "ociVersion": "1.0.2",
        "hostname": name,
        "root": {"path": "rootfs"},
        "process": {
            "cwd": "/",
            "user": {"uid": 0, "gid": 0},
            "args": ["/bin/sleep", "1000000"],
            "env": [format!("PATH=/nvidia/{client}:/usr/bin:/bin"), format!("LD_LIBRARY_PATH=/nvidia/{client}"), "HOME=/"],
        },
        "mounts": mounts,
        "linux": {"namespaces": namespaces, "devices": devices, "resources": {"devices": [{"allow": true, "access": "rwm"}]}},
    }))
}

/// How many GPUs the simulated driver was loaded with.
fn gpus() -> Result<u32> {
    let text =
        std::fs::read_to_string("/sys/module/nvidia/parameters/gpus").context("the simulated driver is not loaded")?;
    Ok(text.trim().parse()?)
}
