//! Whether what is mounted shows on the host, too.
//!
//! Outside truth: mount_namespaces(7), "Shared subtrees"; proc(5), `mountinfo`; statx(2), `STATX_MNT_ID` (Linux 5.8).

use rustix::fd::AsFd;
use rustix::fs::{AtFlags, StatxFlags};
use std::fs;
use std::io;

/// Whether the mount that a descriptor lies on passes on what happens to it.
pub fn is_shared(fd: impl AsFd) -> io::Result<bool> {
    let about = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    Ok(passes_on(&fs::read_to_string("/proc/thread-self/mountinfo")?, about.stx_mnt_id))
}

/// Whether a mount passes on what happens to it; a mount that is not on the list is taken for one that does.
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
    fn only_a_shared_mount_passes_on() {
        let list = "30 1 0:20 / /proc rw shared:5 - proc proc rw\n31 1 0:20 / /a rw master:5 - proc shared:1 rw\n\
                    32 1 0:20 / /shared:9 rw - proc proc rw\n33 1 0:2 / /b rw master:1 shared:7 - proc proc rw\n";
        assert_eq!([30, 31, 32, 33, 34].map(|id| passes_on(list, id)), [true, false, false, true, true]);
    }
}
