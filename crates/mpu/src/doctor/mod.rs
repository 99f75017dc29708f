//! `mpu doctor`: checks a host for everything that can be wrong with MPU, and gives a fix for each finding. Changes
//! nothing. A hanging check does not stop the others.

mod check;
mod conflicts;
mod driver;
mod engine;
mod engine_in_use;
mod kernel;
mod notify;

pub use check::{CheckResult, CheckRow, Group, Level};

use mpu_host::host::Host;
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long one check may take: a hanging driver must not hang the doctor.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);

/// The finding of a check, for reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Finding {
    /// The check, as `mpu doctor --list` names it.
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

pub fn checks() -> impl Iterator<Item = (Group, &'static CheckRow)> {
    let groups = [
        (Group::Kernel, kernel::CHECKS),
        (Group::Driver, driver::CHECKS),
        (Group::Containers, driver::CONTAINERS),
        (Group::Engine, engine::CHECKS),
        (Group::Engine, notify::CHECKS),
        (Group::Conflicts, conflicts::CHECKS),
    ];
    groups.into_iter().flat_map(|(group, checks)| checks.iter().map(move |check| (group, check)))
}

pub fn examine(host: &Host) -> Vec<Finding> {
    checks().map(|(group, check)| run_check(host, group, check, CHECK_TIMEOUT)).collect()
}

/// The order in which to fix findings, from a bare node to a container with a GPU.
const ORDER: [&str; 17] = [
    "root",
    "configuration",
    "driver",
    "driver_library",
    "device_nodes",
    "kernel",
    "modules_allowed",
    "function_tracing",
    "signatures",
    "notify_kernel",
    "foreign_module",
    "engine",
    "containers",
    "container_gpus",
    "notify_wrapper",
    "notify_unserved",
    "service",
];

/// The next command to type; none if all is right. Follows [`ORDER`]. Missing headers come before `engine`, but only if
/// no engine is up and they prevent it.
pub fn next(findings: &[Finding]) -> Option<&str> {
    let is_wrong = |finding: &&Finding| finding.level > Level::Skipped && finding.fix.is_some();
    let broken = |id: &str| findings.iter().find(|f| f.check == id && is_wrong(f));
    let is_up = findings.iter().any(|f| f.check == "engine" && f.level == Level::Ok);
    let headers = broken("headers").filter(|finding| !is_up && finding.level == Level::Broken);
    let in_order = ORDER.iter().find_map(|id| match *id {
        "engine" => headers.or_else(|| broken(id)),
        _ => broken(id),
    });
    let worst = || findings.iter().filter(is_wrong).max_by_key(|finding| finding.level == Level::Broken);
    in_order.or_else(worst).and_then(|finding| finding.fix.as_deref())
}

fn run_check(host: &Host, group: Group, check: &CheckRow, timeout: Duration) -> Finding {
    let (send, receive) = mpsc::channel();
    let (host, &(id, _, look)) = (host.clone(), check);
    // A hanging check stays in its thread; the process ends without it.
    thread::spawn(move || drop(send.send(engine_in_use::skip_reason(&host, id).unwrap_or_else(|| look(&host)))));
    let result = receive.recv_timeout(timeout).unwrap_or_else(|error| match error {
        mpsc::RecvTimeoutError::Timeout => {
            let hangs = format!("no answer within {} s: something that this check reads hangs", timeout.as_secs());
            CheckResult::broken(hangs, "dmesg | tail -n 50")
        }
        mpsc::RecvTimeoutError::Disconnected => CheckResult::broken(
            "the check itself failed: this is a fault in mpu",
            "mpu doctor --json   # report its output",
        ),
    });
    Finding { check: id, group, level: result.level, seen: result.text, fix: result.fix }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_checks_share_name() {
        let mut names: Vec<&str> = checks().map(|(_, check)| check.0).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert!(names.len() == all && all >= 20);
    }

    #[test]
    fn hanging_check_is_reported_broken() {
        let hangs: fn(&Host) -> CheckResult = |_| loop {
            thread::park();
        };
        let found = run_check(&Host::this(), Group::Driver, &("x", "", hangs), Duration::from_millis(50));
        assert!(found.level == Level::Broken && found.seen.contains("hangs"));
    }
}
