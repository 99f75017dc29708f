//! A row with NVIDIA's own driver: its notation as an era, and the path of its modules, which `crate::real_driver` makes.

use std::path::PathBuf;

use crate::paths;

/// Between the number of an era and the release, in a row's era: that driver is real.
pub const MARK: char = '@';

/// Behind the release of a driver that is closed.
pub const CLOSED: &str = "-closed";

/// The release in a row's era, if its driver is real.
pub fn release(era: &str) -> Option<&str> {
    Some(era.split_once(MARK)?.1)
}

/// Where the modules of a release lie once the verb has made them.
pub fn modules(kernel: &str, release: &str) -> PathBuf {
    paths::target_dir().join(format!("guest/modules/{kernel}/real/{release}"))
}
