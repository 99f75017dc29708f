//! Makes `/dev/char/MAJOR:MINOR` links to the driver's nodes.
//!
//! Owns nothing but these links. Systemd needs them: at `systemctl daemon-reload` it sets device rules by them, and a
//! container whose nodes have none loses its GPU.
//!
//! Outside truth: NVIDIA Container Toolkit's notice on containers that lose access to GPUs ("Failed to initialize NVML:
//! Unknown Error").

use super::nodes;
use crate::capability::Capabilities;
use crate::cdi::extra::{self, Mode};
use crate::driver::{Driver, DriverError, DriverRoot, Node, Selection};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{symlink, MetadataExt};
use std::path::{Path, PathBuf};

/// A link and what it points to.
pub(super) type Link = (PathBuf, PathBuf);

/// The links to the nodes that are there.
pub(super) fn of_existing(root: &DriverRoot, folder: &Path) -> Vec<Link> {
    links(extra::nodes(root, Mode::Management), folder)
}

/// The links to every node that could come to be: those of MIG devices that do not exist yet among them.
pub(super) fn of_all(root: &DriverRoot, folder: &Path) -> Result<Vec<Link>, DriverError> {
    let driver = Driver::find(root)?;
    let mut all = nodes::control(root);
    let gpus = Selection { gpus: driver.gpus.iter().collect(), migs: Vec::new() };
    all.extend(driver.nodes(&gpus, Capabilities::NONE));
    let list = fs::read_to_string(root.facts.join("proc/driver/nvidia-caps/mig-minors")).unwrap_or_default();
    let ours = |name: &str| {
        let gpu = name.split('/').next().and_then(|first| first.strip_prefix("gpu"));
        let minor = gpu.and_then(|digits| digits.parse::<u32>().ok());
        matches!(name, "config" | "monitor") || driver.gpus.iter().any(|gpu| Some(gpu.minor) == minor)
    };
    if let Some(major) = major_of(&root.facts, "nvidia-caps") {
        let pairs = list.lines().filter_map(|line| line.split_once(' ')).filter(|(name, _)| ours(name));
        for minor in pairs.filter_map(|(_, minor)| minor.trim().parse().ok()) {
            let path = format!("dev/nvidia-caps/nvidia-cap{minor}");
            all.push(Node { host: root.devices.join(&path), container: Path::new("/").join(path), major, minor });
        }
    }
    all.extend(extra::nodes(root, Mode::Management));
    Ok(links(all, folder))
}

/// Makes a link. One that already leads to the device is left; one that leads elsewhere or nowhere is replaced. Whether
/// there was anything to do is the result.
pub(super) fn make(link: &Link, dry: bool) -> io::Result<bool> {
    let (path, target) = link;
    let device = |path: &Path| fs::metadata(path).ok().map(|node| node.rdev());
    let same = fs::read_link(path).is_ok_and(|there| there == *target);
    if same || (device(path).is_some() && device(path) == device(target)) {
        return Ok(false);
    }
    if !dry {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        // Beside its place first: a link that is used must not be away for a moment.
        let beside = path.with_extension("mpu-new");
        let _ = fs::remove_file(&beside);
        symlink(target, &beside)?;
        fs::rename(&beside, path).inspect_err(|_| drop(fs::remove_file(&beside)))?;
    }
    Ok(true)
}

fn links(nodes: Vec<Node>, folder: &Path) -> Vec<Link> {
    let link = |node: Node| (folder.join(format!("{}:{}", node.major, node.minor)), node.host);
    nodes.into_iter().map(link).collect::<BTreeMap<_, _>>().into_iter().collect()
}

fn major_of(facts: &Path, name: &str) -> Option<u32> {
    let list = fs::read_to_string(facts.join("proc/devices")).ok()?;
    let characters = list.split("Block devices:").next()?;
    let mut pairs = characters.lines().filter_map(|line| line.trim().split_once(' '));
    pairs.find(|(_, word)| word.trim() == name)?.0.parse().ok()
}
