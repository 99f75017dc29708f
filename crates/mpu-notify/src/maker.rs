//! Who can have made a client of the driver's, as far as one call may look.

use mpu_core::HostPid;
pub(super) use mpu_host::maker::Look;
use mpu_host::maker::{self, Has};
use std::path::Path;

/// Whether a process has a descriptor of the driver's; none if the call may not look so far. A process that there is no room for counts as
/// one without the driver in that call; it is looked at in the next one, since what was found out about others stays.
pub(super) fn has_the_driver(pid: HostPid, look: &Look) -> Option<bool> {
    match maker::has_the_driver(Path::new("/proc"), pid, look) {
        Has::Yes => Some(true),
        Has::No | Has::TooMany => Some(false),
        Has::NoRoom => None,
    }
}
