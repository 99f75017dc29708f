//! The NVIDIA driver of this host: its release, its flavour, and the expected native numbering of that release.
//!
//! The prediction is by the eras of `mpu_abi`, from the sources of 193 public releases and nine closed drivers; `probe` measures.

use crate::host::Host;
pub use mpu_abi::Release;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// The first examined branch.
pub const OLDEST_KNOWN: Release = Release::new(390, 0, 0);
/// The newest examined branch, to its end.
pub const NEWEST_KNOWN: Release = Release::new(610, 999, 999);

/// Whether a release is within the examined branches.
pub fn is_known(release: Release) -> bool {
    OLDEST_KNOWN <= release && release <= NEWEST_KNOWN
}

/// The namespace of a control's numbers outside the init PID namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Numbering {
    /// The init namespace.
    Host,
    /// The caller's namespace, but the number of the thread that made the client.
    Thread,
    /// The caller's namespace.
    Own,
}

impl fmt::Display for Numbering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Numbering::Host => "host pids",
            Numbering::Thread => "the namespace's thread ids",
            Numbering::Own => "the namespace's pids",
        })
    }
}

/// The native behaviour of an era.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Native {
    /// The number of the era.
    pub era: u8,
    pub pids: Numbering,
    /// The numbers that GET_PID_INFO takes.
    pub pid_info: Numbering,
    /// The numbers in utilisation samples that the driver can convert; all others stay host PIDs.
    pub utilisation: Numbering,
}

impl Native {
    /// By the number of the era.
    pub fn of(era: u8) -> Native {
        use Numbering::{Host, Own, Thread};
        let (pids, pid_info, utilisation) = match era {
            0 => (Host, Host, Host),
            1 => (Thread, Host, Host),
            2 => (Thread, Thread, Host),
            3 => (Thread, Thread, Thread),
            _ => (Own, Own, Own),
        };
        Native { era, pids, pid_info, utilisation }
    }
}

/// The native behaviour of a release.
pub fn native(release: Release) -> Native {
    Native::of(mpu_abi::era(release))
}

/// What a container sees on such a driver without MPU.
pub fn in_words(era: u8) -> &'static str {
    match era {
        0 => "era 0: the driver speaks host pids only; in a container the process table is empty",
        1 => {
            "era 1: the list is in the container's pids, the details want host pids; \
             in a container \"No running processes found\""
        }
        2 => "era 2: the table is right for single-threaded starters, utilisation speaks host pids",
        3 => {
            "era 3: the table is right for single-threaded starters; \
             host pids and a kernel pointer leak in utilisation samples"
        }
        _ => "era 4: the table is mostly right, with duplicates and lost rows; host pids and kernel pointers leak",
    }
}

/// The driver's functions for conversion; their presence confirms the release.
pub const CONVERTERS: [&str; 2] = ["os_find_ns_pid", "os_is_init_ns"];

/// Which of [`CONVERTERS`] a release has.
pub fn converters_of(release: Release) -> [bool; 2] {
    [native(release).pids != Numbering::Host, release >= Release::new(570, 0, 0)]
}

/// Which kind of kernel module the driver is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Flavour {
    /// NVIDIA's open kernel modules.
    Open,
    /// The proprietary ones.
    Proprietary,
    /// `/proc/driver/nvidia/version` does not say.
    Unknown,
}

/// The loaded driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// Its version as text.
    pub version: String,
    /// Its version as a number, if it is one.
    pub release: Option<Release>,
    pub flavour: Flavour,
}

impl Driver {
    /// The loaded driver of this host, or none.
    pub fn loaded(host: &Host) -> Option<Driver> {
        host.at("/sys/module/nvidia").is_dir().then(|| {
            let banner = host.text("/proc/driver/nvidia/version").unwrap_or_default();
            let nvrm = banner.lines().find(|l| l.starts_with("NVRM")).unwrap_or("");
            let from_banner = || {
                nvrm.split_whitespace().find(|w| w.contains('.') && w.parse::<Release>().is_ok()).map(str::to_string)
            };
            let version =
                host.text("/sys/module/nvidia/version").or_else(from_banner).unwrap_or_else(|| "unknown".to_string());
            let flavour = match nvrm {
                "" => Flavour::Unknown,
                line if line.contains("Open Kernel Module") => Flavour::Open,
                _ => Flavour::Proprietary,
            };
            Driver { release: version.parse().ok(), version, flavour }
        })
    }

    /// Why the release is outside the table; none if it is inside.
    pub fn unknown_because(&self) -> Option<String> {
        let (first, last) = (OLDEST_KNOWN.branch(), NEWEST_KNOWN.branch());
        match self.release {
            Some(release) if is_known(release) => None,
            Some(release) if release > NEWEST_KNOWN => {
                Some(format!("newer than the table of this MPU, which ends with branch {last}"))
            }
            Some(_) => Some(format!("older than the table of this MPU, which begins with branch {first}")),
            None => Some("no release number that this MPU can read".to_string()),
        }
    }

    /// The release, if the table covers it.
    pub fn known(&self) -> Option<Release> {
        self.release.filter(|r| is_known(*r))
    }
}

/// Which of [`CONVERTERS`] the loaded driver has; none if the symbol table does not show its functions (hidden from us, or stripped).
pub fn converters_present(host: &Host) -> Option<[bool; 2]> {
    let symbols = host.text("/proc/kallsyms")?;
    let of_driver: Vec<&str> = symbols
        .lines()
        .filter(|l| l.ends_with("[nvidia]"))
        .filter_map(|l| l.split_whitespace().nth(2))
        .filter(|name| CONVERTERS.contains(name) || *name == "os_get_current_process")
        .collect();
    // A function that every release has shows that the table is readable.
    of_driver.contains(&"os_get_current_process").then(|| CONVERTERS.map(|c| of_driver.contains(&c)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;

    fn release(version: &str) -> Release {
        version.parse().expect("a release")
    }

    #[test]
    fn converters_follow_release() {
        let check = |version: &str, expect| assert_eq!(converters_of(release(version)), expect, "{version}");
        check("470.256.02", [false, false]);
        check("535.43.24", [true, false]);
        check("535.54.03", [false, false]);
        check("565.57.01", [true, false]);
        check("570.86.15", [true, true]);
        check("610.43.03", [true, true]);
    }

    #[test]
    fn loaded_driver_is_read_from_either_file() {
        let fake = FakeHost::in_order();
        let driver = Driver::loaded(&fake.host()).expect("a driver");
        assert_eq!((driver.version.as_str(), driver.flavour), ("550.163.01", Flavour::Unknown));
        fake.write(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: 12\n",
        );
        fake.remove("/sys/module/nvidia/version");
        let driver = Driver::loaded(&fake.host()).expect("a driver");
        assert_eq!((driver.version.as_str(), driver.flavour), ("580.159.04", Flavour::Open));
        fake.remove("/sys/module/nvidia");
        assert_eq!(Driver::loaded(&fake.host()), None);
    }

    #[test]
    fn releases_outside_table_are_not_known() {
        let known = |v: &str| {
            let fake = FakeHost::in_order();
            fake.write("/sys/module/nvidia/version", v);
            Driver::loaded(&fake.host()).expect("a driver").known().is_some()
        };
        let newest = NEWEST_KNOWN.branch();
        let (last, next) = (format!("{newest}.43.03"), format!("{}.10", newest + 1));
        assert!(known("390.157") && known(&last));
        assert!(!known("384.111") && !known(&next) && !known("custom"));
        let why =
            |v: &str| Driver { version: v.into(), release: v.parse().ok(), flavour: Flavour::Open }.unknown_because();
        assert_eq!(why(&last), None);
        let newer = format!("newer than the table of this MPU, which ends with branch {newest}");
        assert_eq!(why(&next), Some(newer));
        assert!(why("384.111").is_some_and(|why| why.contains("older than the table")));
        assert!(why("custom").is_some_and(|why| why.contains("no release number")));
    }

    #[test]
    fn converters_are_read_from_symbol_table() {
        let fake = FakeHost::in_order();
        assert_eq!(converters_present(&fake.host()), None);
        fake.write("/proc/kallsyms", "0 t os_find_ns_pid\t[other]\n0 t os_get_current_process\t[nvidia]\n");
        assert_eq!(converters_present(&fake.host()), Some([false, false]));
        fake.write("/proc/kallsyms", "0 t os_find_ns_pid\t[nvidia]\n0 t os_get_current_process\t[nvidia]\n");
        assert_eq!(converters_present(&fake.host()), Some([true, false]));
    }
}
