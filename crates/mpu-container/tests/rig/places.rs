//! Where things lie and who calls: a driver in a container of its own, no configuration at all, the container CLI by hand.

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
        let ran = look(&host, "glibc", "1").run(WRAPPER);
        let all = format!("{mode}: {}{}", ran.out, ran.err);
        assert!(ran.ok, "{all}");
        assert_eq!(gpus(&ran), ["1"], "{all}");
        for proof in ["libcuda.so.1 => /", "libnvidia-ml.so.1 => /", "communicate with the NVIDIA driver"] {
            assert!(ran.out.contains(proof), "no {proof}: {all}");
        }
        assert_eq!(host.changes(), before, "{mode}");
    }
    // With device nodes of its own, those are the ones.
    host.ok(&format!("mount --bind /dev {ELSEWHERE}/dev"));
    let listed = host.ok(&format!("nvidia-container-cli --root {ELSEWHERE} list --device 0"));
    assert!(listed.lines().any(|line| line.ends_with("/dev/nvidia0")), "{listed}");
}

#[test]
fn wrapper_works_without_configuration() {
    let Some(host) = Host::start(Driver::Release(R550, 1)) else { return };
    let ran = look(&host, "glibc", "all").run(WRAPPER);
    assert!(ran.ok && ran.out.contains("libcuda.so.1 => /"), "{}{}", ran.out, ran.err);
    assert_eq!(gpus(&ran), ["0"]);
    // On a host without a driver, a container that asks for a GPU is refused with that reason; any other one starts.
    let Some(host) = Host::start(Driver::None) else { return };
    let ran = look(&host, "glibc", "all").run(WRAPPER);
    assert!(!ran.ok && ran.out.is_empty() && !ran.err.is_empty(), "{}{}", ran.out, ran.err);
    let ran = Container::new(&host, "glibc", &["/usr/bin/busybox", "echo", "alive"]).run(WRAPPER);
    assert!(ran.ok && ran.out == "alive\n", "{}{}", ran.out, ran.err);
}

#[test]
fn cli_configures_container_made_by_hand() {
    let Some(host) = Host::start(Driver::Release(R550, 2)) else { return };
    // A mount and a PID namespace, a root with procfs in it, and nothing else: no runtime, no bundle.
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
    // The unified hierarchy is on every kernel, also beside version 1: devices are a program there, and need no controller.
    let unified = host.sh("umount --recursive /sys/fs/cgroup && mount -t cgroup2 cgroup /sys/fs/cgroup");
    if !unified.status.success() {
        return println!("skipped: no cgroup 2 here: {}", String::from_utf8_lossy(&unified.stderr).trim());
    }
    // Legacy mode sets the program itself, where version 1 is not in use at all.
    let has_version_1 = host.ok("cat /proc/self/cgroup").contains(":devices:");
    for mode in MODES.into_iter().filter(|mode| *mode != "legacy" || !has_version_1) {
        for low in ["runc", "crun"] {
            configure(&host, mode, low);
            let ran = look(&host, "glibc", "0").run(WRAPPER);
            let all = format!("{mode} {low}: {}{}", ran.out, ran.err);
            assert!(ran.ok, "{all}");
            assert!(ran.out.contains("'/dev/nvidia0': No such device or address"), "{all}");
            assert!(ran.out.contains("'/dev/other': Operation not permitted"), "{all}");
        }
    }
}
