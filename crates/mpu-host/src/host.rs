//! Facts about this host, read from files below one root.
//!
//! Owns the paths. Every fact comes from a file, even those that have a system call (`uname`, `getuid`), so that a
//! test can hand in a whole made-up host as a directory. Knows nothing of engines and judges nothing: that is
//! `engine::module::checks`.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A host, seen through a root directory: `/` for the one we run on.
#[derive(Debug, Clone)]
pub struct Host {
    root: PathBuf,
    search: Vec<PathBuf>,
}

/// How tightly the kernel is locked down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lockdown {
    /// Not at all, or the kernel does not know lockdown.
    None,
    /// Unsigned modules and other ways into the kernel are refused.
    Integrity,
    /// As `Integrity`, and kernel memory cannot be read either.
    Confidentiality,
}

/// The capability that reads and writes any file.
pub const CAP_DAC_OVERRIDE: u32 = 1;
/// The capability that reads any file and looks into any directory.
pub const CAP_DAC_READ_SEARCH: u32 = 2;
/// The capability that loads and unloads modules.
pub const CAP_SYS_MODULE: u32 = 16;
/// The capability that makes PID namespaces (and much else).
pub const CAP_SYS_ADMIN: u32 = 21;

/// The inode number that every kernel gives the initial PID namespace.
pub const INIT_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Directories searched for tools after those of `PATH`: a service's `PATH` is often short of the `sbin`s.
const TOOL_DIRS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

impl Host {
    /// The host that this program runs on.
    pub fn this() -> Host {
        let from_env = std::env::var_os("PATH").unwrap_or_default();
        let mut search: Vec<PathBuf> = std::env::split_paths(&from_env).filter(|p| p.is_absolute()).collect();
        for dir in TOOL_DIRS.map(PathBuf::from) {
            if !search.contains(&dir) {
                search.push(dir);
            }
        }
        Host { root: PathBuf::from("/"), search }
    }

    /// The host whose files lie below `root`. Tools are looked for there, too.
    pub fn below(root: &Path) -> Host {
        let search = TOOL_DIRS.iter().map(PathBuf::from).collect();
        Host { root: root.to_path_buf(), search }
    }

    /// Whether this is the host that we run on, hence the one whose kernel our system calls reach.
    pub fn is_this(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Where an absolute path of the host lies for us.
    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The contents of a file without white space at either end, or none when it is not there or not readable.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read(self.at(path)).ok().map(|bytes| String::from_utf8_lossy(&bytes).trim().to_string())
    }

    /// The contents of a regular file of at most `limit` bytes; none when it is not there, not readable, larger, or no regular file
    /// (opening it never waits for anybody).
    pub fn bounded(&self, path: impl AsRef<Path>, limit: usize) -> Option<Vec<u8>> {
        self.beginning(path, limit + 1).filter(|bytes| bytes.len() <= limit)
    }

    /// The first `limit` bytes of a regular file, likewise.
    pub fn beginning(&self, path: impl AsRef<Path>, limit: usize) -> Option<Vec<u8>> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut open = fs::OpenOptions::new();
        let file = open.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(self.at(path)).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(limit as u64).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// The name of a user, as this host's `/etc/passwd` has it.
    pub fn user_name(&self, uid: u32) -> Option<String> {
        self.passwd_field(uid, 0)
    }

    /// The home directory of a user, likewise.
    pub fn home_of(&self, uid: u32) -> Option<String> {
        self.passwd_field(uid, 5).filter(|home| home.starts_with('/'))
    }

    fn passwd_field(&self, uid: u32, field: usize) -> Option<String> {
        let uid = uid.to_string();
        let passwd = String::from_utf8_lossy(&self.bounded("/etc/passwd", 4 << 20)?).into_owned();
        let row = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid))?;
        row.split(':').nth(field).filter(|text| !text.is_empty()).map(str::to_string)
    }

    /// `uname -r`.
    pub fn release(&self) -> io::Result<String> {
        Ok(fs::read_to_string(self.at("/proc/sys/kernel/osrelease"))?.trim().to_string())
    }

    /// Whether this process holds a capability (by its bit), as `/proc/self/status` tells.
    pub fn has_capability(&self, bit: u32) -> bool {
        let status = self.text("/proc/self/status").unwrap_or_default();
        let mask =
            status.lines().find_map(|l| l.strip_prefix("CapEff:")).and_then(|m| u64::from_str_radix(m.trim(), 16).ok());
        mask.is_some_and(|m| m >> bit & 1 == 1)
    }

    /// Whether this process lives in the initial PID namespace; only there are its numbers the host's.
    pub fn in_init_pid_namespace(&self) -> bool {
        fs::read_link(self.at("/proc/self/ns/pid")).is_ok_and(|l| l.as_os_str() == OsStr::new(INIT_PID_NAMESPACE))
    }

    /// The kernel's lockdown, from the bracketed word.
    pub fn lockdown(&self) -> Lockdown {
        let text = self.text("/sys/kernel/security/lockdown").unwrap_or_default();
        match text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word) {
            Some("integrity") => Lockdown::Integrity,
            Some("confidentiality") => Lockdown::Confidentiality,
            _ => Lockdown::None,
        }
    }

    /// Whether the kernel accepts signed modules only.
    pub fn enforces_signatures(&self) -> bool {
        self.text("/sys/module/module/parameters/sig_enforce").is_some_and(|t| t == "Y" || t == "1")
    }

    /// Whether the owner has shut module loading off until the next boot.
    pub fn modules_disabled(&self) -> bool {
        self.text("/proc/sys/kernel/modules_disabled").is_some_and(|t| t == "1")
    }

    /// Whether ftrace was switched off at run time. Kernels without the file cannot switch it off.
    pub fn ftrace_disabled(&self) -> bool {
        self.text("/proc/sys/kernel/ftrace_enabled").is_some_and(|t| t == "0")
    }

    /// The kernel's configuration and where it was found, if any file has it.
    pub fn kernel_config(&self, release: &str) -> Option<(PathBuf, String)> {
        let plain = [
            format!("/boot/config-{release}"),
            format!("/lib/modules/{release}/config"),
            format!("/lib/modules/{release}/build/.config"),
        ];
        for path in plain {
            if let Some(text) = self.text(&path) {
                return Some((PathBuf::from(path), text));
            }
        }
        let packed = Path::new("/proc/config.gz");
        self.gunzip(packed).map(|text| (packed.to_path_buf(), text))
    }

    /// Unpacks a file with the host's `gzip`; this program carries no decompressor for one file that few kernels have.
    fn gunzip(&self, path: &Path) -> Option<String> {
        let file = fs::File::open(self.at(path)).ok()?;
        let gzip = self.tool("gzip")?;
        let mut child = std::process::Command::new(gzip)
            .arg("-dc")
            .stdin(file)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .ok()?;
        let mut text = String::new();
        let read = child.stdout.take()?.read_to_string(&mut text);
        let ended = child.wait().ok()?;
        (read.is_ok() && ended.success()).then_some(text)
    }

    /// The first executable file of that name among the host's tools.
    pub fn tool(&self, name: &str) -> Option<PathBuf> {
        use std::os::unix::fs::PermissionsExt;
        let runs = |p: &Path| fs::metadata(p).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
        if name.starts_with('/') {
            let path = self.at(name);
            return runs(&path).then_some(path);
        }
        self.search.iter().map(|dir| self.at(dir).join(name)).find(|p| runs(p))
    }

    /// The tool directories as one `PATH`.
    pub fn search_path(&self) -> std::ffi::OsString {
        std::env::join_paths(self.search.iter().map(|d| self.at(d))).unwrap_or_default()
    }

    /// How this distribution installs the headers of a kernel, as a command or, failing that, as words.
    pub fn headers_hint(&self, release: &str) -> String {
        match self.family() {
            Family::Debian => format!("apt-get install linux-headers-{release}"),
            Family::RedHat => format!("dnf install kernel-devel-{release}"),
            Family::Suse => "zypper install kernel-default-devel".to_string(),
            Family::Arch => "pacman -S linux-headers".to_string(),
            Family::Alpine => "apk add linux-lts-dev".to_string(),
            Family::Other => format!("install the package with the headers of kernel {release}"),
        }
    }

    /// How this distribution installs `make` and a compiler.
    pub fn compiler_hint(&self, compiler: &str) -> String {
        match self.family() {
            Family::Debian => format!("apt-get install make {compiler}"),
            Family::RedHat => format!("dnf install make {compiler} elfutils-libelf-devel"),
            Family::Suse => format!("zypper install make {compiler}"),
            Family::Arch => "pacman -S base-devel".to_string(),
            Family::Alpine => "apk add build-base".to_string(),
            Family::Other => format!("install make and {compiler}"),
        }
    }

    /// How this distribution installs pahole, which writes type information of modules.
    pub fn pahole_hint(&self) -> &'static str {
        match self.family() {
            Family::Debian => "apt-get install pahole",
            Family::RedHat => "dnf install dwarves",
            Family::Suse => "zypper install dwarves",
            Family::Arch => "pacman -S pahole",
            Family::Alpine => "apk add pahole",
            Family::Other => "install pahole, which may be in a package named dwarves",
        }
    }

    fn family(&self) -> Family {
        let text = self.text("/etc/os-release").unwrap_or_default();
        let value =
            |key: &str| text.lines().find_map(|l| l.strip_prefix(key)).unwrap_or("").trim_matches('"').to_string();
        let words = format!("{} {}", value("ID="), value("ID_LIKE="));
        for word in words.split_whitespace() {
            match word {
                "debian" | "ubuntu" => return Family::Debian,
                "rhel" | "fedora" | "centos" => return Family::RedHat,
                "suse" | "opensuse" | "sles" => return Family::Suse,
                "arch" => return Family::Arch,
                "alpine" => return Family::Alpine,
                _ => {}
            }
        }
        Family::Other
    }
}

/// Distributions that install packages alike.
enum Family {
    Debian,
    RedHat,
    Suse,
    Arch,
    Alpine,
    Other,
}

#[cfg(any(test, feature = "fake"))]
pub mod fake {
    //! Made-up hosts for tests, of this crate and of those above it.

    use super::Host;
    use std::fs;
    use std::path::Path;

    /// A directory that looks like a host on which everything is in order.
    pub struct FakeHost {
        /// The directory; it goes when this does.
        pub dir: tempfile::TempDir,
    }

    /// The release that fake hosts run.
    pub const RELEASE: &str = "6.1.0-28-amd64";

    impl FakeHost {
        /// A root caller, an armed-able kernel, headers, make and gcc, and driver 550.163.01.
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
            host.write(
                &format!("{build}/include/generated/utsrelease.h"),
                &format!("#define UTS_RELEASE \"{RELEASE}\"\n"),
            );
            host.tool("make", "exit 0");
            host.tool("gcc-12", "exit 0");
            host.write("/sys/module/nvidia/version", "550.163.01\n");
            host
        }

        /// Makes its kernel one with listeners for system calls, and this process one of the host's.
        pub fn can_notify(&self) {
            self.write("/proc/sys/kernel/seccomp/actions_avail", "kill_process errno user_notif trace log allow\n");
            fs::create_dir_all(self.host().at("/proc/self/ns")).expect("directories");
            std::os::unix::fs::symlink(super::INIT_PID_NAMESPACE, self.host().at("/proc/self/ns/pid")).expect("a link");
        }

        /// The host to hand to the code under test.
        pub fn host(&self) -> Host {
            Host::below(self.dir.path())
        }

        /// Puts a file there.
        pub fn write(&self, path: &str, text: &str) {
            let path = self.host().at(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            fs::write(path, text).expect("a file");
        }

        /// Puts a shell script there as a tool.
        pub fn tool(&self, name: &str, body: &str) {
            self.program(&format!("/usr/bin/{name}"), body);
        }

        /// Puts a shell script at a path. Another process writes it: what another test starts meanwhile would inherit a
        /// descriptor of ours that is open for writing, and the kernel runs nothing that is being written (`ETXTBSY`).
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

        /// Takes a file or a whole directory away.
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
}

#[cfg(test)]
mod tests {
    use super::fake::{FakeHost, RELEASE};
    use super::{Lockdown, CAP_SYS_MODULE};

    #[test]
    fn a_host_is_what_its_files_say() {
        let fake = FakeHost::in_order();
        let host = fake.host();
        assert_eq!(host.release().expect("a release"), RELEASE);
        assert!(host.has_capability(CAP_SYS_MODULE));
        fake.write("/proc/self/status", "CapEff:\t0000000000000000\n");
        assert!(!host.has_capability(CAP_SYS_MODULE));
        assert!(!host.is_this());
    }

    #[test]
    fn lockdown_is_the_bracketed_word() {
        let fake = FakeHost::in_order();
        let check = |text: &str, expect| {
            fake.write("/sys/kernel/security/lockdown", text);
            assert_eq!(fake.host().lockdown(), expect, "{text}");
        };
        check("[none] integrity confidentiality\n", Lockdown::None);
        check("none [integrity] confidentiality\n", Lockdown::Integrity);
        check("none integrity [confidentiality]\n", Lockdown::Confidentiality);
        check("", Lockdown::None);
        fake.remove("/sys/kernel/security/lockdown");
        assert_eq!(fake.host().lockdown(), Lockdown::None);
    }

    #[test]
    fn packed_configuration_is_read_with_the_hosts_gzip() {
        let fake = FakeHost::in_order();
        fake.remove(&format!("/boot/config-{RELEASE}"));
        fake.remove(&format!("/lib/modules/{RELEASE}/build/.config"));
        assert!(fake.host().kernel_config(RELEASE).is_none());
        fake.write("/proc/config.gz", "CONFIG_MODULES=y\n");
        assert!(fake.host().kernel_config(RELEASE).is_none(), "no gzip, no configuration");
        fake.tool("gzip", "/bin/cat");
        let (path, text) = fake.host().kernel_config(RELEASE).expect("a configuration");
        assert_eq!((path.to_str(), text.as_str()), (Some("/proc/config.gz"), "CONFIG_MODULES=y\n"));
    }

    #[test]
    fn a_tool_must_be_executable() {
        let fake = FakeHost::in_order();
        assert!(fake.host().tool("gcc-12").is_some());
        fake.write("/usr/bin/clang", "not executable");
        assert!(fake.host().tool("clang").is_none());
        assert!(fake.host().tool("/usr/bin/make").is_some());
    }

    #[test]
    fn hints_speak_the_distributions_language() {
        let fake = FakeHost::in_order();
        let check = |os_release: &str, hint: &str| {
            fake.write("/etc/os-release", os_release);
            assert!(fake.host().headers_hint(RELEASE).starts_with(hint), "{os_release}");
        };
        check("ID=debian\n", "apt-get install linux-headers-6.1.0-28-amd64");
        check("ID=pop\nID_LIKE=\"ubuntu debian\"\n", "apt-get");
        check("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "dnf install kernel-devel-6.1");
        check("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n", "zypper");
        check("ID=nixos\n", "install the package");
    }
}
