//! The result of a check: a level, a text, and a fix to type.

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
    /// Not checked; the finding has the reason.
    Skipped,
    /// Works, or would work; an administrator should act.
    Attention,
    /// MPU does not work, or containers are seen wrong, until this is fixed.
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
    /// Other programs in the same place.
    Conflicts,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResult {
    pub(super) level: Level,
    pub(super) text: String,
    pub(super) fix: Option<String>,
}

impl CheckResult {
    pub(super) fn ok(text: impl Into<String>) -> CheckResult {
        CheckResult { level: Level::Ok, text: text.into(), fix: None }
    }
    pub(super) fn skipped(why: impl Into<String>) -> CheckResult {
        CheckResult { level: Level::Skipped, text: why.into(), fix: None }
    }
    pub(super) fn attention(text: impl Into<String>, fix: impl Into<String>) -> CheckResult {
        CheckResult { level: Level::Attention, text: text.into(), fix: Some(fix.into()) }
    }
    pub(super) fn broken(text: impl Into<String>, fix: impl Into<String>) -> CheckResult {
        CheckResult { level: Level::Broken, text: text.into(), fix: Some(fix.into()) }
    }
    /// The result for an error of this crate.
    pub(super) fn from_error(level: Level, error: &dyn Explain) -> CheckResult {
        CheckResult { level, text: chain(error), fix: Some(shell_safe(error.fix())) }
    }
}

/// The first words of fixes that are commands.
const COMMANDS: [&str; 12] =
    ["apt-get", "apk", "dkms", "dnf", "mkdir", "mokutil", "mount", "mpu", "openssl", "pacman", "sysctl", "zypper"];

/// Makes a fix safe to paste into a shell: a command gets `sudo`, any other text becomes a comment. Otherwise the shell
/// would execute the backquotes in it.
pub(super) fn shell_safe(fix: String) -> String {
    match fix.split_whitespace().next() {
        Some(first) if COMMANDS.contains(&first) => match fix.split_once(" && ") {
            None => format!("sudo {fix}"),
            Some(_) => fix,
        },
        Some("sudo" | "#") | None => fix,
        // The kernel's signing tool is named by its path.
        Some(first) if first.starts_with('/') => fix,
        Some(_) => format!("# {fix}"),
    }
}

/// A check: its stable name, what it looks at and why, and the function.
pub type CheckRow = (&'static str, &'static str, fn(&Host) -> CheckResult);

#[cfg(test)]
mod tests {
    use super::shell_safe;

    #[test]
    fn fix_becomes_command_or_comment() {
        for (fix, typed) in [
            ("apt-get install make gcc-12", "sudo apt-get install make gcc-12"),
            ("`dmesg | tail` shows the kernel's messages", "# `dmesg | tail` shows the kernel's messages"),
            ("install make and gcc", "# install make and gcc"),
            ("sudo mpu up", "sudo mpu up"),
            ("mkdir -p /x && openssl req", "mkdir -p /x && openssl req"),
        ] {
            assert_eq!(shell_safe(fix.to_string()), typed);
        }
    }
}
