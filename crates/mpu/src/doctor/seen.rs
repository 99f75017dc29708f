//! What a check sees: how bad it is, and a way out that can be typed as it is.

use mpu_host::explain::{Explain, chain};
use mpu_host::host::Host;
use schemars::JsonSchema;
use serde::Serialize;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Not looked at; the finding says why.
    Skipped,
    /// Works, or would; an administrator should see to it.
    Attention,
    /// MPU does not work, or containers are seen wrong, until this is mended.
    Broken,
}

/// What a check is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// The kernel and what its owner allows.
    Kernel,
    /// The NVIDIA driver.
    Driver,
    /// MPU itself.
    Engine,
    /// What containers see.
    Containers,
    /// Others who want the same place.
    Conflicts,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub(super) level: Level,
    pub(super) what: String,
    pub(super) fix: Option<String>,
}

impl Seen {
    pub(super) fn fine(what: impl Into<String>) -> Seen {
        Seen { level: Level::Ok, what: what.into(), fix: None }
    }
    pub(super) fn skipped(why: impl Into<String>) -> Seen {
        Seen { level: Level::Skipped, what: why.into(), fix: None }
    }
    pub(super) fn attention(what: impl Into<String>, fix: impl Into<String>) -> Seen {
        Seen { level: Level::Attention, what: what.into(), fix: Some(fix.into()) }
    }
    pub(super) fn broken(what: impl Into<String>, fix: impl Into<String>) -> Seen {
        Seen { level: Level::Broken, what: what.into(), fix: Some(fix.into()) }
    }
    /// An error of this crate's, as bad as the caller says.
    pub(super) fn of(level: Level, error: &dyn Explain) -> Seen {
        Seen { level, what: chain(error), fix: Some(typeable(error.fix())) }
    }
}

/// Programs with which the fixes of this crate's errors begin, where they are commands.
const COMMANDS: [&str; 12] =
    ["apt-get", "apk", "dkms", "dnf", "mkdir", "mokutil", "mount", "mpu", "openssl", "pacman", "sysctl", "zypper"];

/// A fix as a shell takes it: a command as root gives it, or words behind a `#`, as a shell would execute what an
/// error's words quote.
pub(super) fn typeable(fix: String) -> String {
    match fix.split_whitespace().next() {
        Some(first) if COMMANDS.contains(&first) => match fix.split_once(" && ") {
            None => format!("sudo {fix}"),
            Some(_) => fix,
        },
        Some("sudo" | "#") | None => fix,
        // The kernel's own signing tool, by its path.
        Some(first) if first.starts_with('/') => fix,
        Some(_) => format!("# {fix}"),
    }
}

/// A check: its stable name, what it is about, what it looks at and why that matters, and the look.
pub type CheckRow = (&'static str, Group, &'static str, fn(&Host) -> Seen);

#[cfg(test)]
mod tests {
    use super::typeable;

    #[test]
    fn fix_becomes_command_or_comment() {
        for (fix, typed) in [
            ("apt-get install make gcc-12", "sudo apt-get install make gcc-12"),
            ("`dmesg | tail` shows the kernel's messages", "# `dmesg | tail` shows the kernel's messages"),
            ("install make and gcc", "# install make and gcc"),
            ("sudo mpu up", "sudo mpu up"),
            ("mkdir -p /x && openssl req", "mkdir -p /x && openssl req"),
        ] {
            assert_eq!(typeable(fix.to_string()), typed);
        }
    }
}
