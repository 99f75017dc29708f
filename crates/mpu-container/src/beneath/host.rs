//! Builds mounts out of the host's sight, and detects mount targets that are shared with the host.
//!
//! Source: mount_namespaces(7), "Shared subtrees"; proc(5), `mountinfo`; statx(2), `STATX_MNT_ID` (Linux 5.8).

use super::mount::unshare;
use super::{Handle, Tree};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

/// Calls a function with an empty, mounted tmpfs. Returns the function's detached tree.
///
/// Only a mounted file system can be copied as a detached tree. The tmpfs is mounted in the mount namespace of a short-lived
/// thread, so that neither the container nor the host sees it. Not in the calling thread: a new mount namespace would change
/// its root and working directory.
pub fn build_detached(make: impl FnOnce(&Tree) -> io::Result<Tree> + Send) -> io::Result<Tree> {
    std::thread::scope(|scope| {
        let work = || unshare().and_then(|()| mount_and_build(make));
        let thread = std::thread::Builder::new().spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread with mounts of its own has failed")))
    })
}

fn mount_and_build(make: impl FnOnce(&Tree) -> io::Result<Tree>) -> io::Result<Tree> {
    let memory = Tree::memory(1 << 20)?;
    let top = rustix::fs::openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    memory.attach(top.as_fd())?;
    make(&memory)
}

impl Handle {
    /// Whether a mount on this file would propagate to the host: it is the host's file at the same path, on a mount with shared
    /// propagation (`--volume /proc:/proc:rshared`).
    pub fn is_shared_with_host(&self) -> bool {
        let Ok(stat) = self.stat() else { return true };
        let same = fs::metadata(&self.path).is_ok_and(|host| (host.dev(), host.ino()) == (stat.st_dev, stat.st_ino));
        same && self.is_on_shared_mount().unwrap_or(true)
    }

    fn is_on_shared_mount(&self) -> io::Result<bool> {
        Ok(is_shared(&fs::read_to_string("/proc/thread-self/mountinfo")?, self.mount_id()?))
    }

    fn mount_id(&self) -> io::Result<u64> {
        Ok(rustix::fs::statx(self, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id)
    }

    /// Whether its mount is in one of these peer groups. `mountinfo` is that of its namespace. The paths may differ
    /// (`--volume /a:/b:rshared`).
    pub fn is_shared_with(&self, peers: &PeerGroups, mountinfo: &str) -> io::Result<bool> {
        let id = self.mount_id()?;
        Ok(shared_mounts(mountinfo).any(|(mount, group)| mount == id && peers.0.contains(&group)))
    }
}

/// Peer groups of a namespace's shared mounts. The numbers are valid in all namespaces.
#[derive(Debug, Default)]
pub struct PeerGroups(BTreeSet<u64>);

impl PeerGroups {
    pub fn of(mountinfo: &str) -> PeerGroups {
        PeerGroups(shared_mounts(mountinfo).map(|(_, group)| group).collect())
    }
}

/// IDs and peer groups of shared mounts.
fn shared_mounts(mountinfo: &str) -> impl Iterator<Item = (u64, u64)> + '_ {
    mountinfo.lines().filter_map(|line| {
        let id = line.split(' ').next()?.parse().ok()?;
        let mut options = line.split(' ').skip(6).take_while(|word| *word != "-");
        Some((id, options.find_map(|word| word.strip_prefix("shared:")?.parse().ok())?))
    })
}

/// Whether a mount is shared. An unlisted mount counts as shared.
fn is_shared(mountinfo: &str, id: u64) -> bool {
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
    fn shared_mounts_are_found_in_mountinfo() {
        let list = "30 1 0:20 / /proc rw shared:5 - proc proc rw\n31 1 0:20 / /a rw master:5 - proc shared:1 rw\n\
                    32 1 0:20 / /shared:9 rw - proc proc rw\n33 1 0:2 / /b rw master:1 shared:7 - proc proc rw\n";
        assert_eq!([30, 31, 32, 33, 34].map(|id| is_shared(list, id)), [true, false, false, true, true]);
        assert_eq!(shared_mounts(list).collect::<Vec<_>>(), [(30, 5), (33, 7)]);
    }
}
