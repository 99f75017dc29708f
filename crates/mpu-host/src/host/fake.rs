//! Fake hosts for tests, of this crate and of those above it.

use super::Host;
use std::fs;
use std::path::Path;

/// A directory that looks like a host in order.
pub struct FakeHost {
    /// The directory; removed with this value.
    pub dir: tempfile::TempDir,
}

/// The kernel release of fake hosts.
pub const RELEASE: &str = "6.1.0-28-amd64";

impl FakeHost {
    /// Root, a suitable kernel, headers, make and gcc, and driver 550.163.01.
    pub fn in_order() -> FakeHost {
        let host = FakeHost { dir: tempfile::tempdir().expect("a temporary directory") };
        host.write("/proc/sys/kernel/osrelease", &format!("{RELEASE}\n"));
        host.write("/proc/self/status", "Name:\tmpu\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n");
        host.write("/sys/kernel/security/lockdown", "[none] integrity confidentiality\n");
        host.write("/etc/os-release", "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n");
        host.write(&format!("/boot/config-{RELEASE}"), CONFIG);
        let build = format!("/lib/modules/{RELEASE}/build");
        host.write(&format!("{build}/Makefile"), "# a kernel's\n");
        host.write(&format!("{build}/.config"), CONFIG);
        host.write(&format!("{build}/include/generated/utsrelease.h"), &format!("#define UTS_RELEASE \"{RELEASE}\"\n"));
        host.tool("make", "exit 0");
        host.tool("gcc-12", "exit 0");
        host.write("/sys/module/nvidia/version", "550.163.01\n");
        host
    }

    /// Adds system call listeners to its kernel, and puts this process into the host's PID namespace.
    pub fn can_notify(&self) {
        self.write("/proc/sys/kernel/seccomp/actions_avail", "kill_process errno user_notif trace log allow\n");
        self.link("/proc/self/ns/pid", super::INIT_PID_NAMESPACE);
    }

    /// The host for the code under test.
    pub fn host(&self) -> Host {
        Host::below(self.dir.path())
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.host().at(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, text).expect("a file");
    }

    pub fn link(&self, path: &str, target: impl AsRef<Path>) {
        let path = self.host().at(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        std::os::unix::fs::symlink(target, path).expect("a link");
    }

    /// Puts a shell script there as a tool.
    pub fn tool(&self, name: &str, body: &str) {
        self.program(&format!("/usr/bin/{name}"), body);
    }

    /// Puts a shell script at a path. Another process writes it: a child of another test would inherit our descriptor, open for writing, and
    /// the kernel does not execute a file that is open for writing (`ETXTBSY`).
    pub fn program(&self, path: &str, body: &str) {
        use std::io::Write;
        use std::process::{Command, Stdio};
        let mut install = Command::new("install");
        install.args(["-D", "-m", "755", "/dev/stdin"]).arg(self.host().at(path)).stdin(Stdio::piped());
        let mut child = install.spawn().expect("install, of coreutils");
        let script = format!("#!/bin/sh\n{body}\n");
        child.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("written");
        assert!(child.wait().expect("waited").success());
    }

    /// Removes a file or a directory tree.
    pub fn remove(&self, path: &str) {
        let path = self.host().at(path);
        if path.is_dir() {
            fs::remove_dir_all(path).expect("removed");
        } else {
            fs::remove_file(path).expect("removed");
        }
    }

    /// Every file below the host's root with its contents, to show that nothing changed.
    pub fn snapshot(&self) -> Vec<(String, Vec<u8>)> {
        fn walk(dir: &Path, root: &Path, out: &mut Vec<(String, Vec<u8>)>) {
            for entry in fs::read_dir(dir).expect("a directory").flatten() {
                let path = entry.path();
                let name = path.strip_prefix(root).expect("below the root").display().to_string();
                if path.is_dir() {
                    out.push((format!("{name}/"), Vec::new()));
                    walk(&path, root, out);
                } else {
                    out.push((name, fs::read(&path).unwrap_or_default()));
                }
            }
        }
        let mut out = Vec::new();
        walk(self.dir.path(), self.dir.path(), &mut out);
        out.sort();
        out
    }
}

/// The lines of a kernel's configuration that matter here.
pub const CONFIG: &str = "CONFIG_MODULES=y\nCONFIG_KPROBES=y\nCONFIG_DYNAMIC_FTRACE_WITH_REGS=y\n\
    CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y\nCONFIG_CC_IS_GCC=y\n\
    CONFIG_CC_VERSION_TEXT=\"gcc-12 (Debian 12.2.0-14) 12.2.0\"\n";
