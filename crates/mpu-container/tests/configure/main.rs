//! `nvidia-container-cli` on the real kernel: namespaces, mounts, device nodes and cgroups are real, the GPU is fake
//! (`test_host`). Needs root; skipped with a note otherwise.

mod cgroups;
mod escapes;
#[path = "../../src/driver/fake_library.rs"]
mod fake_library;
#[path = "../common/host.rs"]
mod host;
mod lxc;
mod options;
mod parts;
mod test_host;

use test_host::{MOUNTS, RELEASE, TestHost, libraries, tree};

const CONFIGURE: &str = "configure --ldconfig=@/sbin/ldconfig --no-cgroups --compute --utility --device=0";

/// The command that starts a container's process in its own mount namespace.
const PRIVATE: &str = "unshare --mount --propagation=private";

/// The beginning of a script with a container whose waiting process is `$pid`: the command that starts it, and additional mounts.
fn container(start: &str, mounts: &str) -> String {
    format!(
        r#"
        mkfifo ready
        (
            {start} sh -c '
                set -eu
                {MOUNTS}
                # Its number for the host, by the proc of the host.
                read number rest < /proc/self/stat
                mounts
                {mounts}
                echo $number > ready
                exec sleep 100
            ' > /dev/null &
        )
        # Not `read`: where the container cannot be started, no process opens the pipe.
        pid=$(timeout 60 cat ready)
        test "$pid" -gt 1
        "#
    )
}

/// Prints the driver's files in the container, and their mounts.
const LOOK: &str = r#"
    chroot ct sh -c '
        ls /dev; cat /proc/driver/nvidia/params; ls /proc/driver/nvidia/gpus /proc/driver/nvidia
        /usr/bin/nvidia-smi; readlink -f LIB/libcuda.so; readlink -f LIB/libnvidia-ml.so.1
        (: > /usr/bin/nvidia-smi) 2>&1; (: > LIB/libcuda.so.1) 2>&1; true'
    findmnt -rno TARGET,OPTIONS | grep -e "/ct/.*nvidia" -e "/ct/.*libcuda" | sed "s,$PWD/ct,," | sort
"#;

fn check_look(seen: &str) {
    let folder = libraries();
    for expected in [
        "nvidia-uvm\nnvidia-uvm-tools\nnvidia0\nnvidiactl\n",
        "ModifyDeviceFiles: 0\nDeviceFileMode: 438\n",
        "/proc/driver/nvidia/gpus:\n0000:1b:00.0\n",
        "gpus\nparams\nregistry\nversion\n",
        "smi\n",
        &format!("/{folder}/libcuda.so.{RELEASE}\n/{folder}/libnvidia-ml.so.{RELEASE}\n"),
        "can't create /usr/bin/nvidia-smi: Read-only file system\n",
        "libcuda.so.1: Read-only file system\n",
        "/dev/nvidia0 ro,nosuid,noexec,",
        "/proc/driver/nvidia rw,nosuid,nodev,noexec,",
        "/proc/driver/nvidia/gpus/0000:1b:00.0 ro,nosuid,nodev,noexec,",
        "/usr/bin/nvidia-smi ro,nosuid,nodev,",
        &format!("/lib/firmware/nvidia/{RELEASE}/gsp_ga10x.bin ro,nosuid,nodev,"),
    ] {
        assert!(seen.contains(expected), "{expected:?} is not in:\n{seen}");
    }
    assert!(!seen.contains("nvidia1\n") && !seen.contains("43:00.0"), "the other GPU is seen:\n{seen}");
}

/// A fake host with the script `look`.
fn host() -> Option<TestHost> {
    let host = TestHost::new()?;
    host.write("look", &LOOK.replace("LIB", &format!("/{}", libraries())));
    Some(host)
}

#[test]
fn container_made_by_hand_gets_its_gpu() {
    let Some(host) = host() else { return };
    check_look(&host.output_of(&format!("mounts; chroot ct test ! -e /dev/nvidia0; cli {CONFIGURE} $PWD/ct; sh look")));
}

#[test]
fn second_configure_run_is_idempotent() {
    let Some(host) = host() else { return };
    let run = format!("cli {CONFIGURE} $PWD/ct");
    check_look(&host.output_of(&format!("mounts; {run}; sh look > one; {run}; sh look > two; cmp one two; cat two")));
    let more = host.output_of(&format!("mounts; {run}; {run} --device=1; ls ct/dev ct/proc/driver/nvidia/gpus"));
    assert!(more.contains("nvidia0\nnvidia1\n") && more.contains("0000:1b:00.0\n0000:43:00.0\n"), "{more}");
}

#[test]
fn configure_by_pid_keeps_host_mounts() {
    let Some(host) = host() else { return };
    let seen = host.output_of(&format!(
        r#"
        {}
        trap "kill -9 $pid" EXIT
        findmnt -rn > before
        cli {CONFIGURE} --pid=$pid $PWD/ct
        findmnt -rn > after
        cmp before after
        test ! -e ct/dev/nvidia0
        nsenter --target $pid --mount sh -c "cd $PWD && sh look"
        "#,
        container(PRIVATE, "")
    ));
    check_look(&seen);
}

#[test]
fn failed_configure_undoes_everything() {
    let Some(host) = TestHost::new() else { return };
    let before = tree(&host.path("ct"));
    // A directory at a library's path: no file can be mounted there.
    let done = host.script(&format!(
        "mounts; mkdir -p ct/{0}/libnvidia-ml.so.{RELEASE}; cli {CONFIGURE} $PWD/ct && exit 9
         rmdir ct/{0}/libnvidia-ml.so.{RELEASE}; findmnt -rno TARGET | grep -c $PWD/ct/; find ct/dev ct/proc/driver",
        libraries()
    ));
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(error.starts_with("nvidia-container-cli: mount error: "), "{error}");
    assert!(error.contains("libnvidia-ml.so"), "{error}");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "3\nct/dev\nct/proc/driver\nct/proc/driver/nvidia\n", "{error}");
    assert_eq!(tree(&host.path("ct")), before);
}
