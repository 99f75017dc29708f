//! A bundle for real runtimes: a base specification and a root file system of busybox.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

const APPLETS: &[&str] = &[
    "cat", "echo", "env", "false", "grep", "head", "hostname", "id", "ls", "mkdir", "mount", "pwd", "readlink", "sed",
    "seq", "sh", "sleep", "sort", "stat", "tail", "touch", "tr", "true", "wc",
];

/// A root in which a shell runs.
pub fn make_root(root: &Path, busybox: &Path) {
    for dir in ["bin", "proc", "sys", "dev", "tmp", "etc", "mnt", "root"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    fs::copy(busybox, root.join("bin/busybox")).unwrap();
    fs::write(root.join("etc/data"), "data\n").unwrap();
    for applet in APPLETS {
        symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
}

/// A specification that both runtimes accept.
pub fn base_spec() -> Value {
    let names = ["CAP_CHOWN", "CAP_KILL", "CAP_SETUID"];
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": ["true"],
            "cwd": "/",
            "capabilities": {"bounding": names, "effective": names, "permitted": names}
        },
        "root": {"path": "rootfs"},
        "hostname": "conformance",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}
        ],
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "network"}, {"type": "uts"}],
            "resources": {"devices": [{"allow": false, "access": "rwm"}]}
        }
    })
}

pub fn find_in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| path.is_file())
}
