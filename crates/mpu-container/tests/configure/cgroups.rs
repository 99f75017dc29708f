//! The device cgroup of version 1, and user namespaces.

use crate::test_host::{MOUNTS, TestHost};
use crate::{CONFIGURE, PRIVATE, container};

/// A cgroup in which devices can be denied; none if this machine has no writable one.
fn device_cgroup(host: &TestHost) -> Option<&'static str> {
    let group = "/sys/fs/cgroup/devices/mpu-cli-$$";
    let made = format!("test -e /sys/fs/cgroup/devices/devices.allow && mkdir {group} && rmdir {group}");
    if !host.script(&made).status.success() {
        eprintln!("skipped: no devices cgroup of version 1 that can be written");
        return None;
    }
    Some(group)
}

#[test]
fn device_cgroup_is_opened_for_requested_gpu() {
    let Some(host) = TestHost::new() else { return };
    let Some(group) = device_cgroup(&host) else { return };
    let configure = CONFIGURE.replace("--no-cgroups", "");
    let seen = host.output_of(&format!(
        r#"
        group={group}; mkdir $group
        echo a > $group/devices.deny; echo 'c 1:3 rwm' > $group/devices.allow
        {}
        trap 'kill -9 $pid; for i in $(seq 1000); do ! rmdir $group 2> /dev/null || break; sleep 0.02; done' EXIT
        echo $pid > $group/cgroup.procs
        cli {configure} --pid=$pid $PWD/ct
        cat $group/devices.list"#,
        container(PRIVATE, "")
    ));
    let mut rules: Vec<&str> = seen.lines().collect();
    rules.sort();
    assert_eq!(rules, ["c 195:0 rw", "c 195:255 rw", "c 1:3 rwm", "c 510:0 rw", "c 510:1 rw"]);
}

#[test]
fn cgroup_failure_undoes_mounts() {
    let Some(host) = TestHost::new() else { return };
    let Some(group) = device_cgroup(&host) else { return };
    let configure = CONFIGURE.replace("--no-cgroups", "");
    // A cgroup may not allow what its parent forbids.
    let seen = host.output_of(&format!(
        r#"
        group={group}; mkdir $group; echo a > $group/devices.deny; mkdir $group/child
        {}
        trap 'kill -9 $pid; for i in $(seq 1000); do ! rmdir $group/child $group 2> /dev/null || break; sleep 0.02; done' EXIT
        echo $pid > $group/child/cgroup.procs
        cli {configure} --pid=$pid $PWD/ct 2>&1 || echo failed
        nsenter --target $pid --mount sh -c "cd $PWD; ls ct/dev; findmnt -rno TARGET | grep -c $PWD/ct/"
        "#,
        container(PRIVATE, "")
    ));
    assert!(seen.starts_with("nvidia-container-cli: mount error: device cgroup: "), "{seen}");
    assert!(seen.ends_with("allow the devices\nfailed\n3\n"), "{seen}");
}

#[test]
fn user_namespace_container_is_configured_from_host() {
    let Some(host) = TestHost::new() else { return };
    let prefix = "unshare --user --map-root-user";
    if !host.script(&format!("{prefix} unshare --mount true")).status.success() {
        return eprintln!("skipped: no user namespaces");
    }
    let seen = host.output_of(&format!(
        r#"{}
        trap 'kill -9 $pid' EXIT
        cli {CONFIGURE} --pid=$pid $PWD/ct
        nsenter --target $pid --user --mount chroot $PWD/ct sh -c "ls /dev; readlink -f /usr/lib/*/libcuda.so""#,
        container(&format!("{prefix} --pid --fork {PRIVATE}"), "")
    ));
    assert!(seen.contains("nvidia0\nnvidiactl\n") && seen.contains("libcuda.so.580"), "{seen}");
}

#[test]
fn unprivileged_call_skips_cgroups_and_modules() {
    let Some(host) = TestHost::new() else { return };
    let inside = "unshare --user --map-root-user --mount --pid --fork";
    if !host.script(&format!("{inside} mount -t proc proc ct/proc")).status.success() {
        return eprintln!("skipped: no user namespaces that may mount proc");
    }
    let configure = CONFIGURE.replace("--no-cgroups", "");
    let script = format!(
        "set -eu\n{MOUNTS}\nmounts\n\"$CLI\" cli --root=$PWD/host --debug=$PWD/log --load-kmods {configure} $PWD/ct\nls ct/dev"
    );
    host.write("rootless", &script);
    let seen = host.output_of(&format!("{inside} sh rootless; cat log"));
    assert!(seen.contains("nvidia0\nnvidiactl\n"), "{seen}");
    assert!(seen.contains("kernel modules are left alone in a user namespace"), "{seen}");
}

#[test]
fn mounts_are_restricted_without_mount_setattr() {
    let Some(host) = TestHost::new() else { return };
    // Before Linux 5.12 there is no mount_setattr.
    let old = "strace -f -o trace -e trace=mount_setattr -e inject=mount_setattr:error=ENOSYS";
    if !host.script(&format!("{old} true")).status.success() {
        return eprintln!("skipped: no strace that makes mount_setattr fail");
    }
    let seen = host.output_of(&format!(
        "mounts; {old} \"$CLI\" cli --root=$PWD/host {CONFIGURE} $PWD/ct; grep -q ENOSYS trace
         findmnt -rno TARGET,OPTIONS | sed \"s,$PWD/ct,,\" | grep -e nvidia"
    ));
    for expected in ["/dev/nvidia0 ro,nosuid,noexec,", "/usr/bin/nvidia-smi ro,nosuid,nodev,"] {
        assert!(seen.contains(expected), "{expected:?} is not in:\n{seen}");
    }
}
