//! The `/dev/char` links of `nvidia-ctk system create-dev-char-symlinks`: of existing or of all possible nodes.

use super::nodes;
use crate::capability::Capabilities;
use crate::cdi::extra::{self, Mode};
use crate::char_links::links;
use crate::driver::{Driver, DriverError, DriverRoot, Majors, Node, Selection};
use std::fs;
use std::path::Path;

pub(super) use crate::char_links::{Link, links_to_existing_nodes, make};

/// Links to all possible nodes, including those of future MIG devices.
pub(super) fn all_links(root: &DriverRoot, folder: &Path) -> Result<Vec<Link>, DriverError> {
    let driver = Driver::find(root)?;
    let mut all = nodes::control_nodes(root);
    let gpus = Selection { gpus: driver.gpus.iter().collect(), migs: Vec::new() };
    all.extend(driver.nodes(&gpus, Capabilities::NONE));
    let list = fs::read_to_string(root.kernel_files.join("proc/driver/nvidia-caps/mig-minors")).unwrap_or_default();
    let is_driver_device = |name: &str| {
        let gpu = name.split('/').next().and_then(|first| first.strip_prefix("gpu"));
        let minor = gpu.and_then(|digits| digits.parse::<u32>().ok());
        matches!(name, "config" | "monitor") || driver.gpus.iter().any(|gpu| Some(gpu.minor) == minor)
    };
    if let Some(major) = Majors::read(&root.kernel_files).get("nvidia-caps") {
        let pairs = list.lines().filter_map(|line| line.split_once(' ')).filter(|(name, _)| is_driver_device(name));
        for minor in pairs.filter_map(|(_, minor)| minor.trim().parse().ok()) {
            let path = format!("dev/nvidia-caps/nvidia-cap{minor}");
            all.push(Node { host: root.devices.join(&path), container: Path::new("/").join(path), major, minor });
        }
    }
    all.extend(extra::nodes(root, Mode::Management));
    Ok(links(all, folder))
}
