//! enroot's hook for NVIDIA GPUs: the calls that it makes, in mounts made as enroot makes them. Debian has no enroot.
//!
//! Source: enroot 4, `conf/mounts/10-system.fstab` and `conf/hooks/98-nvidia.sh`: the mounts, and the hook's arguments.

use super::{assert_has_second_gpu, assert_no_driver, set_up};
use crate::host::{Driver, Host};

/// The mounts below a root before the hooks: from, to, kind, options. `none` is a bind mount.
const MOUNTS: [(&str, &str, &str, &str); 6] = [
    ("/proc", "proc", "none", "rbind,rw,nosuid,nodev,noexec,rslave"),
    ("/sys", "sys", "none", "rbind,ro,nosuid,nodev,noexec,rslave"),
    ("/dev", "dev", "none", "rbind,rw,nosuid,noexec,rslave"),
    ("tmpfs", "tmp", "tmpfs", "rw,nosuid,nodev,mode=755"),
    ("tmpfs", "run", "tmpfs", "rw,nosuid,nodev,mode=755"),
    ("/dev/shm", "dev/shm", "none", "bind,rw,nosuid,nodev,noexec,rslave"),
];

/// The hook's call for a container's variables: each is an option, in this order.
const OPTIONS: [(&str, &str); 3] = [
    ("NVIDIA_VISIBLE_DEVICES", "--device"),
    ("NVIDIA_MIG_CONFIG_DEVICES", "--mig-config"),
    ("NVIDIA_REQUIRE_CUDA", "--require"),
];

fn call(environment: &[&str]) -> String {
    let variables = || environment.iter().filter_map(|variable| variable.split_once('='));
    let value = |name: &str| variables().find(|(other, _)| *other == name).map(|(_, value)| value);
    let mut words =
        vec!["nvidia-container-cli --user configure --no-cgroups --ldconfig=@$(command -v ldconfig)".to_owned()];
    words.extend(OPTIONS.iter().filter_map(|(name, option)| Some(format!("{option}='{}'", value(name)?))));
    let capabilities = value("NVIDIA_DRIVER_CAPABILITIES").unwrap_or("compute,utility");
    words.extend(capabilities.split(',').map(|capability| format!("--{capability}")));
    words.push("$root".into());
    words.join(" ")
}

/// A script that starts a container as enroot does, in its own mount namespace, and runs the check script in it. Without a variable there is
/// no call.
pub fn script(environment: &[&str]) -> String {
    let mounts: Vec<String> = MOUNTS
        .iter()
        .map(|(from, to, kind, options)| match *kind {
            "none" => {
                let (how, rest) = options.split_once(',').expect("several");
                let (rest, propagation) = rest.rsplit_once(',').expect("several");
                format!("mount --{how} {from} $root/{to}; mount -o remount,bind,{rest} $root/{to}; mount --make-{propagation} $root/{to}")
            }
            kind => format!("mount -t {kind} -o {options} {from} $root/{to}"),
        })
        .collect();
    let call = if environment.is_empty() { String::new() } else { call(environment) };
    let inside = format!(
        "set -e; mount --make-rslave /; root=$1; mount --rbind $root $root; cd /; {}\n{call}\n\
         mount -o remount,bind,nosuid,nodev,ro $root; cd $root; pivot_root . . ; umount -l . 2> /dev/null || busybox umount -l .; exec /bin/sh /look",
        mounts.join("\n")
    );
    format!(
        "cat > /tmp/inside-$$ <<'INSIDE'\n{inside}\nINSIDE\n\
         exec unshare $UNSHARE --mount --propagation=unchanged sh /tmp/inside-$$ ${{ROOT:-/tmp/img}} 2>&1\n"
    )
}

#[test]
fn enroot_hook_gives_user_container_its_gpu() {
    let Some(host) = Host::start(Driver::Tools("hpc", 2)) else { return };
    set_up(&host, 1000);
    let user = |environment: &[&str], before: &str| {
        host.write("/tmp/start", &format!("{before}\n{}", script(environment)));
        let who = "setpriv --reuid 1000 --regid 1000 --clear-groups env PATH=$PATH UNSHARE='--user --map-current-user --keep-caps'";
        let done = host.sh(&format!("{who} sh /tmp/start"));
        (done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned())
    };
    let (ok, output) = user(&[], "");
    if !ok {
        return println!("skipped: only root makes user namespaces here: {output}");
    }
    assert_no_driver(&output, "plain");
    let before = host.changes();
    let (ok, output) = user(&["NVIDIA_VISIBLE_DEVICES=1"], "");
    assert!(ok, "{output}");
    assert_has_second_gpu(&output, "enroot");
    let (ok, output) = user(
        &["NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_DRIVER_CAPABILITIES=compute,compat32,display,graphics,utility,video"],
        "",
    );
    assert!(ok, "{output}");
    assert_has_second_gpu(&output, "enroot, all capabilities");
    let (ok, output) = user(&["NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_REQUIRE_CUDA=cuda>=99.0"], "");
    assert!(!ok && output.contains("unsatisfied condition: cuda>=99.0"), "{output}");
    assert_eq!(host.changes(), before);
}
