//! Runs a container from create to delete in its own mount namespace.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Creates and starts a container, runs the script, waits for the container's end and deletes it. Returns the output; its status does not
/// include the wait. `$RUNTIME` is the wrapper `nvidia-container-runtime` in `folder`, which uses `bundle` and `config.toml` of `folder`; `$C`
/// is the container's name.
pub fn run_lifecycle(folder: &Path, name: &str, script: &str) -> Output {
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
