//! What this process changes of itself before it has children.
//!
//! Owns the two changes that outlive an `exec` or a `fork`. Starts no process.

use crate::sys;
use std::io;

/// Puts the children that this thread makes from now on into a PID namespace of their own; the first becomes its PID 1.
/// The thread itself stays where it is.
///
/// # Errors
/// As `unshare(2)`: without CAP_SYS_ADMIN, or with no namespace to be had.
pub fn unshare_pid_namespace_of_children() -> io::Result<()> {
    sys::unshare_pid_namespace_of_children()
}

/// Lets no descriptor but the first three outlive the next `exec`, whoever gave them to this process: a process that lives on
/// holds no lock and no pipe of its starter's. Linux 5.11; on an older kernel they stay as they are.
pub fn keep_descriptors_from_children() {
    sys::keep_descriptors_from_children();
}
