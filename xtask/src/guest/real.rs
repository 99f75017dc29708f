//! The notation of NVIDIA's own driver in a row's era, and the path of its modules, which `crate::real_driver` makes.

use std::path::PathBuf;

use crate::paths;

/// Separates the era's number and the release of a real driver, in a row's era.
pub const MARK: char = '@';

/// The suffix of a closed driver's release.
pub const CLOSED: &str = "-closed";

/// The release in a row's era, if its driver is real.
pub fn release(era: &str) -> Option<&str> {
    Some(era.split_once(MARK)?.1)
}

/// The folder of a release's modules, once the verb has made them.
pub fn modules(kernel: &str, release: &str) -> PathBuf {
    paths::target_dir().join(format!("guest/modules/{kernel}/real/{release}"))
}
