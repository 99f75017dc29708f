//! MIG's capability files, for containers that configure or watch their GPUs' MIG devices.
//!
//! Source: NVIDIA, "Multi-Instance GPU User Guide", device nodes and capabilities; libnvidia-container,
//! `src/cli/common.c`.

use crate::driver::{Driver, Gpu, Selection};
use std::path::PathBuf;
use thiserror::Error;

/// The directory in which access to MIG is handed out, below `/`.
pub const CAPABILITIES: &str = "proc/driver/nvidia/capabilities";

#[derive(Debug, Error, PartialEq, Eq)]
pub enum NotAll {
    #[error("{0}: only 'all' devices are currently supported")]
    Word(String),
    /// A container that has parts of a GPU cannot rule the whole of it.
    #[error("all: cannot enable {0} with specific MIG devices selected")]
    Parts(&'static str),
}

/// The GPUs of `--mig-config` or `--mig-monitor`: none without the option, else all selected GPUs in MIG mode. `devices` are the
/// values of `--device`.
pub fn gpus<'a>(
    option: &'static str,
    words: &[String],
    driver: &Driver,
    selection: &Selection<'a>,
    devices: &[String],
) -> Result<Vec<&'a Gpu>, NotAll> {
    let is_all = |word: &String| word.eq_ignore_ascii_case("all");
    let mut words = words.iter().filter(|word| !word.is_empty());
    match words.next() {
        None => return Ok(Vec::new()),
        Some(word) if !is_all(word) => return Err(NotAll::Word(word.clone())),
        Some(_) if !selection.migs.is_empty() && !devices.iter().any(is_all) => return Err(NotAll::Parts(option)),
        Some(_) => {}
    }
    Ok(selection.gpus.iter().copied().filter(|gpu| folder(driver, gpu).is_dir()).collect())
}

fn folder(driver: &Driver, gpu: &Gpu) -> PathBuf {
    driver.root.kernel_files.join(CAPABILITIES).join(name(gpu))
}

/// The same, below [`CAPABILITIES`].
pub fn name(gpu: &Gpu) -> String {
    format!("gpu{}/mig", gpu.minor)
}

/// The minor numbers of all capabilities that the GPU's MIG devices can have, there or not: who configures MIG creates
/// devices.
pub fn minors(driver: &Driver, gpu: &Gpu) -> Vec<u32> {
    let list = std::fs::read_to_string(driver.root.kernel_files.join("proc/driver/nvidia-caps/mig-minors"));
    let prefix = format!("gpu{}/", gpu.minor);
    let list = list.unwrap_or_default();
    list.lines()
        .filter(|line| line.starts_with(&prefix))
        .filter_map(|line| line.split(' ').nth(1)?.parse().ok())
        .collect()
}
