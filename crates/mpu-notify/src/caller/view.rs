//! What one caller may see, and how it numbers that: the engine's `PidMap`.
//!
//! Owns how a rule of the policy becomes a view. The rules' meaning is mpu-core's, numbers are `numbers`' business.

use crate::caller::accounts;
use crate::caller::numbers::Numbers;
use crate::caller::proc_folder::{Folder, of_process};
use crate::caller::process::Look;
use crate::caller::process::Process;
use crate::caller::process_cache::ProcessCache;
use crate::caller::rules::Rules;
use crate::caller::threads::InCall;
use mpu_core::policy::Sees;
use mpu_core::{HostPid, PidMap, ViewPid};

pub(crate) enum View<'a> {
    /// The processes of the caller's namespace.
    Own(Numbers<'a>),
    /// Those, and the processes beneath a cgroup.
    Group(Numbers<'a>, Vec<u8>),
    /// Everybody, by the host's numbers.
    Host,
}

impl<'a> View<'a> {
    /// What the rules give to a caller with this folder.
    pub(crate) fn of(caller: &Folder, rules: &Rules, numbers: Numbers<'a>) -> View<'a> {
        match rules.of(|| caller.cgroup()) {
            None | Some((Sees::Own, _)) => View::Own(numbers),
            Some((Sees::Group { depth }, cgroup)) => View::Group(numbers, beginning(&cgroup, depth).to_vec()),
            Some((Sees::Host, _)) => View::Host,
        }
    }
}

/// The path of the cgroup that so many names lead to.
fn beginning(path: &[u8], depth: u32) -> &[u8] {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let end = slashes.chain([path.len()]).nth(depth as usize);
    path.get(..end.unwrap_or(path.len())).unwrap_or(path)
}

fn is_beneath(pid: HostPid, group: &[u8]) -> bool {
    let cgroup = of_process(pid).ok().and_then(|folder| folder.cgroup());
    let rest = cgroup.as_deref().and_then(|path| path.strip_prefix(group));
    rest.is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
}

impl PidMap for View<'_> {
    fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
        match self {
            View::Own(numbers) => numbers.view_of(pid),
            View::Group(numbers, group) => numbers.view_of(pid).or_else(|| {
                // One of the group without a number here goes by its host's, unless that is another process's number here.
                let same = ViewPid::new(pid.get())?;
                (numbers.host_of(same).is_none() && is_beneath(pid, group)).then_some(same)
            }),
            View::Host => ViewPid::new(pid.get()),
        }
    }

    fn host_of(&self, pid: ViewPid) -> Option<HostPid> {
        match self {
            View::Own(numbers) => numbers.host_of(pid),
            View::Group(numbers, group) => numbers.host_of(pid).or_else(|| {
                let same = HostPid::new(pid.get())?;
                (numbers.view_of(same).is_none() && is_beneath(same, group)).then_some(same)
            }),
            View::Host => HostPid::new(pid.get()),
        }
    }
}

/// A view that can be asked about a process that is held.
pub(crate) trait OfHeld: PidMap {
    /// As [`PidMap::view_of`]; the process lives.
    fn view_of_held(&self, pid: HostPid, _process: &Process) -> Option<ViewPid> {
        self.view_of(pid)
    }
}

impl OfHeld for View<'_> {
    fn view_of_held(&self, pid: HostPid, process: &Process) -> Option<ViewPid> {
        match self {
            View::Own(numbers) => numbers.view_of_held(process),
            View::Group(..) | View::Host => self.view_of(pid),
        }
    }
}

/// A view behind what the driver means: a thread goes by its process's number, and a number only for a process that can be the one
/// the driver means.
pub(crate) struct Resolved<'a, M> {
    pub(crate) threads: InCall,
    /// Who can be meant; none where another witness tells.
    pub(crate) makers: Option<&'a ProcessCache>,
    /// How far the call may still look at those.
    pub(crate) look: Look,
    pub(crate) view: M,
}

impl<M> Resolved<'_, M> {
    fn can_be_meant(&self, pid: HostPid) -> bool {
        self.makers.is_none_or(|held| held.uses_the_driver(pid, &self.look))
    }
}

impl<M: OfHeld> PidMap for Resolved<'_, M> {
    fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
        let process = self.threads.process_of(pid)?;
        // One look whether it lives is enough for both.
        if let Some(known) = self.makers.and_then(|held| held.living(process)) {
            return self.view.view_of_held(process, &known).filter(|_| known.uses_the_driver(process, &self.look));
        }
        // Strangers are not looked at any closer.
        self.view.view_of(process).filter(|_| self.can_be_meant(process))
    }

    fn host_of(&self, pid: ViewPid) -> Option<HostPid> {
        self.view.host_of(pid).filter(|process| self.can_be_meant(*process))
    }

    fn started(&self, pid: HostPid) -> Option<u64> {
        accounts::started(pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::threads::Threads;

    struct Same;

    impl PidMap for Same {
        fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
            ViewPid::new(pid.get())
        }

        fn host_of(&self, pid: ViewPid) -> Option<HostPid> {
            HostPid::new(pid.get())
        }
    }

    impl OfHeld for Same {}

    #[test]
    fn pid_without_driver_use_is_not_translated() {
        let (held, threads) = (ProcessCache::default(), Threads::default());
        let own = HostPid::new(std::process::id()).expect("a PID");
        let view = ViewPid::new(own.get()).expect("a PID");
        let seen = |makers| {
            let threads = threads.in_call(mpu_abi::Control::GpuGetPids);
            let map = Resolved { threads, makers, look: Look::new(), view: Same };
            (map.view_of(own), map.host_of(view))
        };
        assert_eq!(seen(None), (Some(view), Some(own)));
        assert_eq!(seen(Some(&held)), (None, None), "this process has no descriptor of the driver's");
    }

    #[test]
    fn group_is_beginning_of_its_members_paths() {
        let path = b"/kubepods.slice/pod1/a";
        assert_eq!(beginning(path, 1), b"/kubepods.slice");
        assert_eq!(beginning(path, 2), b"/kubepods.slice/pod1");
        assert_eq!(beginning(path, 3), path);
        assert_eq!(beginning(path, 9), path);
        assert_eq!(beginning(b"/", 1), b"/");
    }
}
