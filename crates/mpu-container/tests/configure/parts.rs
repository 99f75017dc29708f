//! Single options: requirements, MIG, IMEX, graphics, the image's own CUDA libraries.

use crate::CONFIGURE;
use crate::test_host::{RELEASE, TestHost, libraries};

const CAPABILITIES: &str = "proc/driver/nvidia/capabilities";

/// Divides the second GPU into one MIG device, in the driver's format.
fn divide(host: &TestHost) {
    let access = |minor| format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 0\n");
    let minors = [("mig/config", 1), ("mig/monitor", 2), ("gpu1/mig/gi2/access", 12), ("gpu1/mig/gi2/ci0/access", 13)];
    for (file, minor) in minors {
        host.write(&format!("host/{CAPABILITIES}/{file}"), &access(minor));
    }
    let list =
        "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu1/gi2/access 12\ngpu1/gi2/ci0/access 13\ngpu1/gi3/access 21\n";
    host.write("host/proc/driver/nvidia-caps/mig-minors", list);
    let make =
        "mkdir host/dev/nvidia-caps; for n in 1 2 12 13; do mknod host/dev/nvidia-caps/nvidia-cap$n c 234 $n; done";
    host.output_of(make);
}

#[test]
fn mig_device_brings_only_its_capabilities() {
    let Some(host) = TestHost::new() else { return };
    divide(&host);
    let listed = host.output_of("cli list --device=1:0");
    let expected = format!(
        "/dev/nvidia1\n/{CAPABILITIES}/gpu1/mig/gi2/access\n/{CAPABILITIES}/gpu1/mig/gi2/ci0/access\n\
         /dev/nvidia-caps/nvidia-cap12\n/dev/nvidia-caps/nvidia-cap13\n"
    );
    assert!(listed.ends_with(&expected), "{listed}");
    let seen = host.output_of(
        "mounts; cli configure --utility --no-cgroups --device=1:0 $PWD/ct
         ls ct/dev/nvidia-caps; find ct/proc/driver/nvidia/capabilities -type f; ls ct/dev",
    );
    let expected = format!("nvidia-cap12\nnvidia-cap13\nct/{CAPABILITIES}/gpu1/mig/gi2/");
    assert!(seen.starts_with(&expected) && !seen.contains("config") && !seen.contains("nvidia0"), "{seen}");
}

#[test]
fn mig_config_brings_all_capabilities() {
    let Some(host) = TestHost::new() else { return };
    divide(&host);
    let listed = host.output_of("cli list --device=all --mig-config=all");
    let expected = format!(
        "/dev/nvidia0\n/dev/nvidia1\n/{CAPABILITIES}/mig/config\n/dev/nvidia-caps/nvidia-cap1\n\
         /{CAPABILITIES}/gpu1/mig\n/dev/nvidia-caps\n/dev/nvidia-caps/nvidia-cap12\n/dev/nvidia-caps/nvidia-cap13\n\
         /dev/nvidia-caps/nvidia-cap21\n"
    );
    assert!(listed.ends_with(&expected), "{listed}");
    let seen = host.output_of(
        "mounts; cli configure --utility --no-cgroups --device=all --mig-config=all --mig-monitor=all $PWD/ct
         ls ct/dev/nvidia-caps; cat ct/proc/driver/nvidia/capabilities/mig/config
         cli configure --utility --no-cgroups --device=all --mig-config=all $PWD/ct",
    );
    assert!(seen.starts_with("nvidia-cap1\nnvidia-cap12\nnvidia-cap13\nnvidia-cap2\nDeviceFileMinor: 1\n"), "{seen}");
    for (line, why) in [
        (
            "--device=1:0 --mig-config=all",
            "mig-config error: all: cannot enable mig-config with specific MIG devices selected",
        ),
        ("--device=all --mig-monitor=0", "mig-monitor error: 0: only 'all' devices are currently supported"),
    ] {
        let done = host.script(&format!("cli configure --utility --no-cgroups {line} $PWD/ct"));
        assert_eq!(String::from_utf8_lossy(&done.stderr), format!("nvidia-container-cli: {why}\n"));
    }
}

#[test]
fn imex_channels_are_created_and_mounted() {
    let Some(host) = TestHost::new() else { return };
    host.write("host/proc/devices", "Character devices:\n195 nvidia\n510 nvidia-uvm\n");
    let refused = host.script("mounts; cli configure --utility --no-cgroups --imex-channel=0 $PWD/ct");
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(error.starts_with("nvidia-container-cli: mount error: the driver has no IMEX channel 0\n"), "{error}");
    host.write("host/proc/devices", "Character devices:\n195 nvidia\n510 nvidia-uvm\n238 nvidia-caps-imex-channels\n");
    let node = "ct/dev/nvidia-caps-imex-channels/channel7";
    let configure = "configure --utility --no-cgroups --imex-channel=7 $PWD/ct";
    let missing = host.script(&format!("mounts; cli {configure}"));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("channel7 is missing"));
    // The modules count as loaded. `--no-create-imex-channels` suppresses the node.
    for name in ["nvidia", "nvidia_uvm", "nvidia_modeset"] {
        host.write(&format!("host/sys/module/{name}/x"), "");
    }
    assert!(!host.script(&format!("mounts; cli --load-kmods --no-create-imex-channels {configure}")).status.success());
    assert_eq!(host.output_of(&format!("mounts; cli --load-kmods {configure}; stat -c '%t:%T' {node}")), "ee:7\n");
}

#[test]
fn load_kmods_creates_missing_nodes() {
    let Some(host) = TestHost::new() else { return };
    for name in ["nvidia", "nvidia_uvm", "nvidia_modeset"] {
        host.write(&format!("host/sys/module/{name}/x"), "");
    }
    let configure = "configure --utility --no-cgroups --device=all $PWD/ct";
    // nvidiactl stays: without it, the program would use this machine's own nodes, which the test must never touch.
    let gpus = "host/dev/nvidia0 host/dev/nvidia1";
    let missing = host.script(&format!("mounts; rm {gpus}; cli {configure}"));
    let error = String::from_utf8_lossy(&missing.stderr);
    assert!(error.contains("dev/nvidia0 is missing\nnvidia-container-cli: fix: create it: --load-kmods"), "{error}");
    let other = host.script(&format!("mounts; for gpu in {gpus}; do mknod $gpu p; done; cli {configure}"));
    let error = String::from_utf8_lossy(&other.stderr);
    assert!(error.contains("dev/nvidia0 is no character device"), "{error}");
    let made = format!("mounts; rm {gpus}; cli --load-kmods {configure}; stat -c '%a %t:%T' ct/dev/nvidia1");
    assert_eq!(host.output_of(&made), "666 c3:1\n");
}

#[test]
fn graphics_profile_lists_requested_gpus() {
    let Some(host) = TestHost::new() else { return };
    let seen = host.output_of(
        "mounts; cli configure --graphics --no-cgroups --device=1 $PWD/ct
         cat ct/etc/nvidia/nvidia-application-profiles-rc.d/*",
    );
    assert!(seen.contains("[\"EGLVisibleDGPUDevices\",0x2]"), "{seen}");
}

#[test]
fn compat_mode_selects_image_cuda() {
    let Some(host) = TestHost::new() else { return };
    let newer = "libcuda.so.590.44.01";
    // The library that the loader takes: the target of the first entry in its cache.
    let taken = |mode: &str| {
        host.root();
        let folder = libraries();
        let script = format!(
            "mkdir -p ct/usr/local/cuda-13/compat; ln -s cuda-13 ct/usr/local/cuda
             cp host/{folder}/libcuda.so.{RELEASE} ct/usr/local/cuda/compat/{newer}
             mounts; cli {CONFIGURE} {mode} $PWD/ct
             first=$(/sbin/ldconfig -r ct -p | grep 'libcuda.so.1 ' | head -1 | sed 's/.*=> //')
             chroot ct readlink -f $first"
        );
        host.output_of(&script)
    };
    let path_line = |name: &str| format!("/{}/{name}\n", libraries());
    assert_eq!(taken(""), path_line(newer));
    assert_eq!(taken("--cuda-compat-mode=mount"), path_line(newer));
    assert_eq!(taken("--cuda-compat-mode=ldconfig"), format!("/usr/local/cuda-13/compat/{newer}\n"));
    assert_eq!(taken("--cuda-compat-mode=disabled"), path_line(&format!("libcuda.so.{RELEASE}")));
    assert_eq!(taken("--no-cntlibs"), path_line(&format!("libcuda.so.{RELEASE}")));
}

#[test]
fn unmet_requirement_is_refused_before_mounting() {
    let Some(host) = TestHost::new() else { return };
    let done = host.script(&format!("mounts; cli {CONFIGURE} --require='driver>=999' $PWD/ct; ls ct/dev >&2"));
    let error = String::from_utf8_lossy(&done.stderr);
    let expected =
        "nvidia-container-cli: requirement error: unsatisfied condition: driver>=999\nnvidia-container-cli: fix: ";
    assert!(error.starts_with(expected) && error.contains("this host has cuda=13.0, driver=580.159.04"), "{error}");
    host.output_of(&format!("mounts; cli {CONFIGURE} --require='driver>=999 driver>=580,driver<581' $PWD/ct"));
}

#[test]
fn no_devbind_mounts_no_nodes() {
    let Some(host) = TestHost::new() else { return };
    let seen =
        host.output_of(&format!("mounts; cli {CONFIGURE} --no-devbind $PWD/ct; ls ct/dev; ls ct/{}", libraries()));
    assert!(!seen.contains("nvidiactl") && seen.contains(&format!("libcuda.so.{RELEASE}\n")), "{seen}");
}
