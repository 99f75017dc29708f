//! `update-application-profile`: limits the driver's EGL and Vulkan to the container's GPUs.
//!
//! Writes an application profile for all programs. Its setting is a mask: bit N is the GPU `/dev/nvidiaN`.
//!
//! Source: NVIDIA's README, "Application Profiles"; the setting and the file's name as NVIDIA's hook writes them.

use super::gpus::gpu_minors;
use super::outcome::{HookError, Log};
use crate::beneath::Root;
use std::path::Path;

pub const FOLDER: &str = "/etc/nvidia/nvidia-application-profiles-rc.d";
pub const FILE: &str = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf";

pub(super) fn update(root: &Root, log: Log) -> Result<(), HookError> {
    let minors = gpu_minors(root)?;
    for minor in minors.iter().filter(|minor| **minor > 63) {
        log.warn(format!("/dev/nvidia{minor} has no place in a mask of 64 GPUs"));
    }
    let mask = mask(minors);
    if mask == 0 {
        return Ok(());
    }
    let text = text(mask);
    if root.read_file(Path::new(FILE), 1 << 16).is_ok_and(|found| found == text.as_bytes()) {
        return Ok(());
    }
    root.create_dir_all(Path::new(FOLDER), 0o755)?;
    root.create_file(Path::new(FILE), text.as_bytes(), 0o444)?;
    log.debug(|| format!("wrote {FILE} for the GPUs {mask:#x}"));
    Ok(())
}

pub fn mask(minors: impl IntoIterator<Item = u32>) -> u64 {
    minors.into_iter().filter_map(|minor| 1u64.checked_shl(minor)).fold(0, |mask, bit| mask | bit)
}

/// The driver reads a hexadecimal number, which is not valid JSON.
pub fn text(mask: u64) -> String {
    let profile =
        r#"{"name":"_container_","settings":["EGLVisibleDGPUDevices",MASK]}"#.replace("MASK", &format!("{mask:#x}"));
    let rule = r#"{"pattern":[],"profile":"_container_"}"#;
    format!(r#"{{"profiles":[{profile}],"rules":[{rule}]}}"#)
}
