//! LXC (Debian's) and its hook for NVIDIA GPUs, which calls nvidia-container-cli from an unprivileged container's mount hook.
//!
//! Source: lxc.container.conf(5); `/usr/share/lxc/hooks/nvidia`, which comes with LXC.

use super::{assert_has_second_gpu, assert_no_driver, set_up};
use crate::host::{Driver, Host};

/// A mount hook, like `world.sh` for OCI runtimes: the container's procfs gets the made-up GPUs.
const WORLD: &str = "#!/bin/sh\nmount -t tmpfs driver $LXC_ROOTFS_MOUNT/proc/driver && cp -a /proc/driver/. $LXC_ROOTFS_MOUNT/proc/driver/\n";

fn start() -> Option<Host> {
    let host = Host::start(Driver::Tools("hpc", 2))?;
    set_up(&host, 100_000);
    host.write("/usr/bin/rig-lxc-world", WORLD);
    host.ok("mkdir -m 777 /tmp/c; mv /tmp/img /tmp/c/rootfs; chmod 755 /usr/bin/rig-lxc-world
         mkdir -p /var/lib/lxc/c; echo root:100000:65536 | tee -a /etc/subuid >> /etc/subgid");
    Some(host)
}

/// Output of the check script in a container with additional lines of configuration.
fn execute(host: &Host, more: &str) -> (bool, String) {
    let own = format!("rig-{}-lxc", host.init());
    host.write(
        "/var/lib/lxc/c/config",
        &format!(
            "lxc.rootfs.path = dir:/tmp/c/rootfs\nlxc.uts.name = c\nlxc.net.0.type = empty\nlxc.autodev = 1\n\
             lxc.idmap = u 0 100000 65536\nlxc.idmap = g 0 100000 65536\nlxc.mount.auto = proc:mixed sys:mixed\n\
             lxc.cgroup.dir.container = {own}\nlxc.cgroup.dir.monitor = {own}-monitor\nlxc.cgroup.dir.monitor.pivot = {own}-pivot\n\
             lxc.hook.mount = /usr/bin/rig-lxc-world\n{more}"
        ),
    );
    let done = host
        .sh("lxc-execute -n c -l DEBUG -o /tmp/lxc.log -- /bin/sh /look 2>&1 || { grep nvidia /tmp/lxc.log; exit 1; }");
    (done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned())
}

const HOOK: &str = "lxc.hook.mount = /usr/share/lxc/hooks/nvidia\nlxc.environment = NVIDIA_VISIBLE_DEVICES=1\n\
                    lxc.environment = NVIDIA_DRIVER_CAPABILITIES=compute,utility\n";

#[test]
fn lxc_hook_gives_container_its_gpu() {
    let Some(host) = start() else { return };
    let (ok, output) = execute(&host, "");
    if !ok && output.contains("cgroup") && output.contains("Failed to create") {
        return println!("skipped: LXC finds no cgroups that it knows here");
    }
    assert_no_driver(&output, "plain");
    let before = host.changes();
    let (ok, output) = execute(&host, HOOK);
    assert!(ok, "{output}");
    assert_has_second_gpu(&output, "lxc");
    assert!(!output.contains("nvidia0\n"), "{output}");
    // The files in the image's root stay, and a second start meets them.
    let (ok, output) = execute(&host, HOOK);
    assert!(ok, "{output}");
    assert_has_second_gpu(&output, "lxc, again");
    // An image's requirement that no host meets.
    let (ok, output) = execute(&host, &format!("{HOOK}lxc.environment = NVIDIA_REQUIRE_CUDA=cuda>=99.0\n"));
    assert!(!ok && output.contains("unsatisfied condition: cuda>=99.0"), "{output}");
    assert_eq!(host.changes(), before);
}

/// In a read-only root, mount points cannot be made. The error names what failed.
#[test]
fn lxc_hook_reports_read_only_image() {
    let Some(host) = start() else { return };
    host.ok("mount --bind /tmp/c/rootfs /tmp/c/rootfs; mount -o remount,bind,ro /tmp/c/rootfs");
    let (ok, output) = execute(&host, &format!("lxc.rootfs.options = ro\n{HOOK}"));
    assert!(!ok && output.contains("Read-only file system"), "{output}");
    assert!(output.contains("nvidia-container-cli: fix: "), "{output}");
}
