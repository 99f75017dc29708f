//! What `/proc/TID/status` and `uid_map` tell of a thread's rights.
//!
//! Owns their reading: a line that is not there is no right of anybody. Outside truth: proc_pid_status(5), user_namespaces(7).

use super::folder::field;
use super::rights::Rights;
use rustix::thread::{CapabilitySet, Gid, Uid};

/// What `/proc/TID/status` tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) tgid: u32,
    pub(super) rights: Rights,
}

impl Status {
    pub(super) fn parse(text: &str) -> Option<Status> {
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

/// Who is root in a user namespace, by its `uid_map`: user_namespaces(7).
pub(super) fn root_of(map: &str) -> Option<u32> {
    let mut lines = map.lines().map(|line| line.split_whitespace());
    lines.find_map(|mut words| if words.next() == Some("0") { words.next()?.parse().ok() } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_not_there_is_no_right_of_anybody() {
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
    fn root_of_a_user_namespace_is_who_its_map_says() {
        assert_eq!(root_of("         0     100000      65536\n"), Some(100_000));
        assert_eq!(root_of("1000 1000 1\n0 7 1\n"), Some(7));
        assert_eq!(root_of("1000 1000 1\n"), None);
    }
}
