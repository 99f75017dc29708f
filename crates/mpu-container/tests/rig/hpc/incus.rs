//! Incus 7 (Debian sid): with `nvidia.runtime=true`, LXC's hook calls nvidia-container-cli for the files only. The node is a device of Incus's.
//!
//! Source: Incus's "Instance options", `nvidia.*`; the daemon itself.

use super::set_up;
use crate::host::{Driver, Host};

/// Files that incusd expects and a small host lacks, and its first use: an image from a tree, a pool of folders. The daemon needs cgroup 2.
const SET_UP: &str = "umount --recursive /sys/fs/cgroup && mount -t cgroup2 cgroup /sys/fs/cgroup || exit 3
    mkdir -p /run/incus; : > /etc/hosts; : > /etc/resolv.conf; echo incus-admin:x:120: >> /etc/group
    echo root:1000000:65536 | tee -a /etc/subuid >> /etc/subgid
    /usr/libexec/incus/incusd --logfile /tmp/incus.log > /tmp/incus.out 2>&1 < /dev/null & echo $! > /tmp/incus.pid
    for i in $(seq 50); do incus info > /dev/null 2>&1 && break; sleep 0.2; done
    mkdir /tmp/image; mv /tmp/img /tmp/image/rootfs; printf '#!/bin/sh\\nexec busybox sleep 100\\n' > /tmp/image/rootfs/usr/sbin/init
    chmod 755 /tmp/image/rootfs/usr/sbin/init; printf 'architecture: x86_64\\ncreation_date: 1700000000\\n' > /tmp/image/metadata.yaml
    tar -C /tmp/image -cf /tmp/image.tar metadata.yaml rootfs && incus image import /tmp/image.tar --alias rig &&
    incus storage create default dir && incus profile device add default root disk path=/ pool=default || { cat /tmp/incus.*; exit 4; }";

#[test]
fn incus_container_gets_driver_files() {
    let Some(host) = Host::start(Driver::Tools("hpc-sid", 2)) else { return };
    set_up(&host, 0);
    let done = host.sh(SET_UP);
    if done.status.code() == Some(3) {
        return println!("skipped: no cgroup 2 here: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    assert!(
        done.status.success(),
        "{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    let name = format!("rig-{}-incus", host.init());
    let look = |options: &str| {
        // The container's procfs shows the made-up GPUs by a mount of LXC's, which comes before its hooks.
        let world = "--config raw.lxc='lxc.mount.entry = /proc/driver proc/driver none bind 0 0'";
        host.ok(&format!(
            "incus init rig {name} {world} {options}
             incus config device add {name} gpu unix-char source=/dev/nvidia1 path=/dev/nvidia1"
        ));
        let done = host.sh(&format!(
            "{{ incus start {name} && incus exec {name} -- sh /look || incus info {name} --show-log; }} 2>&1"
        ));
        host.ok(&format!("incus delete --force {name}"));
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let output = look("");
    assert!(
        output.contains("nvidia1\n") && output.contains("nvidia-smi: not found") && !output.contains("=> /"),
        "{output}"
    );
    let output = look("--config nvidia.runtime=true --config nvidia.driver.capabilities=compute,utility");
    for proof in [
        "nvidia-uvm\n",
        "nvidia1\n",
        "nvidiactl\n",
        "communicate with the NVIDIA driver",
        "ModifyDeviceFiles: 0\n",
        "libcuda.so.1 => /",
    ] {
        assert!(output.contains(proof), "no {proof} in {output}");
    }
    assert!(!output.contains("nvidia0\n"), "{output}");
    let output = look("--config nvidia.runtime=true --config nvidia.require.cuda='cuda>=99.0'");
    assert!(!output.contains("communicate"), "{output}");
    host.ok("kill $(cat /tmp/incus.pid); sleep 0.3; rmdir /sys/fs/cgroup/lxc.pivot 2> /dev/null || true");
}
