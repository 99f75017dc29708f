//! A caller's view of PIDs by the policy's rules: the engine's `PidMap`.

use crate::caller::accounts;
use crate::caller::pid_lookup::PidLookup;
use crate::caller::proc_folder::{Folder, of_process};
use crate::caller::process::Look;
use crate::caller::process::Process;
use crate::caller::process_cache::ProcessCache;
use crate::caller::rules::Rules;
use crate::caller::threads::CallThreads;
use mpu_core::policy::Sees;
use mpu_core::{HostPid, PidMap, ViewPid};

pub(crate) enum View<'a> {
    /// The processes of the caller's namespace.
    Own(PidLookup<'a>),
    /// Also the processes beneath a cgroup.
    Group(PidLookup<'a>, Vec<u8>),
    /// All processes, by host PIDs.
    Host,
}

impl<'a> View<'a> {
    /// The view that the rules give to a caller with this folder.
    pub(crate) fn of(caller: &Folder, rules: &Rules, lookup: PidLookup<'a>) -> View<'a> {
        match rules.of(|| caller.cgroup()) {
            None | Some((Sees::Own, _)) => View::Own(lookup),
            Some((Sees::Group { depth }, cgroup)) => View::Group(lookup, cgroup_prefix(&cgroup, depth).to_vec()),
            Some((Sees::Host, _)) => View::Host,
        }
    }
}

/// The first `depth` components of a cgroup's path.
fn cgroup_prefix(path: &[u8], depth: u32) -> &[u8] {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let end = slashes.chain([path.len()]).nth(depth as usize);
    path.get(..end.unwrap_or(path.len())).unwrap_or(path)
}

fn is_in_cgroup(pid: HostPid, group: &[u8]) -> bool {
    let cgroup = of_process(pid).ok().and_then(|folder| folder.cgroup());
    let rest = cgroup.as_deref().and_then(|path| path.strip_prefix(group));
    rest.is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
}

impl PidMap for View<'_> {
    fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
        match self {
            View::Own(lookup) => lookup.view_of(pid),
            View::Group(lookup, group) => lookup.view_of(pid).or_else(|| {
                // A process of the group without a PID here gets its host PID, unless a process here has that number.
                let same = ViewPid::new(pid.get())?;
                (lookup.host_of(same).is_none() && is_in_cgroup(pid, group)).then_some(same)
            }),
            View::Host => ViewPid::new(pid.get()),
        }
    }

    fn host_of(&self, pid: ViewPid) -> Option<HostPid> {
        match self {
            View::Own(lookup) => lookup.host_of(pid),
            View::Group(lookup, group) => lookup.host_of(pid).or_else(|| {
                let same = HostPid::new(pid.get())?;
                (lookup.view_of(same).is_none() && is_in_cgroup(same, group)).then_some(same)
            }),
            View::Host => HostPid::new(pid.get()),
        }
    }

    fn started(&self, pid: HostPid) -> Option<u64> {
        accounts::start_time(pid)
    }
}

impl View<'_> {
    /// As [`PidMap::view_of`], of a cached process that lives.
    fn view_of_process(&self, pid: HostPid, process: &Process) -> Option<ViewPid> {
        match self {
            View::Own(lookup) => lookup.view_of_process(process),
            View::Group(..) | View::Host => self.view_of(pid),
        }
    }
}

/// Resolves the driver's numbers before translation. A TID becomes the PID of its process. A PID counts only if its process can have
/// made a client of the driver.
pub(crate) struct Resolved<'a, 'v> {
    pub(crate) threads: CallThreads,
    /// Checks for use of the driver; none if the record itself identifies its process.
    pub(crate) driver_users: Option<&'a ProcessCache>,
    /// The call's limit of descriptors to check.
    pub(crate) look: Look,
    pub(crate) view: View<'v>,
}

impl Resolved<'_, '_> {
    fn may_use_driver(&self, pid: HostPid) -> bool {
        self.driver_users.is_none_or(|cache| cache.uses_driver(pid, &self.look))
    }
}

impl PidMap for Resolved<'_, '_> {
    fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
        let process = self.threads.process_of(pid)?;
        // For a cached process one check that it lives is enough.
        if let Some(cached) = self.driver_users.and_then(|cache| cache.live(process)) {
            return self.view.view_of_process(process, &cached).filter(|_| cached.uses_driver(process, &self.look));
        }
        // For a process outside the view, use of the driver is not checked.
        self.view.view_of(process).filter(|_| self.may_use_driver(process))
    }

    fn host_of(&self, pid: ViewPid) -> Option<HostPid> {
        self.view.host_of(pid).filter(|process| self.may_use_driver(*process))
    }

    fn started(&self, pid: HostPid) -> Option<u64> {
        self.view.started(pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::threads::Threads;

    #[test]
    fn pid_without_driver_use_is_not_translated() {
        let (cache, threads) = (ProcessCache::default(), Threads::default());
        let own = HostPid::new(std::process::id()).expect("a PID");
        let view = ViewPid::new(own.get()).expect("a PID");
        let translate = |driver_users| {
            let threads = threads.for_call(mpu_abi::Control::GpuGetPids);
            let map = Resolved { threads, driver_users, look: Look::default(), view: View::Host };
            (map.view_of(own), map.host_of(view))
        };
        assert_eq!(translate(None), (Some(view), Some(own)));
        assert_eq!(translate(Some(&cache)), (None, None), "this process has no descriptor of the driver's");
    }

    #[test]
    fn cgroup_prefix_has_requested_depth() {
        let path = b"/kubepods.slice/pod1/a";
        assert_eq!(cgroup_prefix(path, 1), b"/kubepods.slice");
        assert_eq!(cgroup_prefix(path, 2), b"/kubepods.slice/pod1");
        assert_eq!(cgroup_prefix(path, 3), path);
        assert_eq!(cgroup_prefix(path, 9), path);
        assert_eq!(cgroup_prefix(b"/", 1), b"/");
    }
}
