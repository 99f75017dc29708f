//! Hostile roots: the host's tree stays unchanged, and nothing is mounted outside the root.

use crate::test_host::{TestHost, libraries, tree};
use crate::{CONFIGURE, container};

/// Runs `configure` on a root after this change to it, beside a folder that must not change.
fn check(host: &TestHost, name: &str, hostile: &str) {
    host.root();
    host.write("outside/file", "the host's");
    host.write("outside/dev/null", "the host's");
    let outside = host.path("outside");
    let before = tree(&outside);
    let host_before = tree(&host.path("host"));
    let script = format!(
        "mounts; OUT=$PWD/outside; {}
         cli {CONFIGURE} $PWD/ct 2> error || true; head -1 error
         findmnt -rno TARGET | grep -v \"^$PWD/ct\" > after || true; echo done; cat after",
        hostile.replace("LIB", &libraries())
    );
    let mounts = host.output_of(&script);
    // The program reached the root, and finished or refused something in it.
    let refused = ["mount error: ", "ldcache error: "].map(|what| format!("nvidia-container-cli: {what}"));
    let outcome = mounts.starts_with("done\n") || refused.iter().any(|what| mounts.starts_with(what));
    assert!(outcome, "{name}: {mounts}");
    let mounts = &mounts[mounts.find("done\n").unwrap()..];
    assert!(!mounts.contains("outside") && !mounts.contains("nvidia"), "{name}: {mounts}");
    assert_eq!(tree(&outside), before, "{name}");
    assert_eq!(tree(&host.path("host")), host_before, "{name}");
}

#[test]
fn links_at_every_mount_point_stay_inside() {
    let Some(host) = TestHost::new() else { return };
    for (name, hostile) in [
        ("library", "ln -s $OUT/file ct/LIB/libcuda.so.580.159.04"),
        ("library's folder", "rmdir ct/LIB; ln -s $OUT ct/LIB"),
        ("upwards", "rmdir ct/LIB; ln -s ../../../../../../../../../..$OUT ct/LIB"),
        ("program", "ln -s $OUT/file ct/usr/bin/nvidia-smi"),
        ("program to nothing", "ln -s $OUT/new ct/usr/bin/nvidia-smi"),
        ("dev", "umount ct/dev; rmdir ct/dev; ln -s $OUT/dev ct/dev"),
        ("node", "ln -s $OUT/file ct/dev/nvidia0"),
        ("proc", "umount ct/proc/driver ct/proc; rmdir ct/proc; ln -s $OUT ct/proc"),
        ("facts", "rmdir ct/proc/driver/nvidia; ln -s $OUT ct/proc/driver/nvidia"),
        ("magic", "rmdir ct/LIB; ln -s /proc/self/root$OUT ct/LIB"),
        ("magic cwd", "ln -s /proc/self/cwd/outside/file ct/usr/bin/nvidia-smi"),
        ("firmware", "mkdir -p ct/lib; ln -s $OUT ct/lib/firmware"),
        ("etc", "rm -r ct/etc; ln -s $OUT ct/etc"),
        ("cache", "ln -s $OUT/file ct/etc/ld.so.cache"),
        ("compat", "mkdir -p ct/usr/local/cuda; ln -s $OUT ct/usr/local/cuda/compat"),
        ("link", "ln -s $OUT/file ct/LIB/libcuda.so"),
    ] {
        check(&host, name, hostile);
    }
}

#[test]
fn host_root_is_refused_as_container() {
    let Some(host) = TestHost::new() else { return };
    let magic = "it leads through a process's own link in /proc";
    for (root, why) in [
        ("/usr/..", "container error: invalid rootfs directory"),
        ("/proc/self/root", magic),
        ("/proc/self/cwd", magic),
        ("/proc/self/cwd/ct", magic),
        ("$PWD/link", magic),
    ] {
        let done = host.script(&format!("ln -sf /proc/self/cwd link; cli {CONFIGURE} {root}"));
        assert!(!done.status.success());
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(error.contains(why), "{root}: {error}");
    }
    let done = host.script(&format!("cli {CONFIGURE} /"));
    assert_eq!(done.status.code(), Some(2));
}

/// Configures a process in whose root a folder is a shared mount of a host volume.
fn with_shared_volume(host: &TestHost, folder: &str, options: &str) -> std::process::Output {
    host.script(&format!(
        r#"
        mkdir vol
        mount --bind vol vol
        mount --make-shared vol
        {}
        trap "kill -9 $pid" EXIT
        findmnt -rn > before
        code=0
        cli {CONFIGURE} {options} --pid=$pid $PWD/ct || code=$?
        findmnt -rn > after
        cmp before after
        ls -A vol
        exit $code
        "#,
        container(
            "unshare --mount --propagation=unchanged",
            &format!("mkdir -p ct/{folder}; mount --bind vol ct/{folder}")
        )
    ))
}

#[test]
fn shared_volume_gets_no_mounts() {
    let Some(host) = TestHost::new() else { return };
    let done = with_shared_volume(&host, "etc/nvidia", "--graphics");
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{error}");
    assert!(error.contains("note: /etc/nvidia/nvidia-application-profiles-rc.d is the host's own"), "{error}");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "", "a mount, or something in the volume");

    let Some(host) = TestHost::new() else { return };
    let done = with_shared_volume(&host, &libraries(), "");
    let error = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{error}");
    assert!(error.contains("lies on a volume that is mounted shared") && error.contains("fix: "), "{error}");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "", "a mount, or something in the volume");
}
