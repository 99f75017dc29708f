//! LXC's own hook for NVIDIA GPUs, as it comes with LXC, on an unprivileged container.
//!
//! Source: the hook itself, `/usr/share/lxc/hooks/nvidia` of Debian's liblxc-common (or `MPU_LXC_HOOK`).

use crate::test_host::{MOUNTS, TestHost};
use std::path::PathBuf;

#[test]
fn lxc_hook_gives_unprivileged_container_its_gpu() {
    let Some(host) = TestHost::new() else { return };
    let hook = std::env::var_os("MPU_LXC_HOOK").map_or("/usr/share/lxc/hooks/nvidia".into(), PathBuf::from);
    if !hook.is_file() {
        return eprintln!("skipped: no LXC with its hook for NVIDIA GPUs (Debian: liblxc-common)");
    }
    // The hook ignores containers with the host's users, so user 0 is 100000 here.
    let users = "unshare --user sleep 100 > /dev/null 2>&1 & users=$!
         trap 'kill -9 $users' EXIT
         while test $(readlink /proc/$users/ns/user) = $(readlink /proc/self/ns/user); do sleep 0.01; done
         echo 0 100000 65536 > /proc/$users/uid_map; echo 0 100000 65536 > /proc/$users/gid_map";
    if !host.script(users).status.success() {
        return eprintln!("skipped: no user namespaces");
    }
    host.write(
        "inside",
        &format!(
            "set -eu\n{MOUNTS}\nmounts
             export NVIDIA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=compute,utility NVIDIA_REQUIRE_CUDA='cuda>=12.0'
             export LXC_HOOK_VERSION=1 LXC_HOOK_SECTION=lxc LXC_HOOK_TYPE=mount LXC_LOG_LEVEL=INFO LXC_ROOTFS_PATH=x
             export LXC_ROOTFS_MOUNT=$PWD/ct PATH=$PWD/bin:$PATH
             bash {} --root $PWD/host --ldcache /etc/ld.so.cache --debug $PWD/log
             ls ct/dev; chroot ct /bin/sh -c '/usr/bin/nvidia-smi; readlink -f /usr/lib/*/libcuda.so'",
            hook.display()
        ),
    );
    let seen = host.output_of(&format!(
        "mkdir bin; cp \"$CLI\" bin/nvidia-container-cli; chmod 755 bin/nvidia-container-cli; : > log; chmod 666 log
         chmod 666 host/dev/*; chown -R 100000:100000 ct
         {users}
         nsenter --target $users --user --setuid 0 --setgid 0 unshare --mount --pid --fork --propagation=private sh inside"
    ));
    assert!(seen.contains("nvidia0\nnvidiactl\n") && !seen.contains("nvidia1"), "{seen}");
    assert!(seen.contains("smi\n") && seen.contains("libcuda.so.580"), "{seen}");
}
