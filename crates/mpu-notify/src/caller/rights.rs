//! Reads a caller's rights, and acts with exactly those rights.
//!
//! A driver checks the effective user (its objects belong to that user) and capabilities. The real and the saved user of this
//! thread stay root, so the caller's user can neither signal nor trace it.
//!
//! Source: proc_pid_status(5), user_namespaces(7), credentials(7), capabilities(7).

use crate::caller::proc_folder::field;
use crate::log::log;
use rustix::process::{getegid, getgroups};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, capabilities, set_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use std::io;

/// Rights of a thread that a driver checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rights {
    /// Effective user, as the host numbers it.
    pub(crate) uid: Uid,
    pub(crate) gid: Gid,
    pub(crate) groups: Vec<Gid>,
    /// Effective capabilities on the host, without those that hold in a user namespace only.
    pub(crate) capabilities: CapabilitySet,
}

/// This process's own rights.
#[derive(Debug, Clone)]
pub(crate) struct OwnRights {
    gid: Gid,
    groups: Vec<Gid>,
    sets: CapabilitySets,
}

impl OwnRights {
    /// The current rights, which must be root's.
    pub(crate) fn of_now() -> io::Result<OwnRights> {
        let mut sets = capabilities(None)?;
        sets.effective = sets.permitted;
        Ok(OwnRights { gid: getegid(), groups: getgroups()?, sets })
    }

    /// Calls `act` with a caller's rights, limited to our own.
    ///
    /// # Errors
    /// If the rights cannot be assumed. Then `act` was not called.
    ///
    /// # Panics
    /// Ends the process if its own rights cannot be restored.
    pub(crate) fn act_as<T>(&self, rights: &Rights, act: impl FnOnce() -> T) -> io::Result<T> {
        let notification = self.assume(rights);
        let result = notification.map(|()| act());
        if let Err(error) = self.restore(rights) {
            log!("cannot restore the supervisor's own rights after a call, so it ends: {error}");
            std::process::abort();
        }
        result
    }

    fn assume(&self, rights: &Rights) -> io::Result<()> {
        if rights.groups != self.groups {
            set_thread_groups(&rights.groups)?;
        }
        if rights.gid != self.gid {
            set_thread_res_gid(None, rights.gid, None)?;
        }
        if !rights.uid.is_root() {
            set_thread_res_uid(None, rights.uid, None)?;
        }
        if self.has_all_of(rights) {
            return Ok(());
        }
        let effective = rights.capabilities & self.sets.permitted;
        Ok(set_capabilities(None, CapabilitySets { effective, ..self.sets })?)
    }

    /// Whether the caller has all our capabilities, as in a privileged container. This saves two system calls. It is false for users other
    /// than root, because the kernel drops the capabilities with root.
    fn has_all_of(&self, rights: &Rights) -> bool {
        rights.uid.is_root() && rights.capabilities & self.sets.permitted == self.sets.effective
    }

    fn restore(&self, rights: &Rights) -> io::Result<()> {
        if !self.has_all_of(rights) {
            set_capabilities(None, self.sets)?;
        }
        if !rights.uid.is_root() {
            set_thread_res_uid(None, Uid::ROOT, None)?;
            // The kernel makes every permitted capability effective for root; set explicitly all the same.
            set_capabilities(None, self.sets)?;
        }
        if rights.gid != self.gid {
            set_thread_res_gid(None, self.gid, None)?;
        }
        if rights.groups != self.groups {
            set_thread_groups(&self.groups)?;
        }
        Ok(())
    }
}

/// Fields of `/proc/TID/status`. A file without one of the lines is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) tgid: u32,
    pub(crate) rights: Rights,
}

impl Status {
    pub(crate) fn parse(text: &str) -> Option<Status> {
        let field = |name| field(text, name);
        // Real, effective, saved and file-system ids, in this order.
        let effective = |name| field(name)?.split_whitespace().nth(1)?.parse::<u32>().ok();
        let groups = field("Groups")?.split_whitespace().map(|group| group.parse().map(Gid::from_raw));
        Some(Status {
            tgid: field("Tgid")?.parse().ok()?,
            rights: Rights {
                uid: Uid::from_raw(effective("Uid")?),
                gid: Gid::from_raw(effective("Gid")?),
                groups: groups.collect::<Result<_, _>>().ok()?,
                capabilities: CapabilitySet::from_bits_retain(u64::from_str_radix(field("CapEff")?, 16).ok()?),
            },
        })
    }
}

/// The host's number of root in a user namespace, by its `uid_map` (user_namespaces(7)).
pub(crate) fn root_of(map: &str) -> Option<u32> {
    let mut lines = map.lines().map(|line| line.split_whitespace());
    lines.find_map(|mut fields| if fields.next() == Some("0") { fields.next()?.parse().ok() } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::geteuid;

    #[test]
    fn act_as_takes_caller_rights_and_restores_own() {
        if !geteuid().is_root() {
            return println!("skipped: only root can act as another user");
        }
        let own = OwnRights::of_now().expect("our own");
        let before = (geteuid(), getegid(), getgroups().expect("ours"), capabilities(None).expect("ours"));
        let one = CapabilitySet::NET_BIND_SERVICE;
        let groups = vec![Gid::from_raw(77), Gid::from_raw(78)];
        let rights =
            Rights { uid: Uid::from_raw(1234), gid: Gid::from_raw(4321), groups: groups.clone(), capabilities: one };
        let (uid, gid, groups_then, sets, shadow) = own
            .act_as(&rights, || {
                let shadow = std::fs::read("/etc/shadow").map_err(|error| error.kind());
                (geteuid(), getegid(), getgroups(), capabilities(None), shadow)
            })
            .expect("root can");
        assert_eq!((uid, gid, groups_then.expect("theirs")), (rights.uid, rights.gid, groups));
        assert_eq!(sets.expect("theirs").effective, one & before.3.permitted);
        assert_eq!(shadow, Err(io::ErrorKind::PermissionDenied), "a file that root alone may read");
        assert_eq!((geteuid(), getegid(), getgroups().expect("ours"), capabilities(None).expect("ours")), before);
    }

    #[test]
    fn act_as_root_without_capabilities_has_none() {
        if !geteuid().is_root() {
            return println!("skipped: only root can act as another user");
        }
        let own = OwnRights::of_now().expect("our own");
        let none = CapabilitySet::empty();
        let rights = Rights { uid: Uid::ROOT, gid: own.gid, groups: own.groups.clone(), capabilities: none };
        let sets = own.act_as(&rights, || capabilities(None)).expect("root can").expect("theirs");
        assert_eq!(sets.effective, none);
        assert_eq!(capabilities(None).expect("ours").effective, own.sets.permitted);
        // A caller with all capabilities gives all of ours, as root and as another user.
        for uid in [0, 1234].map(Uid::from_raw) {
            let rights = Rights { uid, capabilities: CapabilitySet::all(), ..rights.clone() };
            let sets = own.act_as(&rights, || capabilities(None)).expect("root can").expect("theirs");
            assert_eq!(sets.effective, own.sets.permitted, "{uid:?}");
            assert_eq!(capabilities(None).expect("ours").effective, own.sets.permitted);
        }
    }

    #[test]
    fn status_without_line_is_rejected() {
        let whole =
            "Name:\tx\nTgid:\t7\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \nCapEff:\t00000000a80425fb\n";
        let status = Status::parse(whole).expect("whole");
        assert_eq!((status.tgid, status.rights.uid.as_raw(), status.rights.gid.as_raw()), (7, 2, 6));
        assert_eq!(status.rights.groups.len(), 2);
        assert_eq!(status.rights.capabilities.bits(), 0xa804_25fb);
        for line in ["Tgid", "Uid", "Gid", "Groups", "CapEff"] {
            assert_eq!(Status::parse(&whole.replace(line, "Other")), None, "{line}");
        }
    }

    #[test]
    fn user_namespace_root_follows_uid_map() {
        assert_eq!(root_of("         0     100000      65536\n"), Some(100_000));
        assert_eq!(root_of("1000 1000 1\n0 7 1\n"), Some(7));
        assert_eq!(root_of("1000 1000 1\n"), None);
    }
}
