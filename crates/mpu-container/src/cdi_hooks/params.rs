//! `disable-device-node-modification`: shows `ModifyDeviceFiles: 0` in the container's copy of the driver's parameters.
//!
//! Otherwise NVML and nvidia-smi create and remove device nodes of the container.
//!
//! Source: NVIDIA's README, "Log on device files"; `/proc/driver/nvidia/params`.

use super::outcome::{HookError, Log};
use crate::beneath::host::build_detached;
use crate::beneath::{Restrictions, Root, Tree};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;

/// The driver's parameters, on the host and in the container.
pub const PARAMS: &str = "/proc/driver/nvidia/params";

/// Mounts a changed copy of the host's parameters over the container's. Does nothing if the host or the container has no such file, or
/// if the value is already 0.
pub(super) fn disable(
    host: &Path,
    root: impl FnOnce() -> Result<Rc<Root>, HookError>,
    log: Log,
) -> Result<(), HookError> {
    let text = match std::fs::read_to_string(host) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        text => text.map_err(|source| HookError::System { act: "read the driver's parameters", source })?,
    };
    let Some(changed) = without_modification(&text) else { return Ok(()) };
    let root = root()?;
    let Some(target) = root.find(Path::new(PARAMS))? else { return Ok(()) };
    if root.read_file(Path::new(PARAMS), 1 << 16)? == changed.as_bytes() {
        log.debug(|| format!("{PARAMS} is as it should be"));
        return Ok(());
    }
    if target.is_shared_with_host() {
        log.warn(format!("{PARAMS} is the host's own, mounted shared: it stays as it is"));
        return Ok(());
    }
    let tree = build_detached(|memory| write_params(memory, changed.as_bytes()))
        .map_err(|source| HookError::System { act: "make a file to mount", source })?;
    let restrictions = Restrictions { read_only: true, no_exec: true, no_devices: true };
    tree.mount_restricted(&target, restrictions)?;
    log.debug(|| format!("mounted changed parameters on {PARAMS}"));
    Ok(())
}

/// The parameters with `ModifyDeviceFiles: 0`. None if the value is already 0 or missing.
pub fn without_modification(text: &str) -> Option<String> {
    const OFF: &str = "ModifyDeviceFiles: 0";
    let line = text.lines().find(|line| line.starts_with("ModifyDeviceFiles:"))?;
    (line.trim_end() != OFF).then(|| {
        let lines = text.lines().map(|line| if line.starts_with("ModifyDeviceFiles:") { OFF } else { line });
        lines.map(|line| format!("{line}\n")).collect()
    })
}

fn write_params(memory: &Tree, bytes: &[u8]) -> io::Result<Tree> {
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
        assert_eq!(without_modification(text).unwrap(), text.replace("Files: 1", "Files: 0"));
        assert_eq!(without_modification(&without_modification(text).unwrap()), None);
        assert_eq!(without_modification("DeviceFileUID: 0\n"), None);
        assert_eq!(without_modification(""), None);
        assert_eq!(without_modification("ModifyDeviceFiles: 2").unwrap(), "ModifyDeviceFiles: 0\n");
    }
}
