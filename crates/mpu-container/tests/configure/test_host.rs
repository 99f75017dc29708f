//! A fake host with a driver, and a container's root, on the real kernel.
//!
//! The cache of libraries, the device nodes, the namespaces and busybox are real; the driver's files are fake. Each script runs in its own
//! mount namespace, which ends with its last process.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::host;
pub use crate::host::RELEASE;

/// A shell function that mounts proc and dev in the container's root.
pub const MOUNTS: &str = "mounts() {
    mount --bind ct ct
    mount -t proc proc ct/proc
    mount -t tmpfs driver ct/proc/driver
    mkdir ct/proc/driver/nvidia
    mount -t tmpfs -o mode=755 dev ct/dev
}";

/// The folder of libraries in a Debian root.
pub fn libraries() -> String {
    host::libraries().trim_start_matches('/').to_owned()
}

pub struct TestHost {
    folder: tempfile::TempDir,
}

/// Why this machine cannot have such a host.
fn missing() -> Option<&'static str> {
    static MISSING: OnceLock<Option<&'static str>> = OnceLock::new();
    *MISSING.get_or_init(|| {
        let quiet = |program: &str, arguments: &[&str]| {
            Command::new(program).args(arguments).output().is_ok_and(|done| done.status.success())
        };
        if !rustix::process::geteuid().is_root() {
            return Some("only root can enter namespaces and make device nodes");
        }
        let busybox = quiet("busybox", &["true"]) && busybox().is_some();
        [
            (busybox, "no static busybox"),
            (Path::new("/sbin/ldconfig").exists(), "no /sbin/ldconfig"),
            (quiet("unshare", &["--mount", "true"]), "no mount namespaces"),
        ]
        .into_iter()
        .find_map(|(there, reason)| (!there).then_some(reason))
    })
}

fn busybox() -> Option<PathBuf> {
    let candidates = ["/usr/bin/busybox", "/bin/busybox", "/bin/busybox.static"].map(PathBuf::from);
    // ldd fails for a program that needs no loader.
    let needs_none = |path: &PathBuf| Command::new("ldd").arg(path).output().is_ok_and(|done| !done.status.success());
    candidates.into_iter().find(|path| path.exists() && needs_none(path))
}

impl TestHost {
    /// A host with two GPUs and a Debian container's root; none where it cannot be made.
    pub fn new() -> Option<TestHost> {
        if let Some(reason) = missing() {
            eprintln!("skipped: {reason}");
            return None;
        }
        let host = TestHost { folder: tempfile::tempdir().unwrap() };
        fs::set_permissions(host.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        host.host();
        host.root();
        Some(host)
    }

    /// A path in the test's folder: `host/…` or `ct/…`.
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn host(&self) {
        host::make(&self.path("host"), &["nodes".into()]).unwrap();
        self.write("host/proc/driver/nvidia/registry", "");
        self.write("host/usr/bin/nvidia-smi", "#!/bin/sh\necho smi\n");
        fs::set_permissions(self.path("host/usr/bin/nvidia-smi"), fs::Permissions::from_mode(0o755)).unwrap();
        // Tests that need a socket make a real one.
        fs::remove_dir_all(self.path("host/run")).unwrap();
        self.write("host/etc/ld.so.conf", &format!("{}\n", host::libraries()));
        self.run("/sbin/ldconfig", &["-r", "host"]);
    }

    /// Makes the container's root anew.
    pub fn root(&self) {
        let _ = fs::remove_dir_all(self.path("ct"));
        for folder in ["bin", "proc", "dev", "etc", "usr/bin", "tmp", &libraries()] {
            fs::create_dir_all(self.path("ct").join(folder)).unwrap();
        }
        self.write("ct/etc/debian_version", "12.0\n");
        fs::copy(busybox().unwrap(), self.path("ct/bin/busybox")).unwrap();
        for name in ["sh", "ls", "cat", "readlink", "test", "true"] {
            std::os::unix::fs::symlink("busybox", self.path("ct/bin").join(name)).unwrap();
        }
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let done = Command::new(program).args(arguments).current_dir(self.folder.path()).output();
        let done = done.unwrap_or_else(|error| panic!("{program}: {error}"));
        assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Runs a script in its own mount namespace, in the test's folder. The script has `$CLI`, `cli` (which uses the fake host),
    /// and `mounts` ([`MOUNTS`]).
    pub fn script(&self, script: &str) -> Output {
        let cli = env!("CARGO_BIN_EXE_mpu-container");
        let script = format!(
            "set -eu\ncli() {{ \"$CLI\" cli --root=\"$PWD/host\" --debug=\"$PWD/log\" \"$@\"; }}\n{MOUNTS}\n{script}"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation=private", "sh", "-c", &script]);
        command.env("CLI", cli).current_dir(self.folder.path()).output().unwrap()
    }

    /// Output of a script, which must succeed.
    pub fn output_of(&self, script: &str) -> String {
        let done = self.script(script);
        let error = String::from_utf8_lossy(&done.stderr);
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        assert!(done.status.success(), "{script}\n{}\n{error}\n{log}", String::from_utf8_lossy(&done.stdout));
        String::from_utf8(done.stdout).unwrap()
    }
}

/// Every path below a directory, with its kind and size, for comparison.
pub fn tree(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap().flatten() {
            let about = fs::symlink_metadata(entry.path()).unwrap();
            found.push(format!("{} {:?} {}", entry.path().display(), about.permissions(), about.len()));
            if about.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    found.sort();
    found
}
