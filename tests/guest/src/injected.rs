//! A container that gets its GPU from mpu-container: a small root without NVIDIA's files, started by the runtime wrapper. Also installs the
//! driver's files at a distribution's paths on the host, and mpu-container's configuration.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::bundle::{self, Bundle, mount};
use crate::client::Client;
use crate::command::{Output, run_ok};
use crate::holder::Holder;

/// Links to the one executable, by NVIDIA's names.
const NAMES: [&str; 4] =
    ["nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-container-cli", "nvidia-cdi-hook"];

/// The folder of the driver's libraries on the host and in the container; the folders of the loader and of the C library.
#[cfg(target_arch = "x86_64")]
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
#[cfg(target_arch = "x86_64")]
const SYSTEM: [&str; 2] = ["lib64", "lib/x86_64-linux-gnu"];
#[cfg(target_arch = "aarch64")]
const LIBRARIES: &str = "/usr/lib/aarch64-linux-gnu";
#[cfg(target_arch = "aarch64")]
const SYSTEM: [&str; 2] = ["lib", "lib/aarch64-linux-gnu"];

/// A driver's files on the host, as an installation leaves them. Removed when dropped.
pub struct InstalledDriver {
    files: Vec<PathBuf>,
}

impl InstalledDriver {
    /// Installs a client's files with the loaded driver's release in their names: the container toolkit looks for that release.
    pub fn new(client: &str) -> Result<Self> {
        let text = std::fs::read_to_string("/proc/driver/nvidia/version").context("no driver")?;
        let release = text.split_whitespace().find(|word| word.as_bytes()[0].is_ascii_digit()).context("no release")?;
        std::fs::create_dir_all(LIBRARIES)?;
        std::fs::create_dir_all("/etc/nvidia-container-runtime")?;
        std::fs::write("/etc/ld.so.conf", format!("{LIBRARIES}\n/{}\n", SYSTEM[1]))?;
        let mut installed = Self { files: Vec::new() };
        for (from, to) in [
            ("nvidia-smi", PathBuf::from("/usr/bin/nvidia-smi")),
            ("libnvidia-ml.so.1", Path::new(LIBRARIES).join(format!("libnvidia-ml.so.{release}"))),
        ] {
            std::fs::copy(format!("/nvidia/{client}/{from}"), &to).with_context(|| format!("cannot install {from}"))?;
            installed.files.push(to);
        }
        for name in NAMES {
            let link = Path::new("/usr/bin").join(name);
            symlink("mpu-container", &link).with_context(|| format!("cannot link {name}"))?;
            installed.files.push(link);
        }
        run_ok(&["/sbin/ldconfig"])?;
        installed.files.push(Path::new(LIBRARIES).join("libnvidia-ml.so.1"));
        Ok(installed)
    }
}

impl Drop for InstalledDriver {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// A running container. Deleted when dropped.
pub struct InjectedContainer {
    bundle: Bundle,
    init: u32,
}

impl InjectedContainer {
    /// Starts it through the wrapper in one of its modes.
    pub fn start(runtime: &'static str, name: &str, mode: &str) -> Result<Self> {
        let config = format!("[nvidia-container-runtime]\nmode = \"{mode}\"\nruntimes = [\"{runtime}\"]\n");
        std::fs::write("/etc/nvidia-container-runtime/config.toml", config)?;
        Self::start_by("nvidia-container-runtime", runtime, name)
    }

    pub fn start_without(runtime: &'static str, name: &str) -> Result<Self> {
        Self::start_by(runtime, runtime, name)
    }

    fn start_by(program: &str, runtime: &'static str, name: &str) -> Result<Self> {
        let bundle = Bundle::new(runtime, name, &spec(name))?;
        root(&bundle.file("rootfs"))?;
        bundle.make(program, &["create"])?;
        run_ok(&[program, "start", name]).with_context(|| format!("{program} cannot start {name}"))?;
        let init = std::fs::read_to_string(bundle.file("init"))?.trim().parse().context("no PID")?;
        Ok(Self { bundle, init })
    }

    pub fn run(&self, words: &[&str]) -> Result<Output> {
        self.bundle.run(words)
    }

    /// The PIDs in nvidia-smi's query. The wrapper injected that nvidia-smi.
    pub fn compute_apps(&self) -> Result<Vec<u32>> {
        let before = self.bundle.exec().map(str::to_owned).to_vec();
        Ok(crate::client::pids(&Client::installed(before).compute_apps()?))
    }

    pub fn hold(&self, arguments: &[&str]) -> Result<Holder> {
        let init = self.init.to_string();
        let words = ["nsenter", "-t", &init, "-p", "-m", "/bin/gpu-hold"];
        Holder::start_in(self.init, &[&words, arguments].concat())
    }
}

/// Makes a small root: busybox, the C library, and gpu-hold.
fn root(at: &Path) -> Result<()> {
    for folder in ["bin", "dev", "etc", "proc", "sys", "tmp", "usr/bin", "lib64"] {
        std::fs::create_dir_all(at.join(folder))?;
    }
    for program in ["bin/busybox", "bin/gpu-hold"] {
        std::fs::copy(Path::new("/").join(program), at.join(program))?;
    }
    for name in ["sh", "ls", "sleep"] {
        symlink("busybox", at.join("bin").join(name))?;
    }
    for folder in SYSTEM {
        std::fs::create_dir_all(at.join(folder))?;
        for entry in std::fs::read_dir(Path::new("/").join(folder))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                continue;
            }
            let name = entry.file_name();
            std::fs::copy(Path::new("/").join(folder).join(&name), at.join(folder).join(&name))?;
        }
    }
    Ok(())
}

fn spec(name: &str) -> Value {
    let environment =
        ["PATH=/usr/bin:/bin", "HOME=/", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"];
    let mounts = vec![mount("/proc", "proc"), mount("/dev", "tmpfs"), mount("/tmp", "tmpfs")];
    let mut spec = bundle::spec(name, &["/bin/sleep", "1000000"], &environment.map(str::to_owned), mounts);
    // As container engines write it: all devices denied but those that are named.
    spec["linux"]["resources"] = json!({"devices": [{"allow": false, "access": "rwm"}]});
    spec
}
