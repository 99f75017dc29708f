//! Settings shared by all threads of a supervisor. Root can change rules, budget and the retired state while it runs.

use crate::caller::namespace::Namespace;
use crate::caller::pid_lookup::Lookup;
use crate::caller::proc_folder::field;
use crate::caller::process::SharedProcesses;
use crate::caller::rights::OwnRights;
use crate::caller::rules::Rules;
use crate::caller::thread::own_user_namespace;
use crate::caller::threads::Threads;
use crate::counters::Counters;
use crate::filter::NATIVE;
use crate::log::log;
use crate::sys::{self, seccomp_data};
use mpu_core::HostPid;
use mpu_core::policy::BadRule;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, PoisonError, RwLock};

pub struct Setting {
    lookup: Lookup,
    pub(crate) host: Namespace,
    pub(crate) pid: HostPid,
    pub(crate) threads: Threads,
    /// Processes in the caches of all containers.
    pub(crate) processes: SharedProcesses,
    pub(crate) user_namespace: Namespace,
    pub(crate) own: OwnRights,
    supports_x32: bool,
    rules: RwLock<Arc<Rules>>,
    /// One container's processor time, in percent of one processor; 0 is no limit.
    pub(crate) budget: AtomicU32,
    /// All calls continue untranslated.
    pub(crate) retired: AtomicBool,
    pub(crate) counters: Counters,
}

impl Setting {
    /// Settings of this process, which must be root in the host's PID namespace.
    pub fn new(lookup: Lookup, rules: &str, budget: u32) -> io::Result<Setting> {
        let rules = Rules::read(rules).unwrap_or_else(|bad| {
            log!("line {} of the policy is no rule: each container sees its own processes only", bad.line);
            Rules::none()
        });
        Ok(Setting {
            lookup,
            host: Namespace::own()?,
            pid: HostPid::new(std::process::id()).ok_or(io::ErrorKind::InvalidData)?,
            threads: Threads::default(),
            processes: SharedProcesses::default(),
            user_namespace: own_user_namespace()?,
            own: OwnRights::of_now()?,
            supports_x32: supports_x32(),
            rules: RwLock::new(Arc::new(rules)),
            budget: AtomicU32::new(budget),
            retired: AtomicBool::new(false),
            counters: Counters::default(),
        })
    }

    /// Whether the end of a listener's last process wakes NOTIF_RECV: from Linux 6.11 on, like the ioctls of [`Lookup::Kernel`].
    pub(crate) fn end_wakes_receivers(&self) -> bool {
        self.lookup == Lookup::Kernel
    }

    /// Whether the kernel does not support this x32 call. The filter runs before the kernel checks that.
    pub(crate) fn is_unsupported_x32(&self, call: &seccomp_data) -> bool {
        call.arch == NATIVE && call.nr & sys::X32 != 0 && !self.supports_x32
    }

    pub(crate) fn lookup(&self) -> Lookup {
        self.lookup
    }

    pub(crate) fn rules(&self) -> Arc<Rules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps the current rules if one of the new ones is malformed.
    pub(crate) fn set_rules(&self, rules: &str) -> Result<(), BadRule> {
        let rules = Arc::new(Rules::read(rules)?);
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
        Ok(())
    }
}

/// Whether the kernel supports x32 system calls, or may. A process under a filter cannot test it: the unit's `SystemCallArchitectures=`
/// kills callers of x32.
fn supports_x32() -> bool {
    let is_filtered = |status: &str| field(status, "Seccomp") != Some("0");
    match std::fs::read_to_string("/proc/self/status") {
        Ok(status) if !is_filtered(&status) => sys::supports_x32(),
        // Debian's kernels have the parameter `syscall.x32`.
        _ => std::fs::read_to_string("/sys/module/syscall/parameters/x32")
            .map_or(true, |parameter| parameter.trim() != "N"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_core::policy::Sees;

    #[test]
    fn malformed_rules_keep_previous_rules() {
        let Ok(setting) = Setting::new(Lookup::of_this_kernel(), "host /a", 0) else {
            return println!("skipped: only root can answer for others");
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
