//! Who can have made a client of the driver's.
//!
//! Owns how far descriptors are looked at for that. The driver does not tell: it lists a process that has ended by its number for as long
//! as anybody keeps its descriptors.

use super::folder::{is_drivers, Folder};
use mpu_core::HostPid;
use std::cell::Cell;
use std::io;

/// Descriptors of one process that are looked at for one of the driver's, in the tables of all its threads; a thread counts as one itself.
const MOST_DESCRIPTORS: usize = 1 << 14;

/// The same for all processes that one call makes us look at: a quarter of a second.
const MOST_OF_A_CALL: usize = 1 << 16;

/// How much one call may still make us look at. A process that there is no room for counts as one without the driver in that call; it is
/// looked at in the next one, since what was found out about others stays.
#[derive(Debug)]
pub(super) struct Look(Cell<usize>);

impl Look {
    pub(super) fn of_a_call() -> Look {
        Look(Cell::new(MOST_OF_A_CALL))
    }

    #[cfg(test)]
    pub(super) fn at_most(descriptors: usize) -> Look {
        Look(Cell::new(descriptors))
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.0.get()
    }
}

/// Whether a process has a descriptor of the driver's, in the table of any of its threads; none if the call may not look so far. A zombie has
/// none any more, whatever it had: it is believed, as is one that may not be looked at.
pub(super) fn has_the_driver(pid: HostPid, look: &Look) -> Option<bool> {
    let most = MOST_DESCRIPTORS.min(look.0.get());
    let mut left = most;
    let has = most != 0 && is_among(pid, &mut left);
    // A process is a look, too.
    look.0.set(look.0.get().saturating_sub(1 + most - left));
    let is_cut = left == 0 && most < MOST_DESCRIPTORS;
    (has || !is_cut).then_some(has)
}

fn is_among(pid: HostPid, left: &mut usize) -> bool {
    let Ok(folder) = Folder::of_process(pid) else { return false };
    if folder.read("stat").is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))) {
        return true;
    }
    match any_of_the_driver(&folder, "fd", left) {
        Ok(false) => {}
        other => return other.unwrap_or_else(|error| error.kind() == io::ErrorKind::PermissionDenied),
    }
    let own = pid.get().to_string();
    let threads = folder.names("task", *left).unwrap_or_default();
    let mut others = threads.iter().filter(|thread| **thread != own);
    others.any(|thread| {
        *left = left.saturating_sub(1);
        any_of_the_driver(&folder, &format!("task/{thread}/fd"), left).unwrap_or(false)
    })
}

fn any_of_the_driver(folder: &Folder, table: &str, left: &mut usize) -> io::Result<bool> {
    if *left == 0 {
        return Ok(false);
    }
    for name in folder.names(table, *left)? {
        *left -= 1;
        let name = format!("{table}/{name}");
        if folder.is_path(&name) && is_drivers(folder.device(&name).ok().flatten()) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_have_descriptors_of_its_own() {
        let own = HostPid::new(std::process::id()).expect("a PID");
        let folder = Folder::of_process(own).expect("our own");
        let null = std::fs::File::open("/dev/null").expect("/dev/null");
        let name = format!("fd/{}", std::os::fd::AsRawFd::as_raw_fd(&null));
        assert!(folder.is_path(&name) && folder.names("fd", 3).expect("ours").len() == 3);
        assert!(folder.names("task", MOST_DESCRIPTORS).expect("ours").contains(&own.get().to_string()));
        let socket = std::os::unix::net::UnixDatagram::unbound().expect("a socket");
        assert!(!folder.is_path(&format!("fd/{}", std::os::fd::AsRawFd::as_raw_fd(&socket))));
        let mut left = 1;
        assert!(
            !any_of_the_driver(&folder, "fd", &mut left).expect("ours") && left == 0,
            "no more than that are looked at"
        );
    }
}
