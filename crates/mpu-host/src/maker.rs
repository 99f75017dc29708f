//! Decides by its descriptors whether a process can have made a client of the driver. The driver lists the PID of an ended process
//! while another process keeps its descriptors. A container chooses the names of its nodes, so only the device number counts.

use crate::folder::{Folder, is_driver_device};
use mpu_core::HostPid;
use std::cell::Cell;
use std::io;
use std::path::Path;

/// The most descriptors of one process to examine, in the tables of all its threads; a thread counts as one.
const MAX_DESCRIPTORS: usize = 1 << 14;

/// The limit for all processes together: a quarter of a second.
const MAX_TOTAL: usize = 1 << 16;

/// A character device's two numbers, if it is one.
type Device = Option<(u32, u32)>;

/// The number of descriptors that may still be examined.
#[derive(Debug)]
pub struct Look {
    remaining: Cell<usize>,
    is_drivers_device: fn(Device) -> bool,
}

/// The result for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Has {
    /// It has a descriptor of the driver.
    Yes,
    No,
    /// None among the first [`MAX_DESCRIPTORS`].
    TooMany,
    /// Examined in part or not at all: the common limit is reached.
    NoRoom,
}

impl Look {
    /// For tests: another device stands for the driver's, with another limit.
    #[cfg(any(test, feature = "fake"))]
    pub fn at_most(descriptors: usize, is_drivers_device: fn(Device) -> bool) -> Look {
        Look { remaining: Cell::new(descriptors), is_drivers_device }
    }

    /// The descriptors that may still be examined.
    pub fn left(&self) -> usize {
        self.remaining.get()
    }

    fn take(&self, looked: usize) {
        self.remaining.set(self.remaining.get().saturating_sub(looked));
    }
}

impl Default for Look {
    fn default() -> Look {
        Look { remaining: Cell::new(MAX_TOTAL), is_drivers_device: is_driver_device }
    }
}

/// Whether a process has a descriptor of the driver, in the table of any of its threads. If its first thread has ended, or it may not be
/// examined, the process counts as a user of the driver. `proc` is the path of `/proc`.
pub fn find_driver_fd(proc: &Path, pid: HostPid, look: &Look) -> Has {
    let most = MAX_DESCRIPTORS.min(look.left());
    let mut remaining = most;
    let has = most != 0 && has_descriptor(proc, pid, look.is_drivers_device, &mut remaining);
    // A process counts as one.
    look.take(1 + most - remaining);
    match (has, remaining) {
        (true, _) => Has::Yes,
        (false, 0) if most < MAX_DESCRIPTORS => Has::NoRoom,
        (false, 0) => Has::TooMany,
        (false, _) => Has::No,
    }
}

/// Finds a living thread of a process whose first thread has ended. Returns its folder below the process's own.
pub fn find_live_thread(proc: &Path, pid: HostPid, look: &Look) -> Option<String> {
    let folder = Folder::at(proc.join(pid.get().to_string())).ok()?;
    let threads = folder.names("task", MAX_DESCRIPTORS.min(look.left())).ok()?;
    let mut living = threads.into_iter().map(|thread| format!("task/{thread}")).filter(|thread| {
        look.take(1);
        folder.read(&format!("{thread}/stat")).is_ok_and(|stat| !has_ended(&stat))
    });
    living.next()
}

/// Whether a `stat` file is of an ended thread that is not reaped yet.
pub fn has_ended(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// The start of a process, in ticks since the host's boot: field 22 of its `stat`. The program's name before it can contain any
/// character.
pub fn started_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn has_descriptor(proc: &Path, pid: HostPid, is_drivers_device: fn(Device) -> bool, remaining: &mut usize) -> bool {
    let own = pid.get().to_string();
    let Ok(folder) = Folder::at(proc.join(&own)) else { return false };
    if folder.read("stat").is_ok_and(|stat| has_ended(&stat)) {
        return true;
    }
    match is_in_table(&folder, "fd", is_drivers_device, remaining) {
        Ok(false) => {}
        other => return other.unwrap_or_else(|error| error.kind() == io::ErrorKind::PermissionDenied),
    }
    let threads = folder.names("task", *remaining).unwrap_or_default();
    let mut others = threads.iter().filter(|thread| **thread != own);
    others.any(|thread| {
        *remaining = remaining.saturating_sub(1);
        is_in_table(&folder, &format!("task/{thread}/fd"), is_drivers_device, remaining).unwrap_or(false)
    })
}

fn is_in_table(
    folder: &Folder,
    table: &str,
    is_drivers_device: fn(Device) -> bool,
    remaining: &mut usize,
) -> io::Result<bool> {
    if *remaining == 0 {
        return Ok(false);
    }
    for name in folder.names(table, *remaining)? {
        *remaining -= 1;
        let name = format!("{table}/{name}");
        if folder.is_path(&name)? && is_drivers_device(folder.device(&name).ok().flatten()) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
