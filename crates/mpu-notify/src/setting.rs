//! What every thread of a supervisor goes by.
//!
//! Owns what root can change while it runs: the rules, the budget, and that it is retired.

use crate::caller::namespace::Namespace;
use crate::caller::numbers::Lookup;
use crate::caller::proc_folder::field;
use crate::caller::process::Everybody;
use crate::caller::rights::Own;
use crate::caller::rules::Rules;
use crate::caller::thread::own_user_namespace;
use crate::caller::threads::Threads;
use crate::counters::Counters;
use crate::filter::NATIVE;
use crate::log::say;
use crate::sys::{self, seccomp_data};
use mpu_core::HostPid;
use mpu_core::policy::BadRule;
use rustix::fd::OwnedFd;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, PoisonError, RwLock};

pub struct Setting {
    lookup: Lookup,
    pub(crate) host: Namespace,
    pub(crate) pid: HostPid,
    pub(crate) threads: Threads,
    /// Processes that are held for all containers.
    pub(crate) held: Everybody,
    pub(crate) host_users: ((u64, u64), OwnedFd),
    pub(crate) own: Own,
    takes_x32: bool,
    rules: RwLock<Arc<Rules>>,
    /// Processor time that one container may have of us, in percent of one processor; 0 is no limit.
    pub(crate) budget: AtomicU32,
    /// Nothing is translated any more.
    pub(crate) retired: AtomicBool,
    pub(crate) counters: Counters,
}

impl Setting {
    /// That of this host and of this process, which must be root in the host's PID namespace.
    pub fn new(lookup: Lookup, rules: &str, budget: u32) -> io::Result<Setting> {
        let rules = Rules::read(rules).unwrap_or_else(|bad| {
            say!("line {} of the policy is no rule: everybody sees its own processes only", bad.line);
            Rules::none()
        });
        Ok(Setting {
            lookup,
            host: Namespace::own()?,
            pid: HostPid::new(std::process::id()).ok_or(io::ErrorKind::InvalidData)?,
            threads: Threads::default(),
            held: Everybody::default(),
            host_users: own_user_namespace()?,
            own: Own::of_now()?,
            takes_x32: takes_x32(),
            rules: RwLock::new(Arc::new(rules)),
            budget: AtomicU32::new(budget),
            retired: AtomicBool::new(false),
            counters: Counters::default(),
        })
    }

    /// Whether the kernel wakes those who wait for a caller when the last one has gone: Linux 6.11, as namespaces that can be asked.
    pub(crate) fn wakes_takers(&self) -> bool {
        self.lookup == Lookup::Kernel
    }

    /// Whether the kernel has no such system call, though a filter comes before it looks.
    pub(crate) fn kernel_lacks(&self, call: &seccomp_data) -> bool {
        call.arch == NATIVE && call.nr & sys::X32 != 0 && !self.takes_x32
    }

    pub(crate) fn lookup(&self) -> Lookup {
        self.lookup
    }

    pub(crate) fn rules(&self) -> Arc<Rules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Those of now stay if one of these is none.
    pub(crate) fn set_rules(&self, rules: &str) -> Result<(), BadRule> {
        let rules = Arc::new(Rules::read(rules)?);
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
        Ok(())
    }
}

/// Whether the kernel takes system calls of the x32 kind, as far as that can be known: the unit's `SystemCallArchitectures=` kills their callers.
/// Where it cannot, a call of that kind is taken for one.
fn takes_x32() -> bool {
    let is_filtered = |status: &str| field(status, "Seccomp") != Some("0");
    match std::fs::read_to_string("/proc/self/status") {
        Ok(status) if !is_filtered(&status) => sys::takes_x32(),
        // Debian's kernels tell (`syscall.x32`).
        _ => std::fs::read_to_string("/sys/module/syscall/parameters/x32").map_or(true, |told| told.trim() != "N"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_core::policy::Sees;

    #[test]
    fn malformed_rules_keep_previous_rules() {
        let Ok(setting) = Setting::new(Lookup::of_this_kernel(), "host /a", 0) else {
            println!("skipped: only root can answer for others");
            return;
        };
        let sees = |path: &str| setting.rules().of(|| Some(path.into())).map(|(sees, _)| sees);
        assert_eq!(sees("/a/b"), Some(Sees::Host));
        assert_eq!(setting.set_rules("group /b\nhots /a"), Err(BadRule { line: 2 }));
        assert_eq!((sees("/a/b"), setting.rules().text()), (Some(Sees::Host), "host /a"));
        setting.set_rules("group /b").expect("a rule");
        assert_eq!((sees("/a/b"), sees("/b")), (Some(Sees::Own), Some(Sees::Group { depth: 1 })));
        setting.set_rules("").expect("no rule");
        assert!(setting.rules().of(|| unreachable!("no rule needs its cgroup")).is_none());
    }

    #[test]
    fn malformed_policy_becomes_no_rules() {
        if let Ok(setting) = Setting::new(Lookup::of_this_kernel(), "everybody", 0) {
            assert_eq!(setting.rules().text(), "");
        }
    }
}
