//! `nvidia-ctk info`.

use super::context::Failure;
use crate::cdi::{registry, Registry};
use crate::driver::{Driver, DriverRoot};
use clap::Args;
use std::path::PathBuf;

/// What `nvidia-ctk info` takes.
#[derive(Debug, Args)]
pub(super) struct Info {
    /// Where the driver's files are
    #[arg(long, env = "NVIDIA_CTK_DRIVER_ROOT", value_name = "DIR", default_value = "/")]
    driver_root: PathBuf,
}

impl Info {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let driver = Driver::find(&DriverRoot::at(&self.driver_root, None))?;
        let registry = Registry::read(&registry::DIRECTORIES.map(PathBuf::from));
        let mut text = format!("Driver: {}\n", driver.version);
        for gpu in &driver.gpus {
            let divided = if gpu.mig_enabled { ", divided by MIG" } else { "" };
            text.push_str(&format!("GPU {}: {}, {}, {}{divided}\n", gpu.index, gpu.model, gpu.uuid, gpu.bus));
            for mig in &gpu.mig {
                text.push_str(&format!("MIG {}:{}: {}\n", gpu.index, mig.index, mig.uuid));
            }
        }
        text.push_str(&format!("CDI devices: {}\n", registry.devices().count()));
        Ok(crate::output::print(&text)?)
    }
}
