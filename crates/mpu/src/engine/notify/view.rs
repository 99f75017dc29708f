//! What one caller may see, and how it numbers that: the engine's `PidMap`.
//!
//! Owns how a rule of the policy becomes a view. The rules' meaning is mpu-core's, numbers are `numbers`' business.

use super::folder::Folder;
use super::numbers::Numbers;
use super::threads::InCall;
use mpu_core::policy::{Rules, Sees};
use mpu_core::{HostPid, PidMap, ViewPid};

/// A view.
pub(super) enum View<'a> {
    /// The processes of the caller's namespace.
    Own(Numbers<'a>),
    /// Those, and the processes beneath a cgroup.
    Group(Numbers<'a>, Vec<u8>),
    /// Everybody, by the host's numbers.
    Host,
}

impl<'a> View<'a> {
    /// What the rules give to a caller with this folder.
    pub(super) fn of(caller: &Folder, rules: &str, numbers: Numbers<'a>) -> View<'a> {
        // Most hosts have no rule, and a caller's cgroup is then nobody's business.
        let cgroup = if rules.is_empty() { None } else { caller.cgroup() };
        let (Some(cgroup), Ok(rules)) = (cgroup, Rules::parse(rules.as_bytes())) else { return View::Own(numbers) };
        match rules.of(&cgroup) {
            Sees::Own => View::Own(numbers),
            Sees::Group { depth } => View::Group(numbers, beginning(&cgroup, depth).to_vec()),
            Sees::Host => View::Host,
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
    let cgroup = Folder::of_process(pid).ok().and_then(|folder| folder.cgroup());
    let rest = cgroup.as_deref().and_then(|path| path.strip_prefix(group));
    rest.is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
}

impl PidMap for View<'_> {
    fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
        match self {
            View::Own(numbers) => numbers.view_of(pid),
            View::Group(numbers, group) => numbers.view_of(pid).or_else(|| {
                // One of the group without a number here goes by its host's, unless that is somebody else's number here.
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

/// A view behind what the driver means: whoever asks in a caller's place goes by the caller's number, and a thread by its process's.
pub(super) struct AsMeant<M> {
    pub(super) threads: InCall,
    pub(super) asker: HostPid,
    /// Only where the driver's answer names whoever asks.
    pub(super) caller: Option<HostPid>,
    pub(super) view: M,
}

impl<M: PidMap> PidMap for AsMeant<M> {
    fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
        let caller = self.caller.filter(|_| self.asker == pid);
        self.view.view_of(self.threads.process_of(caller.unwrap_or(pid))?)
    }

    fn host_of(&self, pid: ViewPid) -> Option<HostPid> {
        self.view.host_of(pid)
    }
}

#[cfg(test)]
mod tests {
    use super::super::threads::Threads;
    use super::*;

    struct Shifted;

    impl PidMap for Shifted {
        fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
            ViewPid::new(pid.get() - 100)
        }

        fn host_of(&self, pid: ViewPid) -> Option<HostPid> {
            HostPid::new(pid.get() + 100)
        }
    }

    #[test]
    fn the_one_who_asks_goes_by_the_callers_number_where_that_is_meant() {
        let pid = |number| HostPid::new(number).expect("not 0");
        let threads = Threads::default();
        let seen = |caller, host| {
            let threads = threads.in_call(mpu_abi::Control::RcErrorReport);
            AsMeant { asker: pid(700), caller, threads, view: Shifted }.view_of(pid(host))
        };
        assert_eq!(seen(Some(pid(150)), 700), ViewPid::new(50));
        assert_eq!(seen(Some(pid(150)), 151), ViewPid::new(51));
        assert_eq!(seen(None, 700), ViewPid::new(600));
    }

    #[test]
    fn a_group_is_the_beginning_of_its_members_paths() {
        let path = b"/kubepods.slice/pod1/a";
        assert_eq!(beginning(path, 1), b"/kubepods.slice");
        assert_eq!(beginning(path, 2), b"/kubepods.slice/pod1");
        assert_eq!(beginning(path, 3), path);
        assert_eq!(beginning(path, 9), path);
        assert_eq!(beginning(b"/", 1), b"/");
    }
}
