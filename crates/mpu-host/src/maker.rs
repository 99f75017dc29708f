//! Who can have made a client of the driver's.
//!
//! Owns how far descriptors are looked at for that. The driver does not tell: it lists a process that has ended by its number for as long
//! as anybody keeps its descriptors. What a node is called is its container's to say, so that what counts is which device it is.

use crate::folder::{Folder, is_drivers};
use mpu_core::HostPid;
use std::cell::Cell;
use std::io;
use std::path::Path;

/// Descriptors of one process that are looked at for one of the driver's, in the tables of all its threads; a thread counts as one itself.
const MOST_DESCRIPTORS: usize = 1 << 14;

/// The same for all processes that are looked at together: a quarter of a second.
const MOST_TOGETHER: usize = 1 << 16;

/// A character device's two numbers, if it is one.
type Device = Option<(u32, u32)>;

/// How much may still be looked at.
#[derive(Debug)]
pub struct Look {
    left: Cell<usize>,
    is_wanted: fn(Device) -> bool,
}

/// What was found out about a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Has {
    /// It has a descriptor of the driver's.
    Yes,
    No,
    /// None among as many as are looked at of one process.
    TooMany,
    /// It was not looked at, or in part only: the look was at its end.
    NoRoom,
}

impl Look {
    pub fn new() -> Look {
        Look { left: Cell::new(MOST_TOGETHER), is_wanted: is_drivers }
    }

    /// As if descriptors of another device were the driver's, and no more than so many may be looked at.
    #[cfg(any(test, feature = "fake"))]
    pub fn at_most(descriptors: usize, is_wanted: fn(Device) -> bool) -> Look {
        Look { left: Cell::new(descriptors), is_wanted }
    }

    /// How many descriptors it has left.
    pub fn left(&self) -> usize {
        self.left.get()
    }

    fn take(&self, looked: usize) {
        self.left.set(self.left.get().saturating_sub(looked));
    }
}

impl Default for Look {
    fn default() -> Look {
        Look::new()
    }
}

/// Whether a process has a descriptor of the driver's, in the table of any of its threads. One whose first thread has ended has none there
/// any more, whatever it had: it counts as a user of the driver, as does one that may not be looked at. `proc` is where `/proc` is.
pub fn has_the_driver(proc: &Path, pid: HostPid, look: &Look) -> Has {
    let most = MOST_DESCRIPTORS.min(look.left());
    let mut left = most;
    let has = most != 0 && is_among(proc, pid, look.is_wanted, &mut left);
    // A process is a look, too.
    look.take(1 + most - left);
    match (has, left) {
        (true, _) => Has::Yes,
        (false, 0) if most < MOST_DESCRIPTORS => Has::NoRoom,
        (false, 0) => Has::TooMany,
        (false, _) => Has::No,
    }
}

/// A thread of a process whose first one has ended, as a folder's name below the process's own; none if no other lives.
pub fn living_thread(proc: &Path, pid: HostPid, look: &Look) -> Option<String> {
    let folder = Folder::at(proc.join(pid.get().to_string())).ok()?;
    let threads = folder.names("task", MOST_DESCRIPTORS.min(look.left())).ok()?;
    let mut living = threads.into_iter().map(|thread| format!("task/{thread}")).filter(|thread| {
        look.take(1);
        folder.read(&format!("{thread}/stat")).is_ok_and(|stat| !has_ended(&stat))
    });
    living.next()
}

/// Whether a `stat` file is of a thread that has ended and is not reaped yet.
pub fn has_ended(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// When a process started, in ticks since the host's boot: field 22 of its `stat`. The program's name before it can hold anything.
pub fn started_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn is_among(proc: &Path, pid: HostPid, is_wanted: fn(Device) -> bool, left: &mut usize) -> bool {
    let own = pid.get().to_string();
    let Ok(folder) = Folder::at(proc.join(&own)) else { return false };
    if folder.read("stat").is_ok_and(|stat| has_ended(&stat)) {
        return true;
    }
    match is_in_table(&folder, "fd", is_wanted, left) {
        Ok(false) => {}
        other => return other.unwrap_or_else(|error| error.kind() == io::ErrorKind::PermissionDenied),
    }
    let threads = folder.names("task", *left).unwrap_or_default();
    let mut others = threads.iter().filter(|thread| **thread != own);
    others.any(|thread| {
        *left = left.saturating_sub(1);
        is_in_table(&folder, &format!("task/{thread}/fd"), is_wanted, left).unwrap_or(false)
    })
}

fn is_in_table(folder: &Folder, table: &str, is_wanted: fn(Device) -> bool, left: &mut usize) -> io::Result<bool> {
    if *left == 0 {
        return Ok(false);
    }
    for name in folder.names(table, *left)? {
        *left -= 1;
        let name = format!("{table}/{name}");
        if folder.is_path(&name) && is_wanted(folder.device(&name).ok().flatten()) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
