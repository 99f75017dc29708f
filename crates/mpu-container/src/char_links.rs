//! `/dev/char/MAJOR:MINOR` links to the driver's nodes.
//!
//! With systemd's cgroups, a runtime allows devices by these links. Without a link, a container loses its GPU at
//! `systemctl daemon-reload`. udev does not create them, because the driver's devices are not in the kernel's device model.
//!
//! Source: NVIDIA Container Toolkit's notice on containers that lose access to GPUs ("Failed to initialize NVML:
//! Unknown Error"); `systemd.resource-control(5)`, `DeviceAllow=`.

use crate::cdi::extra::{self, Mode};
use crate::driver::{DriverRoot, Node};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

pub(crate) type Link = (PathBuf, PathBuf);

pub(crate) fn ensure() -> io::Result<()> {
    let links = links_to_existing_nodes(&DriverRoot::host(), Path::new("/dev/char"));
    let made: Vec<io::Result<bool>> = links.iter().map(|link| make(link, false)).collect();
    made.into_iter().collect::<io::Result<Vec<bool>>>().map(drop)
}

pub(crate) fn links_to_existing_nodes(root: &DriverRoot, folder: &Path) -> Vec<Link> {
    links(extra::nodes(root, Mode::Management), folder)
}

/// Creates a link, or replaces one that does not lead to the device. Returns whether the link was missing or wrong. `dry` changes
/// nothing.
pub(crate) fn make(link: &Link, dry: bool) -> io::Result<bool> {
    let (path, target) = link;
    let device = |path: &Path| fs::metadata(path).ok().map(|node| node.rdev());
    let same = fs::read_link(path).is_ok_and(|found| found == *target);
    if same || (device(path).is_some() && device(path) == device(target)) {
        return Ok(false);
    }
    if !dry {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        // Rename a new link into place, so that the path never is missing.
        let beside = path.with_extension(format!("new-{}", std::process::id()));
        let _ = fs::remove_file(&beside);
        symlink(target, &beside)?;
        fs::rename(&beside, path).inspect_err(|_| drop(fs::remove_file(&beside)))?;
    }
    Ok(true)
}

pub(crate) fn links(nodes: Vec<Node>, folder: &Path) -> Vec<Link> {
    let link = |node: Node| (folder.join(format!("{}:{}", node.major, node.minor)), node.host);
    nodes.into_iter().map(link).collect::<BTreeMap<_, _>>().into_iter().collect()
}
