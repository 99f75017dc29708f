//! The driver itself, asked about one GPU through its own device nodes.

use super::{Driver, Gpu};
use mpu_rm::{Client, Nodes, RmError};
use std::fs::File;
use std::path::PathBuf;

/// The nodes of one GPU below the driver's device folder.
struct OfGpu {
    dev: PathBuf,
    minor: u32,
}

impl OfGpu {
    fn open(&self, name: &str) -> Result<File, RmError> {
        let path = self.dev.join(name);
        File::options().read(true).write(true).open(&path).map_err(|source| RmError::Open { path, source })
    }
}

impl Nodes for OfGpu {
    fn open_control(&self) -> Result<File, RmError> {
        self.open("nvidiactl")
    }

    fn open_gpu(&self) -> Result<File, RmError> {
        self.open(&format!("nvidia{}", self.minor))
    }
}

impl Driver {
    pub(super) fn client(&self, gpu: &Gpu) -> Option<Client> {
        let nodes = OfGpu { dev: self.root.devices.join("dev"), minor: gpu.minor };
        Client::of_gpu(&nodes, self.version.parse().ok()?, &gpu.uuid)
    }
}
