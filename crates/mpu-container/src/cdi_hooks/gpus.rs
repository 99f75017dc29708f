//! `hide-other-gpus`: shows only the container's own GPUs in its procfs.
//!
//! Every container's procfs lists all GPUs of the host, so programs that count GPUs there (Slurm's `AutoDetect=nvidia`) count too
//! many. A GPU belongs to the container if the container has its node. This is not a security boundary: a container that may
//! unmount sees all GPUs again.
//!
//! Source: NVIDIA's open kernel modules, `nv-procfs.c` (`gpus/ADDRESS/information`); libnvidia-container,
//! `src/nvc_mount.c`, which shows the chosen GPUs' folders only. NVIDIA's CDI files (Container Toolkit 1.20) hide nothing.

use super::outcome::{HookError, Log};
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
/// Limit of GPUs, above any host's: without a procfs, the folder is the image's.
const MAX_GPUS: usize = 1000;

/// Mounts a folder with only the container's GPUs over the full one. An error does not stop the container.
pub fn hide_other_gpus(root: &Root, log: Log) {
    if let Err(error) = mount_own_gpus(root, log) {
        log.warn(format!("{GPUS} may show GPUs that the container does not have: {}", chain(&error)));
    }
}

fn mount_own_gpus(root: &Root, log: Log) -> Result<(), HookError> {
    let Some(target) = root.find(Path::new(GPUS))? else { return Ok(()) };
    let all = root.read_dir(Path::new(GPUS), MAX_GPUS)?;
    let minors = gpu_minors(root)?;
    let mut own = Vec::new();
    for entry in &all {
        let folder = Path::new(GPUS).join(&entry.name);
        if gpu_minor(root, &folder).is_some_and(|minor| minors.contains(&minor)) {
            own.push((entry.name.clone(), root.resolve(&folder)?));
        }
    }
    if own.len() == all.len() {
        return Ok(());
    }
    if target.is_shared_with_host() {
        log.warn(format!("{GPUS} is the host's own, mounted shared: it shows all {} GPUs", all.len()));
        return Ok(());
    }
    let shown = own.len();
    let mounted = build_tree(own).and_then(|tree| tree.attach(target.as_fd()).map_err(io::Error::from));
    mounted.map_err(|source| HookError::System { act: "make a folder of the container's GPUs", source })?;
    log.debug(|| format!("{GPUS} shows {shown} of {} GPUs", all.len()));
    Ok(())
}

/// The minor number of the GPU of a folder.
fn gpu_minor(root: &Root, folder: &Path) -> Option<u32> {
    let text = root.read_file(&folder.join("information"), 1 << 16).ok()?;
    field(&String::from_utf8_lossy(&text), "Device Minor")?.parse().ok()
}

/// A tmpfs with these folders mounted in it.
fn build_tree(own: Vec<(OsString, Handle)>) -> io::Result<Tree> {
    // A mount can be copied only in its own namespace, so not in `build_detached`.
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
        // Before Linux 5.12 the tmpfs stays writable. No other container uses it.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(tree),
        done => done.map(|()| tree),
    }
}

/// The minor numbers of the container's GPUs, from its device nodes.
pub fn gpu_minors(root: &Root) -> Result<Vec<u32>, BeneathError> {
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
