//! MIG's capability files, for containers that configure or watch their GPUs' MIG devices.
//!
//! Source: NVIDIA, "Multi-Instance GPU User Guide", device nodes and capabilities; libnvidia-container,
//! `src/cli/common.c`.

use crate::driver::{Driver, Gpu, Selection};
use std::path::PathBuf;
use thiserror::Error;

/// The directory of the driver's capability files, relative to `/`.
pub const CAPABILITIES: &str = "proc/driver/nvidia/capabilities";

#[derive(Debug, Error, PartialEq, Eq)]
pub enum MigOptionError {
    #[error("{0}: only 'all' devices are currently supported")]
    NotAll(String),
    /// A container with parts of a GPU must not configure the whole GPU.
    #[error("all: cannot enable {0} with specific MIG devices selected")]
    SelectedMig(&'static str),
}

/// The GPUs of `--mig-config` or `--mig-monitor`: none without the option, else all selected GPUs in MIG mode. `devices` are the
/// values of `--device`.
pub fn gpus<'a>(
    option: &'static str,
    values: &[String],
    driver: &Driver,
    selection: &Selection<'a>,
    devices: &[String],
) -> Result<Vec<&'a Gpu>, MigOptionError> {
    let is_all = |value: &String| value.eq_ignore_ascii_case("all");
    let mut values = values.iter().filter(|value| !value.is_empty());
    if let Some(value) = values.clone().find(|value| !is_all(value)) {
        return Err(MigOptionError::NotAll(value.clone()));
    }
    match values.next() {
        None => return Ok(Vec::new()),
        Some(_) if !selection.migs.is_empty() && !devices.iter().any(is_all) => {
            return Err(MigOptionError::SelectedMig(option));
        }
        Some(_) => {}
    }
    Ok(selection.gpus.iter().copied().filter(|gpu| mig_directory(driver, gpu).is_dir()).collect())
}

fn mig_directory(driver: &Driver, gpu: &Gpu) -> PathBuf {
    driver.root.kernel_files.join(CAPABILITIES).join(mig_path(gpu))
}

/// A GPU's MIG directory, relative to [`CAPABILITIES`].
pub fn mig_path(gpu: &Gpu) -> String {
    format!("gpu{}/mig", gpu.minor)
}

/// The minor numbers of all possible MIG capabilities of a GPU, also of MIG devices that do not exist yet: a container that configures
/// MIG creates devices.
pub fn capability_minors(driver: &Driver, gpu: &Gpu) -> Vec<u32> {
    let list = std::fs::read_to_string(driver.root.kernel_files.join("proc/driver/nvidia-caps/mig-minors"));
    let prefix = format!("gpu{}/", gpu.minor);
    let list = list.unwrap_or_default();
    list.lines()
        .filter(|line| line.starts_with(&prefix))
        .filter_map(|line| line.split(' ').nth(1)?.parse().ok())
        .collect()
}
