//! A container's life, from its creation to its end, in a mount namespace of its own.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Creates, starts, does what the script says, waits for the end, deletes; the output, and whether all but the waiting succeeded.
/// `$RUNTIME` is the wrapper `nvidia-container-runtime` of this folder, whose `bundle` and `config.toml` it uses; `$C` is the container.
pub fn live(folder: &Path, name: &str, script: &str) -> Output {
    // crun refuses a mixture of both versions of cgroups.
    let script = format!(
        r#"umount -l /sys/fs/cgroup/unified 2>/dev/null
        r() {{ "$RUNTIME" --root "$STATE" "$@"; }}
        trap 'r delete --force $C 2>/dev/null' EXIT
        r create -b . $C && r start $C || exit 1
        {script}
        for i in $(seq 3000); do r state $C | grep -q '"stopped"' && break; sleep 0.02; done
        for i in $(seq 3000); do r delete $C 2>/dev/null && break; sleep 0.02; done"#
    );
    Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .current_dir(folder.join("bundle"))
        .env("RUNTIME", folder.join("nvidia-container-runtime"))
        .env("NVIDIA_CTK_CONFIG_FILE_PATH", folder.join("config.toml"))
        .env("STATE", folder.join("state"))
        .env("C", name)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}
