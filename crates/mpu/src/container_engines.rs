//! Finds out whether a host's container engines give GPUs to containers, and which command tests or configures it.
//! Reads files only.

use mpu_engine::Engine;
use mpu_host::host::Host;
use std::path::{Path, PathBuf};

/// NVIDIA's name of the runtime wrapper, and the name of MPU's program.
const WRAPPER: [&str; 2] = ["nvidia-container-runtime", "mpu-container"];
/// The program that Docker's own `--gpus` runs.
const HOOK: &str = "nvidia-container-runtime-hook";
/// The program that configures engines for the wrapper.
const CTK: &str = "nvidia-ctk";
const CDI: [&str; 2] = ["/etc/cdi", "/run/cdi"];
/// A configuration is read up to this many bytes.
const CONFIG_LIMIT: usize = 1 << 20;
/// Shows a container's GPU, in a cluster.
const POD_COMMAND: &str = "kubectl exec POD -- nvidia-smi   # a pod with a GPU";

struct ContainerEngine {
    name: &'static str,
    /// Signs that the engine is installed: a socket, or a program by its bare name.
    signs: &'static [&'static str],
    /// Configuration files and folders that can name the wrapper.
    configs: &'static [&'static str],
    /// The command that runs a container with a GPU through the wrapper.
    run: &'static str,
    /// The command that configures the engine.
    fix: &'static str,
}

/// In order of preference.
const ENGINES: [ContainerEngine; 4] = [
    ContainerEngine {
        name: "Docker",
        signs: &["/run/docker.sock", "dockerd"],
        configs: &["/etc/docker/daemon.json"],
        run: "docker run --rm --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=all debian nvidia-smi",
        fix: "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl reload docker",
    },
    ContainerEngine {
        name: "Podman",
        signs: &["podman"],
        configs: &["/etc/containers/containers.conf", "/etc/containers/containers.conf.d"],
        run: "sudo podman run --rm --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=all debian nvidia-smi",
        fix: "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    },
    ContainerEngine {
        name: "CRI-O",
        signs: &["/run/crio/crio.sock"],
        configs: &["/etc/crio/crio.conf", "/etc/crio/crio.conf.d"],
        run: POD_COMMAND,
        fix: "sudo nvidia-ctk runtime configure --runtime=crio   # then restart crio; its containers go on",
    },
    ContainerEngine {
        name: "containerd",
        signs: &["/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock"],
        configs: &[
            "/etc/containerd/config.toml",
            "/etc/containerd/conf.d",
            "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
            "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        ],
        run: POD_COMMAND,
        fix: "sudo nvidia-ctk runtime configure --runtime=containerd   # then restart containerd; its containers go on",
    },
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuSupport {
    NoEngine,
    /// This engine gives GPUs to its containers; `run` shows it.
    Wired {
        engine: &'static str,
        run: &'static str,
    },
    /// No engine does. The first engine, and the command that installs or configures the wrapper.
    Missing {
        engine: &'static str,
        fix: String,
    },
}

/// How containers of this host get a GPU. Under the notify engine only the wrapper counts.
pub fn find_gpu_support(host: &Host, engine: Engine) -> GpuSupport {
    let installed: Vec<&ContainerEngine> =
        ENGINES.iter().filter(|row| row.signs.iter().any(|at| has_sign(host, at))).collect();
    if let Some(row) = installed.iter().find(|row| find_file_naming_wrapper(host, row.configs).is_some()) {
        return GpuSupport::Wired { engine: row.name, run: row.run };
    }
    let without_wrapper = |row: &&&ContainerEngine| match row.name {
        _ if engine == Engine::Notify => None,
        "Docker" if host.tool(HOOK).is_some() => Some("docker run --rm --gpus all debian nvidia-smi"),
        "Podman" if has_cdi(host) => Some("sudo podman run --rm --device nvidia.com/gpu=all debian nvidia-smi"),
        _ => None,
    };
    if let Some((row, run)) = installed.iter().find_map(|row| Some((row, without_wrapper(&row)?))) {
        return GpuSupport::Wired { engine: row.name, run };
    }
    match installed.first() {
        None => GpuSupport::NoEngine,
        Some(row) if host.tool(CTK).is_none() => {
            let fix = install_hint(host, "or NVIDIA's toolkit; it puts GPUs into containers");
            GpuSupport::Missing { engine: row.name, fix }
        }
        // A CDI file alone gives no container the notify engine's listener.
        Some(row) if engine == Engine::Notify && row.name == "Podman" => {
            let fix = "sudo nvidia-ctk runtime configure --runtime=podman".to_string();
            GpuSupport::Missing { engine: row.name, fix }
        }
        Some(row) => GpuSupport::Missing { engine: row.name, fix: row.fix.to_string() },
    }
}

/// The command that installs MPU's wrapper, with a remark.
pub fn install_hint(host: &Host, remark: &str) -> String {
    match host.package_hints("mpu-container") {
        Some((install, _)) => format!("sudo {install}   # {remark}"),
        None => format!("# install mpu-container by hand (docs/container/README.md): {remark}"),
    }
}

/// The command that shows that MPU works, or the next step towards that.
pub fn try_command(host: &Host, engine: Engine) -> String {
    let command = match find_gpu_support(host, engine) {
        GpuSupport::Wired { run, .. } => run,
        GpuSupport::Missing { fix, .. } => return fix,
        GpuSupport::NoEngine if engine == Engine::Notify => "sudo mpu run -- nvidia-smi",
        GpuSupport::NoEngine => "sudo mpu probe   # a container of its own, beside a process of another",
    };
    command.to_string()
}

/// The first engine configuration that names the wrapper.
pub fn find_wrapper_config(host: &Host) -> Option<PathBuf> {
    ENGINES.iter().find_map(|row| find_file_naming_wrapper(host, row.configs))
}

fn has_sign(host: &Host, at: &str) -> bool {
    match at.starts_with('/') {
        true => host.at(at).exists(),
        false => host.tool(at).is_some(),
    }
}

fn find_file_naming_wrapper(host: &Host, places: &[&str]) -> Option<PathBuf> {
    places.iter().flat_map(|place| list_files(host, place)).find(|file| contains(host, file, &WRAPPER))
}

fn has_cdi(host: &Host) -> bool {
    CDI.iter().flat_map(|place| list_files(host, place)).any(|file| contains(host, &file, &["nvidia.com/gpu"]))
}

/// A file, or the sorted files of a folder.
fn list_files(host: &Host, place: &str) -> Vec<PathBuf> {
    let names = host.names(place).into_iter().map(|name| Path::new(place).join(name));
    std::iter::once(PathBuf::from(place)).chain(names).collect()
}

fn contains(host: &Host, file: &Path, needles: &[&str]) -> bool {
    let text = host.bounded(file, CONFIG_LIMIT).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    needles.iter().any(|needle| text.contains(needle))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::FakeHost;

    const DOCKER: &str = r#"{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}"#;

    #[test]
    fn each_host_state_has_next_command() {
        let fake = FakeHost::in_order();
        let tries = |engine| try_command(&fake.host(), engine);
        assert_eq!(find_gpu_support(&fake.host(), Engine::Module), GpuSupport::NoEngine);
        assert!(tries(Engine::Module).starts_with("sudo mpu probe"));
        assert_eq!(tries(Engine::Notify), "sudo mpu run -- nvidia-smi");
        fake.write("/run/docker.sock", "");
        assert!(tries(Engine::Module).contains("apt-get install ./mpu-container_"));
        fake.write("/etc/os-release", "ID=rocky\nID_LIKE=\"rhel centos fedora\"\n");
        let install = "sudo dnf install --allowerasing ./mpu-container-[0-9]*.rpm";
        assert!(tries(Engine::Module).contains(install), "{}", tries(Engine::Module));
        fake.write("/etc/os-release", "ID=nixos\n");
        assert!(tries(Engine::Module).starts_with("# install mpu-container"), "{}", tries(Engine::Module));
        fake.tool(CTK, "");
        assert_eq!(
            tries(Engine::Module),
            "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl reload docker"
        );
        fake.tool(HOOK, "");
        assert_eq!(tries(Engine::Module), "docker run --rm --gpus all debian nvidia-smi");
        assert!(tries(Engine::Notify).contains("runtime configure"), "the hook brings no listener");
        fake.write("/etc/docker/daemon.json", DOCKER);
        for engine in [Engine::Module, Engine::Notify] {
            assert!(tries(engine).starts_with("docker run --rm --runtime=nvidia"));
        }
    }

    #[test]
    fn each_engine_is_known_by_its_own_files() {
        for (installed, configs, run) in [
            ("/run/crio/crio.sock", "/etc/crio/crio.conf.d/99-nvidia.conf", POD_COMMAND),
            (
                "/run/k3s/containerd/containerd.sock",
                "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
                POD_COMMAND,
            ),
            ("/usr/bin/podman", "/etc/containers/containers.conf", ENGINES[1].run),
        ] {
            let fake = FakeHost::in_order();
            fake.program(installed, "");
            fake.tool(CTK, "");
            let GpuSupport::Missing { engine, fix } = find_gpu_support(&fake.host(), Engine::Module) else {
                panic!("{installed}")
            };
            assert!(fix.starts_with("sudo nvidia-ctk "), "{engine}: {fix}");
            fake.write(configs, "BinaryName = \"/usr/bin/nvidia-container-runtime\"");
            assert_eq!(find_gpu_support(&fake.host(), Engine::Module), GpuSupport::Wired { engine, run });
        }
        let fake = FakeHost::in_order();
        fake.tool("podman", "");
        fake.write("/run/cdi/nvidia.yaml", "kind: nvidia.com/gpu");
        assert!(try_command(&fake.host(), Engine::Module).contains("--device nvidia.com/gpu=all"));
    }
}
