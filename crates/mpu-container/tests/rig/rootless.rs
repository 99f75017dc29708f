//! podman of a user who is not root: no cgroup configuration, no rights on the host, the same GPU.

use crate::engines::{LOOK, assert_sees_gpus, assert_sees_no_gpu, image};
use crate::facts::bus;
use crate::host::{Driver, Host, R550};
use crate::wrapper::configure;

/// The user's setup: podman's cgroup manager, and a link to our configuration in the user's folder.
const SET_UP: &str = "mkdir -p /etc/containers /etc/nvidia-container-runtime /home/user/.config
    printf '[engine]\\ncgroup_manager = \"cgroupfs\"\\n' > /etc/containers/containers.conf
    ln -s /etc/nvidia-container-runtime /home/user/.config/nvidia-container-runtime
    chown -Rh 1000:1000 /home/user";

#[test]
fn podman_without_root() {
    let Some(host) = Host::start(Driver::Release(R550, 2)) else { return };
    image(&host);
    host.ok(SET_UP);
    host.ok("nvidia-ctk cdi generate --output /etc/cdi/nvidia.yaml");
    let user = |command: &str| {
        host.write("/tmp/command", command);
        let done = host.sh("cd /home/user; exec setpriv --reuid 1000 --regid 1000 --clear-groups \
             env HOME=/home/user XDG_RUNTIME_DIR=/run/user/1000 PATH=$PATH sh /tmp/command");
        (done.status.success(), String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned())
    };
    let (imported, output) = user("podman import --quiet /tmp/image.tar glibc");
    if !imported {
        // Some distributions and hardened kernels disable user namespaces for ordinary users.
        assert!(output.contains("user namespace") || output.contains("newuidmap"), "{output}");
        return println!(
            "skipped: only root makes user namespaces here: {}",
            output.lines().last().unwrap_or_default()
        );
    }
    let podman = |low: &str, more: &str| {
        user(&format!("podman run --rm --network=none --runtime /usr/bin/{low} {more} glibc sh -c \"{LOOK}\"")).1
    };
    let before = host.changes();
    assert_sees_no_gpu(&podman("rig-crun", ""), "plain");
    assert_sees_gpus(&podman("rig-crun", "--device nvidia.com/gpu=all"), &[0, 1], "--device");
    let one = "--network=none --runtime /usr/bin/rig-crun --device nvidia.com/gpu=1";
    let gpus = user(&format!("podman run --rm {one} glibc ls /proc/driver/nvidia/gpus 2> /dev/null"));
    assert_eq!(gpus, (true, format!("{}\n", bus(1))));
    for mode in ["jit-cdi", "legacy"] {
        let text = format!("[nvidia-container-runtime]\nmode = \"{mode}\"\nruntimes = [\"/usr/bin/rig-crun\"]\n");
        host.write("/etc/nvidia-container-runtime/config.toml", &text);
        assert_sees_no_gpu(&podman("nvidia-container-runtime", ""), mode);
        assert_sees_gpus(&podman("nvidia-container-runtime", "--env NVIDIA_VISIBLE_DEVICES=1"), &[1], mode);
    }
    host.ok("rm /etc/nvidia-container-runtime/config.toml");
    assert_eq!(host.changes(), before);
}

/// podman as root, with a user namespace: runc starts the hooks as the container's root, who may not read the bundle.
#[test]
fn podman_with_user_namespace() {
    let Some(host) = Host::start(Driver::Release(R550, 2)) else { return };
    image(&host);
    host.ok("podman import --quiet /tmp/image.tar glibc");
    host.ok("nvidia-ctk cdi generate --output /etc/cdi/nvidia.yaml");
    let podman = |low: &str, more: &str| {
        let own = format!("--network=none --cgroup-parent=/rig-{}-podman", host.init());
        let users = "--uidmap 0:100000:65536 --gidmap 0:100000:65536";
        host.output(&format!("podman run --rm {own} {users} --runtime /usr/bin/{low} {more} glibc sh -c \"{LOOK}\""))
    };
    if podman("rig-runc", "").contains("operation not permitted") {
        return println!("skipped: no user namespaces here");
    }
    assert_sees_no_gpu(&podman("rig-runc", ""), "plain");
    assert_sees_gpus(&podman("rig-runc", "--device nvidia.com/gpu=1"), &[1], "--device");
    // Not crun: before any hook it changes to the bundle, which it may not enter.
    for mode in ["jit-cdi", "legacy"] {
        configure(&host, mode, "/usr/bin/rig-runc");
        assert_sees_gpus(&podman("nvidia-container-runtime", "--env NVIDIA_VISIBLE_DEVICES=1"), &[1], mode);
    }
}
