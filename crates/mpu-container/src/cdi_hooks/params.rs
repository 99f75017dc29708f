//! `disable-device-node-modification`: shows `ModifyDeviceFiles: 0` in the container's copy of the driver's parameters.
//!
//! Otherwise NVML and nvidia-smi make and remove device nodes, and so change what the runtime has set up.
//!
//! Source: NVIDIA's README, "Notes on device files"; `/proc/driver/nvidia/params`.

use super::outcome::{HookError, Notes};
use crate::beneath::host::build_detached;
use crate::beneath::{Restrictions, Root, Tree};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;

/// The parameters, on the host as in the container.
pub const PARAMS: &str = "/proc/driver/nvidia/params";

/// Mounts a changed copy of the host's parameters over the container's. Nothing to do if host or container has no such file, or the
/// value is 0 already.
pub(super) fn disable(
    host: &Path,
    root: impl FnOnce() -> Result<Rc<Root>, HookError>,
    notes: Notes,
) -> Result<(), HookError> {
    let text = match std::fs::read_to_string(host) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        text => text.map_err(|source| HookError::System { act: "read the driver's parameters", source })?,
    };
    let Some(changed) = changed(&text) else { return Ok(()) };
    let root = root()?;
    let Some(target) = root.find(Path::new(PARAMS))? else { return Ok(()) };
    if root.read_file(Path::new(PARAMS), 1 << 16)? == changed.as_bytes() {
        notes.detail(|| format!("{PARAMS} is as it should be"));
        return Ok(());
    }
    if target.is_shared_with_host() {
        notes.warn(format!("{PARAMS} is the host's own, mounted shared: it stays as it is"));
        return Ok(());
    }
    let tree = build_detached(|memory| in_memory(memory, changed.as_bytes()))
        .map_err(|source| HookError::System { act: "make a file to mount", source })?;
    let restrictions = Restrictions { read_only: true, no_exec: true, no_devices: true };
    tree.mount_restricted(&target, restrictions)?;
    notes.detail(|| format!("mounted changed parameters on {PARAMS}"));
    Ok(())
}

/// The parameters with `ModifyDeviceFiles: 0`; none when they say so already, or nothing about it.
pub fn changed(text: &str) -> Option<String> {
    const OFF: &str = "ModifyDeviceFiles: 0";
    let line = text.lines().find(|line| line.starts_with("ModifyDeviceFiles:"))?;
    (line.trim_end() != OFF).then(|| {
        let lines = text.lines().map(|line| if line.starts_with("ModifyDeviceFiles:") { OFF } else { line });
        lines.map(|line| format!("{line}\n")).collect()
    })
}

fn in_memory(memory: &Tree, bytes: &[u8]) -> io::Result<Tree> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(memory, "params", flags, Mode::from_raw_mode(0o444))?);
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o444))?;
    file.write_all(bytes)?;
    Tree::of(&file, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn params_differ_in_one_line() {
        let text = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n";
        assert_eq!(changed(text).unwrap(), text.replace("Files: 1", "Files: 0"));
        assert_eq!(changed(&changed(text).unwrap()), None);
        assert_eq!(changed("DeviceFileUID: 0\n"), None);
        assert_eq!(changed(""), None);
        assert_eq!(changed("ModifyDeviceFiles: 2").unwrap(), "ModifyDeviceFiles: 0\n");
    }
}
