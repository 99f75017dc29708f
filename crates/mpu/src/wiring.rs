//! Whether the container engines of a host can put GPUs into containers, and a command to try it. Reads files only.

use mpu_engine::Engine;
use mpu_host::host::Host;
use std::fs;
use std::path::{Path, PathBuf};

/// NVIDIA's name of the wrapper, and our program behind it.
const WRAPPER: [&str; 2] = ["nvidia-container-runtime", "mpu-container"];
/// The program that Docker's own `--gpus` runs.
const HOOK: &str = "nvidia-container-runtime-hook";
/// The program that configures engines for the wrapper.
const CTK: &str = "nvidia-ctk";
const CDI: [&str; 2] = ["/etc/cdi", "/run/cdi"];
/// The most that is read of a configuration.
const LONGEST: usize = 1 << 20;
/// Shows a container's GPU in a cluster.
const IN_A_POD: &str = "kubectl exec POD -- nvidia-smi   # a pod with a GPU";

struct Row {
    name: &'static str,
    /// Signs of the engine: a socket, or a program by its bare name.
    here: &'static [&'static str],
    /// Configuration files and folders that can name the wrapper.
    configs: &'static [&'static str],
    /// Its command for a container with a GPU, through the wrapper.
    run: &'static str,
    fix: &'static str,
}

/// In the order of preference in messages.
const ENGINES: [Row; 4] = [
    Row {
        name: "Docker",
        here: &["/run/docker.sock", "dockerd"],
        configs: &["/etc/docker/daemon.json"],
        run: "docker run --rm --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=all debian nvidia-smi",
        fix: "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl reload docker",
    },
    Row {
        name: "Podman",
        here: &["podman"],
        configs: &["/etc/containers/containers.conf", "/etc/containers/containers.conf.d"],
        run: "sudo podman run --rm --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=all debian nvidia-smi",
        fix: "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    },
    Row {
        name: "CRI-O",
        here: &["/run/crio/crio.sock"],
        configs: &["/etc/crio/crio.conf", "/etc/crio/crio.conf.d"],
        run: IN_A_POD,
        fix: "sudo nvidia-ctk runtime configure --runtime=crio   # then restart crio; its containers go on",
    },
    Row {
        name: "containerd",
        here: &["/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock"],
        configs: &[
            "/etc/containerd/config.toml",
            "/etc/containerd/conf.d",
            "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
            "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        ],
        run: IN_A_POD,
        fix: "sudo nvidia-ctk runtime configure --runtime=containerd   # then restart containerd; its containers go on",
    },
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wiring {
    NoEngine,
    /// This engine gives its containers GPUs; the command shows it.
    Wired {
        engine: &'static str,
        run: &'static str,
    },
    /// No engine does. The first engine, and the command that configures it.
    Missing {
        engine: &'static str,
        fix: String,
    },
}

/// How containers of this host get a GPU; with the notify engine, only through the wrapper.
pub fn look(host: &Host, engine: Engine) -> Wiring {
    let here: Vec<&Row> = ENGINES.iter().filter(|row| row.here.iter().any(|at| is_here(host, at))).collect();
    if let Some(row) = here.iter().find(|row| find_file_naming_wrapper(host, row.configs).is_some()) {
        return Wiring::Wired { engine: row.name, run: row.run };
    }
    let by_itself = |row: &&&Row| match row.name {
        _ if engine == Engine::Notify => None,
        "Docker" if host.tool(HOOK).is_some() => Some("docker run --rm --gpus all debian nvidia-smi"),
        "Podman" if has_cdi(host) => Some("sudo podman run --rm --device nvidia.com/gpu=all debian nvidia-smi"),
        _ => None,
    };
    if let Some((row, run)) = here.iter().find_map(|row| Some((row, by_itself(&row)?))) {
        return Wiring::Wired { engine: row.name, run };
    }
    match here.first() {
        None => Wiring::NoEngine,
        Some(row) if host.tool(CTK).is_none() => {
            let fix = to_install(host, "or NVIDIA's toolkit; it puts GPUs into containers");
            Wiring::Missing { engine: row.name, fix }
        }
        // A CDI file alone gives no container the notify engine's listener.
        Some(row) if engine == Engine::Notify && row.name == "Podman" => {
            let fix = "sudo nvidia-ctk runtime configure --runtime=podman".to_string();
            Wiring::Missing { engine: row.name, fix }
        }
        Some(row) => Wiring::Missing { engine: row.name, fix: row.fix.to_string() },
    }
}

/// The command that installs our wrapper, with a remark.
pub fn to_install(host: &Host, remark: &str) -> String {
    match host.package_hints("mpu-container") {
        Some((install, _)) => format!("sudo {install}   # {remark}"),
        None => format!("# install mpu-container by hand (docs/container/README.md): {remark}"),
    }
}

/// The command that shows that our engine works.
pub fn to_try(host: &Host, engine: Engine) -> String {
    let command = match look(host, engine) {
        Wiring::Wired { run, .. } => run,
        Wiring::Missing { fix, .. } => return fix,
        Wiring::NoEngine if engine == Engine::Notify => "sudo mpu run -- nvidia-smi",
        Wiring::NoEngine => "sudo mpu probe   # a container of its own, beside a process of another",
    };
    command.to_string()
}

/// The first configuration of an engine that names the wrapper.
pub fn names_wrapper(host: &Host) -> Option<PathBuf> {
    ENGINES.iter().find_map(|row| find_file_naming_wrapper(host, row.configs))
}

fn is_here(host: &Host, at: &str) -> bool {
    match at.starts_with('/') {
        true => host.at(at).exists(),
        false => host.tool(at).is_some(),
    }
}

fn find_file_naming_wrapper(host: &Host, places: &[&str]) -> Option<PathBuf> {
    places.iter().flat_map(|place| below(host, place)).find(|file| contains(host, file, &WRAPPER))
}

fn has_cdi(host: &Host) -> bool {
    CDI.iter().flat_map(|place| below(host, place)).any(|file| contains(host, &file, &["nvidia.com/gpu"]))
}

/// A file, or the sorted files of a folder.
fn below(host: &Host, place: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(host.at(place)).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| Path::new(place).join(entry.file_name())).collect();
    files.sort();
    files.insert(0, place.into());
    files
}

fn contains(host: &Host, file: &Path, words: &[&str]) -> bool {
    let text = host.bounded(file, LONGEST).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    words.iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::FakeHost;

    const DOCKER: &str = r#"{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}"#;

    #[test]
    fn each_state_on_way_has_its_next_command() {
        let fake = FakeHost::in_order();
        let tries = |engine| to_try(&fake.host(), engine);
        assert_eq!(look(&fake.host(), Engine::Module), Wiring::NoEngine);
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
        for (here, configs, run) in [
            ("/run/crio/crio.sock", "/etc/crio/crio.conf.d/99-nvidia.conf", IN_A_POD),
            ("/run/k3s/containerd/containerd.sock", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml", IN_A_POD),
            ("/usr/bin/podman", "/etc/containers/containers.conf", ENGINES[1].run),
        ] {
            let fake = FakeHost::in_order();
            fake.program(here, "");
            fake.tool(CTK, "");
            let Wiring::Missing { engine, fix } = look(&fake.host(), Engine::Module) else { panic!("{here}") };
            assert!(fix.starts_with("sudo nvidia-ctk "), "{engine}: {fix}");
            fake.write(configs, "BinaryName = \"/usr/bin/nvidia-container-runtime\"");
            assert_eq!(look(&fake.host(), Engine::Module), Wiring::Wired { engine, run });
        }
        let fake = FakeHost::in_order();
        fake.tool("podman", "");
        fake.write("/run/cdi/nvidia.yaml", "kind: nvidia.com/gpu");
        assert!(to_try(&fake.host(), Engine::Module).contains("--device nvidia.com/gpu=all"));
    }
}
