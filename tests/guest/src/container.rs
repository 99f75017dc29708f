//! A real container in the guest: an OCI bundle run by crun or runc, with its own PID, mount, IPC, UTS, cgroup and network namespaces,
//! the GPU's device nodes, and NVIDIA's user space mounted as NVIDIA's own runtime would. Deleted when dropped.

use anyhow::{Context, Result};
use serde_json::json;

use crate::bundle::{self, Bundle, bind, device, mount};
use crate::client::Client;
use crate::command::{behind, run_ok};
use crate::holder::Holder;
use crate::nvctl::{self, Answer};
use crate::supervisor;
use crate::wait::wait_until;

pub struct Container {
    bundle: Bundle,
    client: String,
    init: u32,
}

/// Folders of the guest that every container sees, read-only.
const SHARED: [&str; 5] = ["/bin", "/usr", "/lib", "/lib64", "/nvidia"];

impl Container {
    /// Makes a bundle and starts it: its process 1 sleeps.
    pub fn start(runtime: &'static str, name: &str, client: &str) -> Result<Self> {
        Self::start_with(runtime, name, client, &["/bin/sleep", "1000000"])
    }

    /// Makes a bundle and starts it with a program as its process 1.
    pub fn start_with(runtime: &'static str, name: &str, client: &str, words: &[&str]) -> Result<Self> {
        let bundle = Bundle::new(runtime, name, &spec(name, client, words)?)?;
        bundle.make(runtime, &["run", "--detach"])?;
        Ok(Self { init: pid_in(bundle.file("init"))?, bundle, client: client.to_owned() })
    }

    pub fn client(&self) -> Client<'_> {
        Client::through(self.bundle.exec().map(str::to_owned).to_vec(), &self.client)
    }

    pub fn hold(&self, arguments: &[&str]) -> Result<Holder> {
        self.hold_as("/bin/gpu-hold", arguments)
    }

    /// Starts a GPU process in this container under another name of gpu-hold.
    pub fn hold_as(&self, program: &str, arguments: &[&str]) -> Result<Holder> {
        let pid_file = self.bundle.file("pid");
        let _ = std::fs::remove_file(&pid_file);
        let file = pid_file.display().to_string();
        let words = [&[self.bundle.runtime, "exec", "--pid-file", &file, self.name(), program], arguments].concat();
        Holder::start(&words, |_| pid_in(&pid_file))
    }

    /// The command that runs a program in this container's namespaces without its runtime, which is much faster. With the engine in user
    /// space the program first joins it, as with a runtime.
    pub fn enter_command(&self) -> Vec<String> {
        enter_command(self.init)
    }

    pub fn query(&self, arguments: &[&str]) -> Result<Answer> {
        nvctl::query(&self.enter_command(), "nvctl", arguments)
    }

    /// Runs a shell script in this container, and returns its standard output.
    pub fn script(&self, script: &str) -> Result<String> {
        run_ok(&behind(&self.enter_command(), &["sh", "-c", script]))
    }

    /// Starts a GPU process in this container by a shell script that execs or starts gpu-hold.
    pub fn hold_by_script(&self, script: &str) -> Result<Holder> {
        Holder::start_in(self.init, &behind(&self.enter_command(), &["sh", "-c", script]))
    }

    /// The same for a process with this host PID, unless another fork takes it.
    pub fn hold_with_host_pid(&self, host_pid: u32, script: &str) -> Result<Holder> {
        let mut words: Vec<String> = supervisor::join_command().iter().map(|word| (*word).to_owned()).collect();
        // When a supervisor in user space gets a listener, its new threads take PIDs first.
        let number = format!("sleep 0.3; echo {} > /proc/sys/kernel/ns_last_pid; exec \"$@\"", host_pid - 1);
        words.extend(["sh", "-c", &number, "sh"].map(str::to_owned));
        words.extend(nsenter(self.init));
        Holder::start_in(self.init, &behind(&words, &["sh", "-c", script]))
    }

    /// Makes `pid` the next PID in this container.
    pub fn set_next_pid(&self, pid: u32) -> Result<()> {
        // Only the PID namespace is entered: the container's own /proc/sys may be read-only.
        let script = format!("echo {} > /proc/sys/kernel/ns_last_pid", pid - 1);
        run_ok(&["nsenter", "-t", &self.init.to_string(), "-p", "sh", "-c", &script]).map(drop)
    }

    pub fn name(&self) -> &str {
        &self.bundle.name
    }

    pub fn init_host_pid(&self) -> u32 {
        self.init
    }
}

fn spec(name: &str, client: &str, words: &[&str]) -> Result<serde_json::Value> {
    let mut mounts = vec![
        mount("/proc", "proc"),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}),
        mount("/dev/shm", "tmpfs"),
        mount("/tmp", "tmpfs"),
    ];
    mounts.extend(SHARED.map(|folder| bind(folder, "ro")));
    let environment =
        [format!("PATH=/nvidia/{client}:/usr/bin:/bin"), format!("LD_LIBRARY_PATH=/nvidia/{client}"), "HOME=/".into()];
    let mut spec = bundle::spec(name, words, &environment, mounts);
    let gpus = (0..gpus()?).map(|gpu| device(&format!("nvidia{gpu}"), gpu));
    spec["linux"]["devices"] = std::iter::once(device("nvidiactl", 255)).chain(gpus).collect();
    spec["linux"]["resources"] = json!({"devices": [{"allow": true, "access": "rwm"}]});
    if let Some(seccomp) = supervisor::seccomp() {
        spec["linux"]["seccomp"] = seccomp;
    }
    Ok(spec)
}

/// See [`Container::enter_command`]; `member` is the host PID of any process of the container.
pub fn enter_command(member: u32) -> Vec<String> {
    supervisor::join_command().iter().map(|word| (*word).to_owned()).chain(nsenter(member)).collect()
}

fn nsenter(member: u32) -> [String; 5] {
    ["nsenter", "-t", &member.to_string(), "-p", "-m"].map(str::to_owned)
}

/// Reads the PID file of a runtime. The runtime can write it after the program is ready.
fn pid_in(path: impl AsRef<std::path::Path>) -> Result<u32> {
    let path = path.as_ref();
    let mut written = None;
    wait_until(&format!("the runtime wrote no PID into {}", path.display()), || {
        written = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
        Ok(written.is_some())
    })?;
    written.context("no PID")
}

/// The number of GPUs: the simulated driver's parameter, or the one made-up GPU.
fn gpus() -> Result<u32> {
    if std::path::Path::new("/sys/module/made_up_gpu").exists() {
        return Ok(1);
    }
    let text =
        std::fs::read_to_string("/sys/module/nvidia/parameters/gpus").context("the simulated driver is not loaded")?;
    Ok(text.trim().parse()?)
}
