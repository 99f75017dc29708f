//! A container's procfs shows its own GPUs only, however it got them.

use crate::container::Container;
use crate::engines::{docker_down, docker_up};
use crate::facts::bus;
use crate::host::{Driver, Host, R550};
use crate::wrapper::{MODES, WRAPPER, configure};

/// Prints the GPUs' folders in procfs, and each GPU's number in its file.
const LOOK: &str = "cd /proc/driver/nvidia/gpus && for gpu in *; do \
    echo $gpu $(busybox sed -n 's/^Device Minor:[[:space:]]*//p' $gpu/information); done";

/// The output of [`LOOK`] for these GPUs.
fn expected_gpus(gpus: &[u32]) -> String {
    gpus.iter().map(|gpu| format!("{} {gpu}\n", bus(*gpu))).collect()
}

#[test]
fn proc_lists_own_gpus_only() {
    let Some(host) = Host::start(Driver::Release(R550, 3)) else { return };
    for (mode, low) in MODES.iter().flat_map(|mode| ["runc", "crun"].map(|low| (*mode, low))) {
        configure(&host, mode, low);
        for (word, expected) in [("1", &[1][..]), ("0,2", &[0, 2]), ("all", &[0, 1, 2])] {
            let container = Container::new(&host, "glibc", &["/bin/sh", "-c", LOOK]);
            let result = container.env(&[&format!("NVIDIA_VISIBLE_DEVICES={word}")]).run(WRAPPER);
            assert!(
                result.ok && result.out == expected_gpus(expected),
                "{mode} {low} {word}: {}{}",
                result.out,
                result.err
            );
        }
        // A container that requests no GPU sees the kernel's own files.
        let result = Container::new(&host, "glibc", &["/bin/sh", "-c", LOOK]).run(WRAPPER);
        assert!(result.ok && result.out == expected_gpus(&[0, 1, 2]), "{mode} {low}: {}{}", result.out, result.err);
    }
}

#[test]
fn engine_cdi_lists_own_gpus_only() {
    let Some(host) = Host::start(Driver::Release(R550, 3)) else { return };
    host.ok("nvidia-ctk cdi generate --output /etc/cdi/nvidia.yaml");
    docker_up(&host, "");
    host.ok("podman import --quiet /tmp/image.tar glibc");
    host.write("/tmp/look", LOOK);
    let own = "--network=none --volume /tmp/look:/tmp/look";
    let podman = format!("podman run --rm {own} --cgroup-parent=/rig-{}-podman --runtime /usr/bin", host.init());
    for run in
        [format!("docker run --rm {own} --runtime rig"), format!("{podman}/rig-runc"), format!("{podman}/rig-crun")]
    {
        for (devices, expected) in [(&["1"][..], &[1][..]), (&["0", "2"], &[0, 2]), (&["all"], &[0, 1, 2])] {
            let devices: String = devices.iter().map(|device| format!(" --device nvidia.com/gpu={device}")).collect();
            assert_eq!(
                host.ok(&format!("{run} {devices} glibc sh -c '. /tmp/look; sleep 0.3'")),
                expected_gpus(expected),
                "{run}{devices}"
            );
        }
        // A container with the nodes has their files, however it got the nodes.
        let more = "--device nvidia.com/gpu=1 --device /dev/nvidia2";
        assert_eq!(
            host.ok(&format!("{run} {more} glibc sh -c '. /tmp/look; sleep 0.3'")),
            expected_gpus(&[1, 2]),
            "{run}"
        );
    }
    docker_down(&host);
}

/// A container with the host's own procfs, mounted so that changes in it would be the host's.
#[test]
fn shared_host_procfs_is_unchanged() {
    let Some(host) = Host::start(Driver::Release(R550, 2)) else { return };
    host.ok("mount --make-rshared /");
    for (mode, low) in MODES.iter().flat_map(|mode| ["runc", "crun"].map(|low| (*mode, low))) {
        configure(&host, mode, low);
        let mut container = Container::new(&host, "glibc", &["/bin/sh", "-c", LOOK]).env(&["NVIDIA_VISIBLE_DEVICES=1"]);
        container.config["mounts"][0] = serde_json::json!({
            "destination": "/proc", "type": "bind", "source": "/proc", "options": ["rbind", "rshared"]
        });
        container.config["linux"]["rootfsPropagation"] = "rshared".into();
        container.config["hooks"] = serde_json::json!({});
        container.config["linux"]["maskedPaths"] = serde_json::json!([]);
        container.config["linux"]["readonlyPaths"] = serde_json::json!([]);
        let before = host.ok("cat /proc/self/mountinfo | wc -l");
        let result = container.run(WRAPPER);
        assert!(result.ok && result.out == expected_gpus(&[0, 1]), "{mode} {low}: {}{}", result.out, result.err);
        assert_eq!(
            host.ok("ls /proc/driver/nvidia/gpus; grep Modify /proc/driver/nvidia/params"),
            format!("{}\n{}\nModifyDeviceFiles: 1\n", bus(0), bus(1)),
            "{mode} {low}"
        );
        assert_eq!(host.ok("cat /proc/self/mountinfo | wc -l"), before, "{mode} {low}");
    }
}
