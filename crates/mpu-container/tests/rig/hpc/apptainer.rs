//! Apptainer 1.4 (Debian sid): `--nv --nvccli` calls `nvidia-container-cli configure --no-cgroups`, as root or in a user namespace.
//!
//! Source: apptainer(1); the program itself.

use super::{assert_has_second_gpu, assert_no_driver, set_up};
use crate::host::{Driver, Host};

/// Files and settings that Apptainer expects and a small host lacks. Root on this machine may lack capabilities.
const SET_UP: &str = "mkdir -p /var/lib/apptainer/mnt/session; : > /etc/localtime; : > /etc/resolv.conf; : > /etc/hosts
    echo tty:x:5: >> /etc/group; sed -i 's/^root default capabilities.*/root default capabilities = file/' /etc/apptainer/apptainer.conf
    cp -a /tmp/img /home/user/img; chown -R 1000:1000 /home/user";

const AS_USER: &str = "cd /home/user; setpriv --reuid 1000 --regid 1000 --clear-groups env HOME=/home/user PATH=$PATH";

fn start() -> Option<Host> {
    let host = Host::start(Driver::Tools("hpc-sid", 2))?;
    set_up(&host, 0);
    host.ok(SET_UP);
    Some(host)
}

/// Output of the check script in a container, or Apptainer's error.
fn exec(host: &Host, who: &str, options: &str) -> (bool, String) {
    let own = "--contain --bind /tmp/look:/look";
    let done =
        host.sh(&format!("export NVIDIA_VISIBLE_DEVICES=1; {who} apptainer exec {own} {options} /bin/sh /look 2>&1"));
    (done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Whether users other than root can make user namespaces here.
fn rootless(host: &Host) -> bool {
    let able = host.sh(&format!("{AS_USER} unshare --user --map-root-user --mount true")).status.success();
    if !able {
        println!("skipped: only root makes user namespaces here");
    }
    able
}

#[test]
fn apptainer_gives_gpu_asked_for() {
    let Some(host) = start() else { return };
    let before = host.changes();
    assert_no_driver(&exec(&host, "", "/tmp/img").1, "plain");
    let (ok, output) = exec(&host, "", "--nv --nvccli /tmp/img");
    assert!(ok, "{output}");
    assert_has_second_gpu(&output, "root");
    assert!(!output.contains("nvidia0\n"), "{output}");
    if rootless(&host) {
        assert_no_driver(&exec(&host, AS_USER, "/home/user/img").1, "a user's, plain");
        for options in ["", "--fakeroot"] {
            let (ok, output) = exec(&host, AS_USER, &format!("{options} --nv --nvccli /home/user/img"));
            assert!(ok, "{output}");
            assert_has_second_gpu(&output, "a user's");
        }
        // Apptainer refuses another user's folder, because it is not writable.
        let (ok, output) = exec(&host, AS_USER, "--nv --nvccli /tmp/img");
        assert!(!ok && output.contains("not writable in the container"), "{output}");
    }
    let (ok, output) = exec(&host, "NVIDIA_VISIBLE_DEVICES=7", "--nv --nvccli /tmp/img");
    assert!(!ok && output.contains("7: unknown device"), "{output}");
    let changed: Vec<_> = host
        .changes()
        .into_iter()
        .filter(|change| !before.contains(change) && !change.contains(".apptainer"))
        .collect();
    assert_eq!(changed, [""; 0]);
}

#[test]
fn apptainer_works_with_ubuntu_ldconfig() {
    let Some(host) = start() else { return };
    // As on Ubuntu: a script, and the program beside it.
    let script = |program: &str| {
        host.write("/usr/sbin/ldconfig", &format!("#!/bin/sh\nexec {program} \"$@\"\n"));
        host.ok("chmod 755 /usr/sbin/ldconfig");
    };
    host.ok("mv /usr/sbin/ldconfig /usr/sbin/ldconfig.real");
    script("/usr/sbin/ldconfig.real");
    assert_has_second_gpu(&exec(&host, "", "--nv --nvccli /tmp/img").1, "wrapped");
    // A script alone cannot run: its interpreter would be the image's.
    host.ok("mv /usr/sbin/ldconfig.real /usr/sbin/elsewhere");
    script("/usr/sbin/elsewhere");
    let (ok, output) = exec(&host, "", "--nv --nvccli /tmp/img");
    assert!(!ok && output.contains("/usr/sbin/ldconfig is not a statically linked program"), "{output}");
    host.ok("rm /usr/sbin/ldconfig");
    let (ok, output) = exec(&host, "", "--nv --nvccli /tmp/img");
    assert!(!ok && output.contains("ldconfig"), "{output}");
}

/// A read-only image in one file.
#[test]
#[ignore = "makes an image, which takes long: ./x containers --full"]
fn apptainer_runs_read_only_image() {
    let Some(host) = start() else { return };
    host.ok("apptainer build /tmp/img.sif /tmp/img 2>&1; chmod 644 /tmp/img.sif");
    assert_has_second_gpu(&exec(&host, "", "--nv --nvccli /tmp/img.sif").1, "root");
    if rootless(&host) {
        let (ok, output) = exec(&host, AS_USER, "--nv --nvccli /tmp/img.sif");
        match ok {
            true => assert_has_second_gpu(&output, "a user's"),
            // Without FUSE a user cannot mount an image.
            false => println!("skipped: a user's image file: {}", output.lines().last().unwrap_or_default()),
        }
    }
}
