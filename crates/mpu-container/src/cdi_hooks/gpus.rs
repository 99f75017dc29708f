//! `hide-other-gpus`: shows only the container's own GPUs in its procfs.
//!
//! The kernel shows every GPU of the host in every container's procfs, so programs that count GPUs there (Slurm's
//! `AutoDetect=nvidia`) count too many. A GPU is the container's if the container has its node. This is no protection: a
//! container that may unmount sees all GPUs again.
//!
//! Source: NVIDIA's open kernel modules, `nv-procfs.c` (`gpus/ADDRESS/information`); libnvidia-container,
//! `src/nvc_mount.c`, which shows the chosen GPUs' folders only. NVIDIA's CDI files (Container Toolkit 1.20) hide nothing.

use super::outcome::{HookError, Notes};
use crate::beneath::host::build_detached;
use crate::beneath::{BeneathError, Handle, MAX_NAMES, Restrictions, Root, Tree};
use crate::chain::chain;
use crate::driver::field;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

const GPUS: &str = "/proc/driver/nvidia/gpus";
/// More GPUs than any host has: without a proc file system, the folder is the image's.
const MOST: usize = 1000;

/// Mounts a folder with the container's own GPUs over the full one. An error does not stop the container.
pub fn hide(root: &Root, notes: Notes) {
    if let Err(error) = cover(root, notes) {
        notes.warn(format!("{GPUS} may show GPUs that the container does not have: {}", chain(&error)));
    }
}

/// Where there is nothing to hide, nothing is done.
fn cover(root: &Root, notes: Notes) -> Result<(), HookError> {
    let Some(target) = root.find(Path::new(GPUS))? else { return Ok(()) };
    let all = root.read_dir(Path::new(GPUS), MOST)?;
    let minors = minors(root)?;
    let mut own = Vec::new();
    for entry in &all {
        let folder = Path::new(GPUS).join(&entry.name);
        if minor(root, &folder).is_some_and(|minor| minors.contains(&minor)) {
            own.push((entry.name.clone(), root.resolve(&folder)?));
        }
    }
    if own.len() == all.len() {
        return Ok(());
    }
    if target.is_shared_with_host() {
        notes.warn(format!("{GPUS} is the host's own, mounted shared: it shows all {} GPUs", all.len()));
        return Ok(());
    }
    let shown = own.len();
    let mounted = tree(own).and_then(|tree| tree.attach(target.as_fd()).map_err(io::Error::from));
    mounted.map_err(|source| HookError::System { act: "make a folder of the container's GPUs", source })?;
    notes.detail(|| format!("{GPUS} shows {shown} of {} GPUs", all.len()));
    Ok(())
}

/// The minor number of a folder's GPU.
fn minor(root: &Root, folder: &Path) -> Option<u32> {
    let text = root.read_file(&folder.join("information"), 1 << 16).ok()?;
    field(&String::from_utf8_lossy(&text), "Device Minor")?.parse().ok()
}

/// A folder in memory with these folders in it.
fn tree(own: Vec<(OsString, Handle)>) -> io::Result<Tree> {
    // Copied here: a mount is copied in the namespace that it is in.
    let own: Vec<_> =
        own.into_iter().map(|(name, folder)| Ok((name, Tree::of(&folder, true)?))).collect::<io::Result<_>>()?;
    let tree = build_detached(|memory| {
        for (name, folder) in &own {
            rustix::fs::mkdirat(memory, name, Mode::from_raw_mode(0o555))?;
            let place = rustix::fs::openat(memory, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            folder.attach(place.as_fd())?;
        }
        Tree::of(memory, true)
    })?;
    match tree.restrict(Restrictions { read_only: true, no_exec: true, no_devices: true }) {
        // Before Linux 5.12: the folder in memory can be written to, and no other process has it.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(tree),
        done => done.map(|()| tree),
    }
}

/// The numbers of the container's GPUs, by its device nodes.
pub fn minors(root: &Root) -> Result<Vec<u32>, BeneathError> {
    let entries = match root.read_dir(Path::new("/dev"), MAX_NAMES) {
        Err(error) if error.is_missing() => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut minors = Vec::new();
    for entry in entries {
        let is_gpu = entry
            .name
            .to_str()
            .and_then(|name| name.strip_prefix("nvidia"))
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()));
        if is_gpu {
            let node = root.find(&Path::new("/dev").join(&entry.name))?;
            minors.extend(node.map(|node| node.device()).transpose()?.flatten().map(|(_, minor)| minor));
        }
    }
    Ok(minors)
}
