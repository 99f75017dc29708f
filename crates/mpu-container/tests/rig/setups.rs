//! Unusual setups: a driver container, no configuration, the container CLI called by hand, cgroup v2.

use crate::container::Container;
use crate::host::{Driver, ELSEWHERE, Host, R550};
use crate::wrapper::{MODES, WRAPPER, configure, gpus, look};

#[test]
fn driver_container_root_is_used() {
    let Some(host) = Host::start(Driver::Contained(R550, 2)) else { return };
    assert!(!host.ok("ldconfig -p").contains("libcuda"));
    for mode in MODES {
        if mode == "cdi" {
            host.ok(&format!(
                "nvidia-ctk cdi generate --driver-root {ELSEWHERE} --dev-root / --output /run/cdi/nvidia.yaml"
            ));
            host.write(
                "/etc/nvidia-container-runtime/config.toml",
                "[nvidia-container-runtime]\nmode = \"cdi\"\nruntimes = [\"runc\"]\n",
            );
        } else {
            configure(&host, mode, "runc");
            host.ok(&format!(
                "echo '[nvidia-container-cli]\nroot = \"{ELSEWHERE}\"' >> /etc/nvidia-container-runtime/config.toml"
            ));
        }
        let before = host.changes();
        let result = look(&host, "glibc", "1").run(WRAPPER);
        let all = format!("{mode}: {}{}", result.out, result.err);
        assert!(result.ok, "{all}");
        assert_eq!(gpus(&result), ["1"], "{all}");
        for proof in ["libcuda.so.1 => /", "libnvidia-ml.so.1 => /", "communicate with the NVIDIA driver"] {
            assert!(result.out.contains(proof), "no {proof}: {all}");
        }
        assert_eq!(host.changes(), before, "{mode}");
    }
    // If the driver's root has device nodes, these are used.
    host.ok(&format!("mount --bind /dev {ELSEWHERE}/dev"));
    let listed = host.ok(&format!("nvidia-container-cli --root {ELSEWHERE} list --device 0"));
    assert!(listed.lines().any(|line| line.ends_with("/dev/nvidia0")), "{listed}");
}

#[test]
fn wrapper_works_without_configuration() {
    let Some(host) = Host::start(Driver::Release(R550, 1)) else { return };
    let result = look(&host, "glibc", "all").run(WRAPPER);
    assert!(result.ok && result.out.contains("libcuda.so.1 => /"), "{}{}", result.out, result.err);
    assert_eq!(gpus(&result), ["0"]);
    // On a host without a driver, a container that requests a GPU is refused with a reason; others start.
    let Some(host) = Host::start(Driver::None) else { return };
    let result = look(&host, "glibc", "all").run(WRAPPER);
    assert!(!result.ok && result.out.is_empty() && !result.err.is_empty(), "{}{}", result.out, result.err);
    let result = Container::new(&host, "glibc", &["/usr/bin/busybox", "echo", "alive"]).run(WRAPPER);
    assert!(result.ok && result.out == "alive\n", "{}{}", result.out, result.err);
}

#[test]
fn cli_configures_container_made_by_hand() {
    let Some(host) = Host::start(Driver::Release(R550, 2)) else { return };
    // Only a mount and a PID namespace, and a root with procfs: no runtime and no bundle.
    let by_hand = |injection: &str| {
        host.write(
            "/tmp/by-hand",
            &format!(
                "set -e; mount --make-rprivate /; cd /tmp; mkdir -p root upper work
                 mount -t overlay -o lowerdir=/rig/trees/root-glibc,upperdir=upper,workdir=work image root
                 mount -t proc proc root/proc; mount -t tmpfs driver root/proc/driver; cp -a /proc/driver/. root/proc/driver/
                 mount -t tmpfs dev root/dev; {injection}
                 cd root; mkdir -p old; pivot_root . old; /usr/bin/umount -l /old 2> /dev/null || /usr/bin/busybox umount -l /old
                 /usr/bin/busybox ls /dev; command -v nvidia-smi && nvidia-smi || true"
            ),
        );
        host.ok("unshare --mount --pid --fork sh /tmp/by-hand 2>&1; rm -r /tmp/root /tmp/upper /tmp/work")
    };
    let plain = by_hand("");
    assert!(!plain.contains("nvidia"), "{plain}");
    let configure = "nvidia-container-cli configure --no-cgroups --utility --compute --device 0 --ldconfig @/sbin/ldconfig /tmp/root";
    let before = host.changes();
    let output = by_hand(configure);
    assert!(
        output.contains("nvidia0\n") && output.contains("nvidia-uvm\n") && !output.contains("nvidia1\n"),
        "{output}"
    );
    assert!(output.contains("communicate with the NVIDIA driver"), "{output}");
    assert_eq!(host.changes(), before);
}

#[test]
fn cgroup_v2_allows_requested_gpu() {
    let Some(host) = Host::start(Driver::Release(R550, 2)) else { return };
    // Every kernel has the unified hierarchy, also beside version 1. There, device access is a BPF program and needs no controller.
    let unified = host.sh("umount --recursive /sys/fs/cgroup && mount -t cgroup2 cgroup /sys/fs/cgroup");
    if !unified.status.success() {
        return println!("skipped: no cgroup 2 here: {}", String::from_utf8_lossy(&unified.stderr).trim());
    }
    // Legacy mode replaces the program itself, but only if version 1 is not in use.
    let has_version_1 = host.ok("cat /proc/self/cgroup").contains(":devices:");
    for mode in MODES.into_iter().filter(|mode| *mode != "legacy" || !has_version_1) {
        for low in ["runc", "crun"] {
            configure(&host, mode, low);
            let result = look(&host, "glibc", "0").run(WRAPPER);
            let all = format!("{mode} {low}: {}{}", result.out, result.err);
            assert!(result.ok, "{all}");
            assert!(result.out.contains("'/dev/nvidia0': No such device or address"), "{all}");
            assert!(result.out.contains("'/dev/other': Operation not permitted"), "{all}");
        }
    }
}
