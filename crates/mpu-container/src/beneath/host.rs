//! Mounts that must not show on the host: builds them in a separate mount namespace, and detects targets that are shared with the host.
//!
//! Source: mount_namespaces(7), "Shared subtrees"; proc(5), `mountinfo`; statx(2), `STATX_MNT_ID` (Linux 5.8).

use super::mount::unshare;
use super::{Beneath, Tree};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

/// Calls a function with an empty file system in memory, and returns its result as a detached tree.
///
/// A tree can be copied from a mounted file system only. So that neither container nor host sees it, it is mounted in the
/// mount namespace of a short-lived thread. The calling thread cannot do it: entering a mount namespace changes its root and
/// working directory.
pub fn out_of_sight(make: impl FnOnce(&Tree) -> io::Result<Tree> + Send) -> io::Result<Tree> {
    std::thread::scope(|scope| {
        let work = || unshare().and_then(|()| in_own_mounts(make));
        let thread = std::thread::Builder::new().spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread with mounts of its own has failed")))
    })
}

fn in_own_mounts(make: impl FnOnce(&Tree) -> io::Result<Tree>) -> io::Result<Tree> {
    let memory = Tree::memory(1 << 20)?;
    let top = rustix::fs::openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    memory.attach(top.as_fd())?;
    make(&memory)
}

impl Beneath {
    /// Whether a mount on this would show on the host: it is the host's file at the same path, on a mount with shared propagation
    /// (`--volume /proc:/proc:rshared`).
    pub fn is_shared_with_the_host(&self) -> bool {
        let Ok(there) = self.stat() else { return true };
        let same = fs::metadata(&self.path).is_ok_and(|host| (host.dev(), host.ino()) == (there.st_dev, there.st_ino));
        same && self.passes_on().unwrap_or(true)
    }

    fn passes_on(&self) -> io::Result<bool> {
        Ok(passes_on(&fs::read_to_string("/proc/thread-self/mountinfo")?, self.mount()?))
    }

    fn mount(&self) -> io::Result<u64> {
        Ok(rustix::fs::statx(self, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id)
    }

    /// Whether its mount is in one of these peer groups, by `mountinfo` of its namespace. Another path may lead there
    /// (`--volume /a:/b:rshared`).
    pub fn is_shared_with(&self, peers: &Peers, mountinfo: &str) -> io::Result<bool> {
        let id = self.mount()?;
        Ok(groups(mountinfo).any(|(mount, group)| mount == id && peers.0.contains(&group)))
    }
}

/// Peer groups of a namespace's shared mounts. Their numbers are the same in all namespaces.
#[derive(Debug, Default)]
pub struct Peers(BTreeSet<u64>);

impl Peers {
    pub fn of(mountinfo: &str) -> Peers {
        Peers(groups(mountinfo).map(|(_, group)| group).collect())
    }
}

/// Shared mounts, each with its peer group.
fn groups(mountinfo: &str) -> impl Iterator<Item = (u64, u64)> + '_ {
    mountinfo.lines().filter_map(|line| {
        let id = line.split(' ').next()?.parse().ok()?;
        let mut options = line.split(' ').skip(6).take_while(|word| *word != "-");
        Some((id, options.find_map(|word| word.strip_prefix("shared:")?.parse().ok())?))
    })
}

/// Whether a mount is shared. A mount that is not in the list counts as shared.
fn passes_on(mountinfo: &str, id: u64) -> bool {
    let id = id.to_string();
    let line = mountinfo.lines().find(|line| line.split(' ').next() == Some(&id));
    line.is_none_or(|line| {
        line.split(' ').skip(6).take_while(|word| *word != "-").any(|word| word.starts_with("shared:"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_mount_passes_on() {
        let list = "30 1 0:20 / /proc rw shared:5 - proc proc rw\n31 1 0:20 / /a rw master:5 - proc shared:1 rw\n\
                    32 1 0:20 / /shared:9 rw - proc proc rw\n33 1 0:2 / /b rw master:1 shared:7 - proc proc rw\n";
        assert_eq!([30, 31, 32, 33, 34].map(|id| passes_on(list, id)), [true, false, false, true, true]);
        assert_eq!(groups(list).collect::<Vec<_>>(), [(30, 5), (33, 7)]);
    }
}
