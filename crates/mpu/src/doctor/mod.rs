//! `mpu doctor`: everything that can be wrong with MPU on a host, looked at in one go, each with its way out.
//!
//! Owns the table of checks, how bad a finding is, that a fix can be typed as it is, and that no check can hang the
//! others. Changes nothing. What a check looks at is another module's knowledge wherever there is one. A check of an
//! engine that this host does not take is skipped: what that engine lacks is nobody's trouble.

mod conflicts;
mod driver;
mod engine;
mod kernel;
mod notify;
mod unserved;

use crate::config::{Asked, Config};
use crate::driver::Driver;
use crate::engine::module::{raise, state};
use crate::engine::notify::client;
use crate::engine::{choose, Engine};
use crate::explain::{chain, Explain};
use crate::host::Host;
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long one check may take. A driver that hangs must not hang the doctor.
const PATIENCE: Duration = Duration::from_secs(20);

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Not looked at; the finding says why.
    Skipped,
    /// Works, or would; somebody should see to it.
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

/// What one check saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    level: Level,
    what: String,
    fix: Option<String>,
}

impl Seen {
    fn fine(what: impl Into<String>) -> Seen {
        Seen { level: Level::Ok, what: what.into(), fix: None }
    }
    fn skipped(why: impl Into<String>) -> Seen {
        Seen { level: Level::Skipped, what: why.into(), fix: None }
    }
    fn attention(what: impl Into<String>, fix: impl Into<String>) -> Seen {
        Seen { level: Level::Attention, what: what.into(), fix: Some(fix.into()) }
    }
    fn broken(what: impl Into<String>, fix: impl Into<String>) -> Seen {
        Seen { level: Level::Broken, what: what.into(), fix: Some(fix.into()) }
    }
    /// An error of this crate's, as bad as the caller says.
    fn of(level: Level, error: &dyn Explain) -> Seen {
        Seen { level, what: chain(error), fix: Some(typeable(error.fix())) }
    }
}

/// Programs with which the fixes of this crate's errors begin, where they are commands.
const COMMANDS: [&str; 12] =
    ["apt-get", "apk", "dkms", "dnf", "mkdir", "mokutil", "mount", "mpu", "openssl", "pacman", "sysctl", "zypper"];

/// A fix as a shell takes it: a command as root gives it, or words behind a `#`, as a shell would execute what an
/// error's words quote.
fn typeable(fix: String) -> String {
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

/// The engine that is up, or that `mpu up` would take. What cannot be known is taken for the module, which needs more.
fn taken(host: &Host) -> Engine {
    if state::is_loaded(host) {
        return Engine::Module;
    }
    if matches!(client::state(host), Ok(Some(_))) {
        return Engine::Notify;
    }
    let asked = Config::of(host).map_or(Asked::Auto, |config| config.engine);
    let driver = Driver::loaded(host);
    choose(host, asked, &raise::Options::default(), driver.as_ref()).map_or(Engine::Module, |choice| choice.engine)
}

/// Why the module's needs are not looked at; none where they are.
fn without_module(host: &Host) -> Option<Seen> {
    (taken(host) == Engine::Notify)
        .then(|| Seen::skipped("only the module needs it, and this host takes the notify engine"))
}

/// One check.
pub struct Check {
    /// Its stable name.
    pub id: &'static str,
    /// What it is about.
    pub group: Group,
    /// What it looks at, and why that matters.
    pub about: &'static str,
    look: fn(&Host) -> Seen,
}

/// What a check found, for reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Finding {
    /// The check.
    pub check: &'static str,
    /// What it is about.
    pub group: Group,
    /// How bad it is.
    pub level: Level,
    /// What was seen.
    pub seen: String,
    /// What to do about it; null if there is nothing to do.
    pub fix: Option<String>,
}

/// Every check, in the order of a report.
pub fn checks() -> Vec<Check> {
    [kernel::CHECKS, driver::CHECKS, engine::CHECKS, notify::CHECKS, conflicts::CHECKS]
        .into_iter()
        .flatten()
        .map(|&(id, group, about, look)| Check { id, group, about, look })
        .collect()
}

/// A row of a module's table.
type Row = (&'static str, Group, &'static str, fn(&Host) -> Seen);

/// Looks at everything.
pub fn examine(host: &Host) -> Vec<Finding> {
    checks().into_iter().map(|check| finding(host, &check, PATIENCE)).collect()
}

fn finding(host: &Host, check: &Check, patience: Duration) -> Finding {
    let (send, receive) = mpsc::channel();
    let (host, look) = (host.clone(), check.look);
    // A check that hangs is left to hang; the process ends without it.
    thread::spawn(move || drop(send.send(look(&host))));
    let seen = receive.recv_timeout(patience).unwrap_or_else(|error| match error {
        mpsc::RecvTimeoutError::Timeout => {
            let hangs = format!("no answer within {} s: something that this looks at hangs", patience.as_secs());
            Seen::broken(hangs, "dmesg | tail -n 50")
        }
        mpsc::RecvTimeoutError::Disconnected => {
            Seen::broken("the check itself failed: a mistake in mpu", "mpu doctor --json   # and report it")
        }
    });
    Finding { check: check.id, group: check.group, level: seen.level, seen: seen.what, fix: seen.fix }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_types_is_a_command_or_a_comment() {
        for (fix, typed) in [
            ("apt-get install make gcc-12", "sudo apt-get install make gcc-12"),
            ("`dmesg | tail` has the kernel's own words", "# `dmesg | tail` has the kernel's own words"),
            ("install make and gcc", "# install make and gcc"),
            ("sudo mpu up", "sudo mpu up"),
            ("mkdir -p /x && openssl req", "mkdir -p /x && openssl req"),
        ] {
            assert_eq!(typeable(fix.to_string()), typed);
        }
    }

    #[test]
    fn no_two_checks_share_a_name() {
        let mut names: Vec<&str> = checks().iter().map(|check| check.id).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert!(names.len() == all && all >= 20);
    }

    /// `| check in backticks | what it looks at |`
    #[test]
    fn the_page_has_every_check_in_order_and_no_other() {
        let page = include_str!("../../../../docs/doctor.md");
        let rows: Vec<(&str, &str)> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
            .map(|(id, rest)| (id, rest.trim_end_matches(" |")))
            .collect();
        let table = checks();
        assert_eq!(rows, table.iter().map(|check| (check.id, check.about)).collect::<Vec<_>>());
    }

    #[test]
    fn a_check_that_hangs_is_broken_and_does_not_hang_the_rest() {
        let check = Check {
            id: "x",
            group: Group::Driver,
            about: "",
            look: |_| loop {
                thread::park();
            },
        };
        let found = finding(&Host::this(), &check, Duration::from_millis(50));
        assert!(found.level == Level::Broken && found.seen.contains("hangs"));
    }
}
