//! podman, Docker and containerd as users run them: by CDI name, by `--runtime`, by `--gpus`. Each runs first without our programs.
//!
//! The engines keep everything in the host's /run and /var/lib, which end with the host. The low-level runtimes have the rig's names
//! (`low.sh`).

use crate::facts;
use crate::host::{Driver, Host, R550};
use crate::wrapper::configure;

/// Prints a container's nodes, nvidia-smi, and libraries by ld.so.cache.
pub const LOOK: &str = "ls /dev | busybox grep nvidia; nvidia-smi 2>&1; \
    LD_TRACE_LOADED_OBJECTS=1 LD_PRELOAD='libcuda.so.1 libnvidia-ml.so.1' /bin/sh 2>&1 | busybox grep '=> /'";

/// Asserts that a container has exactly these GPUs and the driver's libraries.
pub fn assert_sees_gpus(output: &str, gpus: &[u32], what: &str) {
    let nodes = output.lines().filter_map(|line| line.strip_prefix("nvidia")?.parse().ok());
    assert_eq!(nodes.collect::<Vec<u32>>(), gpus, "{what}: {output}");
    for proof in [
        "nvidiactl\n",
        "nvidia-uvm\n",
        "communicate with the NVIDIA driver",
        "libcuda.so.1 => /",
        "libnvidia-ml.so.1 => /",
    ] {
        assert!(output.contains(proof), "{what}: no {proof} in {output}");
    }
}

/// Asserts that a container has no GPU and no driver.
pub fn assert_sees_no_gpu(output: &str, what: &str) {
    assert!(output.contains("nvidia-smi: not found"), "{what}: {output}");
    assert!(!output.contains("nvidiactl") && !output.contains("libcuda"), "{what}: {output}");
}

/// The image of `root-glibc`, as a file that engines import.
pub fn image(host: &Host) {
    host.ok("tar -C /rig/trees/root-glibc -cf /tmp/image.tar .");
}

/// Starts Docker with our runtime as `nvidia`, configured with these options, and the image `glibc`.
pub fn docker_up(host: &Host, options: &str) {
    image(host);
    // An administrator's command, then settings that isolate this engine.
    host.ok(&format!("nvidia-ctk runtime configure --runtime=docker --cdi.enabled {options}"));
    host.ok(&format!(
        "jq '. + {{iptables: false, ip6tables: false, bridge: \"none\", \"cgroup-parent\": \"/rig-{}-docker\"}} \
         | .runtimes.rig = {{path: \"/usr/bin/rig-runc\"}}' \
         /etc/docker/daemon.json > /tmp/daemon.json && cp /tmp/daemon.json /etc/docker/daemon.json",
        host.init()
    ));
    host.ok("dockerd > /tmp/dockerd.log 2>&1 & for i in $(seq 400); do docker version > /dev/null 2>&1 && break; sleep 0.1; done");
    host.ok("docker import /tmp/image.tar glibc || { cat /tmp/dockerd.log >&2; exit 1; }");
}

pub fn docker_down(host: &Host) {
    host.ok("kill $(cat /run/docker.pid); while [ -e /run/docker.pid ]; do sleep 0.1; done");
}

#[test]
fn podman_by_device_and_by_runtime() {
    let Some(host) = Host::start(Driver::Release(R550, 2)) else { return };
    image(&host);
    host.ok("podman import --quiet /tmp/image.tar glibc");
    let podman = |low: &str, more: &str| {
        let options = format!("--rm --network=none --cgroup-parent=/rig-{}-podman --runtime {low} {more}", host.init());
        host.output(&format!("podman run {options} glibc sh -c \"{LOOK}\""))
    };
    for low in ["/usr/bin/rig-runc", "/usr/bin/rig-crun"] {
        assert_sees_no_gpu(&podman(low, "--env NVIDIA_VISIBLE_DEVICES=all"), low);
        let unknown = podman(low, "--device nvidia.com/gpu=all");
        assert!(unknown.contains("unresolvable CDI devices"), "{unknown}");
        host.ok("nvidia-ctk cdi generate --output /etc/cdi/nvidia.yaml");
        let before = host.changes();
        assert_sees_gpus(&podman(low, "--device nvidia.com/gpu=all"), &[0, 1], low);
        assert_sees_gpus(&podman(low, &format!("--device nvidia.com/gpu={}", facts::uuid(1))), &[1], low);
        // An engine's daily work leaves no change on the host.
        assert_eq!(host.changes(), before);
        host.ok("rm /etc/cdi/nvidia.yaml");
        for mode in ["jit-cdi", "legacy"] {
            configure(&host, mode, low);
            let wrapper = "/usr/bin/nvidia-container-runtime";
            assert_sees_no_gpu(&podman(wrapper, ""), mode);
            assert_sees_gpus(&podman(wrapper, "--env NVIDIA_VISIBLE_DEVICES=1"), &[1], mode);
        }
    }
}

#[test]
fn docker_by_runtime_by_gpus_and_by_device() {
    let Some(host) = Host::start(Driver::Release(R550, 2)) else { return };
    host.ok("nvidia-ctk cdi generate --output /etc/cdi/nvidia.yaml");
    docker_up(&host, "");
    let docker = |more: &str| {
        // A container that ends at once can end before its output is copied ("reading from a closed fifo" in the engine's log).
        let done = host.sh(&format!("docker run --rm --network none {more} glibc sh -c \"{LOOK}; sleep 0.3\""));
        let output = [done.stdout, done.stderr].concat();
        assert!(!output.is_empty(), "no output, {}: {}", done.status, host.ok("tail -20 /tmp/dockerd.log"));
        String::from_utf8_lossy(&output).into_owned()
    };
    assert_sees_no_gpu(&docker("--env NVIDIA_VISIBLE_DEVICES=all"), "plain");
    assert_sees_gpus(&docker("--runtime rig --gpus all"), &[0, 1], "--gpus all");
    assert_sees_gpus(&docker("--runtime rig --gpus device=1"), &[1], "--gpus device=1");
    assert_sees_gpus(&docker("--runtime rig --device nvidia.com/gpu=all"), &[0, 1], "--device");
    for mode in ["jit-cdi", "cdi", "legacy"] {
        configure(&host, mode, "/usr/bin/rig-runc");
        assert_sees_no_gpu(&docker("--runtime nvidia"), mode);
        assert_sees_gpus(&docker("--runtime nvidia --env NVIDIA_VISIBLE_DEVICES=0"), &[0], mode);
    }
    // `configure --remove` removes its additions.
    host.ok("nvidia-ctk runtime configure --runtime=docker --remove");
    assert!(!host.ok("cat /etc/docker/daemon.json").contains("nvidia"));
    docker_down(&host);
}

/// Checks the configuration that containerd itself reads, merges and prints.
#[test]
fn containerd_has_runtime_until_it_is_removed() {
    let Some(host) = Host::start(Driver::None) else { return };
    let effective = || host.ok("containerd config dump");
    assert!(!effective().contains("nvidia"));
    let existing = "version = 2\n# theirs\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n\
                  runtime_type = \"io.containerd.runc.v2\"\n\
                  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\nSystemdCgroup = true\n";
    for file in [None, Some(existing)] {
        match file {
            Some(text) => host.write("/etc/containerd/config.toml", text),
            None => drop(host.ok("rm -f /etc/containerd/config.toml")),
        }
        host.ok("nvidia-ctk runtime configure --runtime=containerd --set-as-default --cdi.enabled");
        let config = effective();
        for line in ["default_runtime_name = \"nvidia\"", "enable_cdi = true", "/usr/bin/nvidia-container-runtime"] {
            assert!(config.contains(line), "{line} is missing: {config}");
        }
        let options = config.split("runtimes.nvidia.options]").nth(1).unwrap_or_default();
        let options = options.split("\n\n").next().unwrap_or_default();
        assert_eq!(
            options.contains("SystemdCgroup = true"),
            file.is_some(),
            "as the default runtime has it: {options}"
        );
        host.ok("nvidia-ctk runtime configure --runtime=containerd --remove");
        assert!(!effective().contains("nvidia-container-runtime"));
    }
    assert!(host.ok("cat /etc/containerd/config.toml").contains("# theirs"));
}

/// The drop-in file of another `nvidia-ctk` replaces containerd's own section. Ours replaces that runtime.
#[test]
fn containerd_drops_other_toolkits_runtime() {
    let Some(host) = Host::start(Driver::None) else { return };
    // containerd fails if the file is missing.
    let effective = || host.ok("[ ! -e /etc/containerd/config.toml ] || containerd config dump");
    let runtimes = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes";
    host.write("/etc/containerd/config.toml", "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n");
    host.write(
        "/etc/containerd/conf.d/99-nvidia.toml",
        &format!(
            "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"nvidia\"\n\
             {runtimes}.nvidia]\nruntime_type = \"io.containerd.runc.v2\"\n{runtimes}.nvidia.options]\nBinaryName = \"/opt/theirs\"\n"
        ),
    );
    assert!(effective().contains("default_runtime_name = \"nvidia\"") && effective().contains("/opt/theirs"));
    host.ok("nvidia-ctk runtime configure --runtime=containerd");
    let config = effective();
    assert!(config.contains("/usr/bin/nvidia-container-runtime") && !config.contains("/opt/theirs"), "{config}");
    host.ok("nvidia-ctk runtime configure --runtime=containerd --remove");
    assert!(!effective().contains("nvidia"), "{}", effective());

    // Our own drop-in file must keep the existing runtimes, because containerd replaces the section by the file's.
    let existing = format!(
        "version = 2\n# theirs\n{runtimes}.runc]\nruntime_type = \"io.containerd.runc.v2\"\n{runtimes}.runc.options]\n\
         SystemdCgroup = true\n"
    );
    host.write("/etc/containerd/config.toml", &existing);
    let own = "--drop-in-config=/etc/containerd/conf.d/99-nvidia.toml";
    host.ok(&format!(
        "nvidia-ctk runtime configure --runtime=containerd --config-source=command --set-as-default {own}"
    ));
    let config = effective();
    assert!(config.contains("default_runtime_name = \"nvidia\""), "{config}");
    assert_eq!(config.matches("SystemdCgroup = true").count(), 2, "runc's and ours: {config}");
    host.ok("nvidia-ctk runtime configure --runtime=containerd --remove");
    assert!(!effective().contains("nvidia-container-runtime") && effective().contains("SystemdCgroup = true"));
    assert!(host.ok("cat /etc/containerd/config.toml").contains("# theirs"));
}

/// The environment of the GPU Operator's toolkit container, for a driver on the host and CDI (its default).
const OPERATORS: &str = "RUNTIME=containerd ROOT=/usr/local/nvidia TOOLKIT_PID_FILE=/run/nvidia/toolkit/toolkit.pid \
    NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND=management.nvidia.com/gpu NVIDIA_VISIBLE_DEVICES=void NRI_NAMESPACE=gpu-operator \
    CDI_ENABLED=true NVIDIA_RUNTIME_SET_AS_DEFAULT=false NVIDIA_CONTAINER_RUNTIME_MODE=cdi CRIO_CONFIG_MODE=config \
    CONTAINERD_RUNTIME_CLASS=nvidia RUNTIME_CONFIG=/runtime/config-dir/config.toml CONTAINERD_CONFIG=/runtime/config-dir/config.toml \
    RUNTIME_DROP_IN_CONFIG=/runtime/config-dir.d/99-nvidia.toml RUNTIME_DROP_IN_CONFIG_HOST_PATH=/etc/containerd/conf.d/99-nvidia.toml \
    RUNTIME_SOCKET=/runtime/sock-dir/containerd.sock CONTAINERD_SOCKET=/runtime/sock-dir/containerd.sock \
    NVIDIA_DRIVER_ROOT=/ DRIVER_ROOT_CTR_PATH=/host NVIDIA_DEV_ROOT=/ DEV_ROOT_CTR_PATH=/host";

/// The host's folders at their places in that pod.
const POD: &str = "mkdir -p /host /etc/containerd/conf.d /runtime/config-dir /runtime/config-dir.d /runtime/sock-dir; mount --rbind / /host; \
    mount -o remount,bind,ro /host; mount --bind /etc/containerd /runtime/config-dir; \
    mount --bind /etc/containerd/conf.d /runtime/config-dir.d; mount --bind /run/containerd /runtime/sock-dir";

/// containerd runs, exits at SIGHUP, and is restarted by a loop as systemd would do it.
#[test]
fn installer_configures_running_containerd() {
    let Some(host) = Host::start(Driver::Release(R550, 1)) else { return };
    let wait = |what: &str| format!("for i in $(seq 500); do {what} && exit 0; sleep 0.1; done; exit 1");
    host.write("/etc/containerd/config.toml", "version = 2\n# theirs\ndisabled_plugins = []\n");
    host.ok("(while :; do containerd >> /tmp/containerd.log 2>&1; sleep 0.1; done) > /dev/null 2>&1 &");
    host.ok(&wait("ctr version > /dev/null 2>&1"));
    host.ok(POD);
    host.ok(&format!("env {OPERATORS} mpu-container nvidia-toolkit > /tmp/installer.log 2>&1 &"));
    let up = host.sh(&wait("grep -q 'waiting for a signal' /tmp/installer.log"));
    let log = host.ok("cat /tmp/installer.log");
    assert!(up.status.success() && log.contains("containerd is back"), "{log}");
    let config = host.ok("containerd config dump");
    let legacy = "BinaryName = \"/usr/local/nvidia/toolkit/nvidia-container-runtime.legacy\"";
    assert!(config.contains("enable_cdi = true") && config.contains(legacy), "{config}");
    assert!(!config.contains("default_runtime_name = \"nvidia\""), "{config}");
    // The running daemon has read it: its CRI plug-in logs its runtimes at start.
    let starts = || host.ok("grep -i 'start cri plugin with config' /tmp/containerd.log");
    assert!(
        starts().lines().last().is_some_and(|line| line.contains("nvidia-legacy")),
        "{} {}",
        starts().matches('\n').count(),
        host.ok("tail -30 /tmp/containerd.log | cut -c1-200")
    );
    let config = host.ok("/usr/local/nvidia/toolkit/nvidia-ctk config");
    for line in ["default-kind = \"management.nvidia.com/gpu\"", "mode = \"cdi\"", "runtimes = [\"runc\", \"crun\"]"] {
        assert!(config.contains(line), "{line}: {config}");
    }
    // Management containers get these, by host paths.
    let spec = host.ok("cat /var/run/cdi/management.nvidia.com-gpu.yaml");
    assert!(spec.contains("/dev/nvidia0") && spec.contains("libcuda.so.550") && !spec.contains("/host"), "{spec}");
    host.ok("kill $(cat /run/nvidia/toolkit/toolkit.pid)");
    let down = host.sh(&wait("[ ! -e /run/nvidia/toolkit/toolkit.pid ]"));
    assert!(down.status.success(), "{}", host.ok("cat /tmp/installer.log"));
    assert!(!host.ok("containerd config dump").contains("nvidia-container-runtime"));
    host.ok(&wait("ctr version > /dev/null 2>&1"));
    let starts = starts();
    assert!(
        starts.lines().count() == 3 && !starts.lines().last().is_some_and(|line| line.contains("nvidia-legacy")),
        "{starts}"
    );
    assert!(host.ok("cat /etc/containerd/config.toml").contains("# theirs"));
}
