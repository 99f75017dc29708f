//! Facts about this host, read from files below one root. Even facts with a system call (`uname`, `getuid`) come from files, so a test
//! can use a directory as a fake host.

use crate::folder::field;
use mpu_os::child;
use mpu_os::file::{Links, open_regular, read_bounded};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A host, seen through a root directory: `/` for the running one.
#[derive(Debug, Clone)]
pub struct Host {
    root: PathBuf,
    search: Vec<PathBuf>,
}

/// The kernel's lockdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lockdown {
    /// None, or a kernel without lockdown.
    None,
    /// Unsigned modules and other ways into the kernel are refused.
    Integrity,
    /// As `Integrity`, and kernel memory cannot be read either.
    Confidentiality,
}

/// The capability that reads and writes any file.
pub const CAP_DAC_OVERRIDE: u32 = 1;
/// The capability that reads any file and searches any directory.
pub const CAP_DAC_READ_SEARCH: u32 = 2;
/// The capability that loads and unloads modules.
pub const CAP_SYS_MODULE: u32 = 16;
/// The capability that inspects the processes of other users.
pub const CAP_SYS_PTRACE: u32 = 19;
/// The capability that creates PID namespaces (and much else).
pub const CAP_SYS_ADMIN: u32 = 21;

/// The inode number that every kernel gives the initial PID namespace.
pub const INIT_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Longer than any text file that is read whole: the symbols of a kernel with many modules have less than 20 MiB.
const MAX_TEXT: usize = 64 << 20;

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

    /// Whether this is the running host, whose kernel our system calls reach.
    pub fn is_this(&self) -> bool {
        self.root == Path::new("/")
    }

    /// The path of a host's file for us.
    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The names in a folder, sorted; none if it cannot be read.
    pub fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.at(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }

    /// The contents of a regular file without white space at either end; none where [`Host::bounded`] has none.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        self.bounded(path, MAX_TEXT).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_string())
    }

    /// The contents of a regular file of at most `limit` bytes; none if it does not exist, is not readable, larger, or not regular. Opening
    /// never blocks.
    pub fn bounded(&self, path: impl AsRef<Path>, limit: usize) -> Option<Vec<u8>> {
        read_bounded(&self.at(path), limit as u64, Links::Followed).ok()
    }

    /// The first `limit` bytes of a regular file, in the same way.
    pub fn beginning(&self, path: impl AsRef<Path>, limit: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        open_regular(&self.at(path), Links::Followed).ok()?.take(limit as u64).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// The name of a user in this host's `/etc/passwd`.
    pub fn user_name(&self, uid: u32) -> Option<String> {
        self.passwd_field(uid, 0)
    }

    /// The home directory of a user in this host's `/etc/passwd`.
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

    /// Whether this process has a capability (by its bit), from `/proc/self/status`. If the root has no such file, the running host's counts:
    /// the process is the same.
    pub fn has_capability(&self, bit: u32) -> bool {
        let status = |host: &Host| host.text("/proc/self/status");
        let status = status(self).or_else(|| status(&Host::this())).unwrap_or_default();
        let mask = field(&status, "CapEff").and_then(|mask| u64::from_str_radix(mask, 16).ok());
        mask.is_some_and(|m| m >> bit & 1 == 1)
    }

    /// Whether this process is in the initial PID namespace, so that its PIDs are the host's.
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

    /// Whether module loading is off until the next boot.
    pub fn modules_disabled(&self) -> bool {
        self.text("/proc/sys/kernel/modules_disabled").is_some_and(|t| t == "1")
    }

    /// Whether ftrace was switched off at run time. Kernels without the file cannot switch it off.
    pub fn ftrace_disabled(&self) -> bool {
        self.text("/proc/sys/kernel/ftrace_enabled").is_some_and(|t| t == "0")
    }

    /// The kernel's configuration and its file, if there is one.
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

    /// Unpacks a file with the host's `gzip`: few kernels have that file, so a decompressor here is not worth it.
    fn gunzip(&self, path: &Path) -> Option<String> {
        let file = fs::File::open(self.at(path)).ok()?;
        let mut gzip = Command::new(self.tool("gzip")?);
        let ended = child::run(gzip.arg("-dc").stdin(file), Duration::from_secs(10), MAX_TEXT as u64).ok()?;
        let is_success = ended.is_success();
        String::from_utf8(ended.stdout).ok().filter(|_| is_success)
    }

    /// The first executable file with that name among the host's tools.
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

    /// How this distribution installs the headers of a kernel: a command, or a sentence.
    pub fn headers_hint(&self, release: &str) -> String {
        match self.family() {
            Family::Debian => format!("apt-get install linux-headers-{release}"),
            // A kernel variant has its own headers: 5.14.0-503.el9.aarch64+64k.
            Family::RedHat => match release.split_once('+') {
                Some((of, variant)) => format!("dnf install kernel-{variant}-devel-{of}"),
                None => format!("dnf install kernel-devel-{release}"),
            },
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

    /// How this distribution installs pahole, which writes type information into modules.
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

    /// The commands that install and remove a package file in the present folder, also in another package's place. None for distributions
    /// without packages of MPU.
    pub fn package_hints(&self, package: &str) -> Option<(String, String)> {
        let (install, remove) = match self.family() {
            Family::Debian => (format!("apt-get install ./{package}_*.deb"), "apt-get purge"),
            Family::RedHat => (format!("dnf install --allowerasing ./{package}-[0-9]*.rpm"), "dnf remove"),
            Family::Suse => (format!("zypper install ./{package}-[0-9]*.rpm"), "zypper remove"),
            Family::Arch | Family::Alpine | Family::Other => return None,
        };
        Some((install, format!("{remove} {package}")))
    }

    fn family(&self) -> Family {
        let text = self.text("/etc/os-release").unwrap_or_default();
        let value =
            |key: &str| text.lines().find_map(|l| l.strip_prefix(key)).unwrap_or("").trim_matches('"').to_string();
        let ids = format!("{} {}", value("ID="), value("ID_LIKE="));
        for id in ids.split_whitespace() {
            match id {
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
pub mod fake;

#[cfg(test)]
mod tests;
