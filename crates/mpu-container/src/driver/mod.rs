//! Finds the NVIDIA driver of this host: release, GPUs, files and device nodes.
//!
//! Source: NVIDIA's driver README, chapters "The /proc/driver/nvidia file system" and "Installed components".

mod elf;
mod error;
mod facts;
#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod fake_library;
pub mod files;
pub mod ldcache;
mod memory;
mod nodes;
mod proc;
mod root_dir;
mod select;
pub mod tables;
mod types;

use mpu_rm::{Client, Nodes, RmError};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

pub use error::{DriverError, UnknownDevice};
pub use memory::{LimitError, MemoryLimits};
pub use nodes::{LAST_IMEX_CHANNEL, Node, imex_channel};
pub(crate) use nodes::{Majors, device_number};
pub use proc::field;
pub use types::{DriverRoot, Gpu, Mig, Selection};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    pub root: DriverRoot,
    /// The kernel module's release, as in `580.159.04`.
    pub version: String,
    /// The GPUs, in the order of their PCI addresses, which is NVML's order.
    pub gpus: Vec<Gpu>,
}

impl Driver {
    /// Finds the loaded driver. Leaves out GPUs that the driver excludes. As NVML does, also leaves out GPUs that are less available than
    /// others: without a device node, or forbidden by the device cgroup.
    pub fn find(root: &DriverRoot) -> Result<Driver, DriverError> {
        let version = proc::version(root)?;
        let gpus = proc::gpus(root)?;
        let mut driver = Driver { root: root.clone(), version, gpus };
        driver.read_mig_uuids();
        Ok(driver)
    }

    /// Reads the UUIDs of MIG devices from the resource manager. Before 470 a MIG device had no own UUID.
    fn read_mig_uuids(&mut self) {
        let mut gpus = std::mem::take(&mut self.gpus);
        for gpu in gpus.iter_mut().filter(|gpu| gpu.mig_enabled) {
            let client = self.client(gpu);
            for at in 0..gpu.mig.len() {
                let mig = &gpu.mig[at];
                let open = |file: &str| std::fs::File::open(self.capability_node(file)?.host).ok();
                let [whole, part] = mig.access_files(gpu);
                let nodes = open(&whole).zip(open(&part));
                let uuid = client.as_ref().zip(nodes).and_then(|(client, (whole, part))| {
                    client.mig_uuid([mig.gpu_instance, mig.compute_instance], [whole.as_fd(), part.as_fd()])
                });
                gpu.mig[at].uuid = uuid.unwrap_or_default();
            }
        }
        self.gpus = gpus;
    }
}

/// The nodes of one GPU below the driver's device folder.
struct GpuNodes {
    dev: PathBuf,
    minor: u32,
}

impl GpuNodes {
    fn open(&self, name: &str) -> Result<File, RmError> {
        let path = self.dev.join(name);
        File::options().read(true).write(true).open(&path).map_err(|source| RmError::Open { path, source })
    }
}

impl Nodes for GpuNodes {
    fn open_control(&self) -> Result<File, RmError> {
        self.open("nvidiactl")
    }

    fn open_gpu(&self) -> Result<File, RmError> {
        self.open(&format!("nvidia{}", self.minor))
    }
}

impl Driver {
    fn client(&self, gpu: &Gpu) -> Option<Client> {
        let nodes = GpuNodes { dev: self.root.devices.join("dev"), minor: gpu.minor };
        Client::of_gpu(&nodes, self.version.parse().ok()?, &gpu.uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::fake::Host;
    use super::*;
    use crate::capability::Capabilities;

    #[test]
    fn nodes_come_with_devices_and_capabilities() {
        let host = Host::with_driver("580.159.04");
        host.gpu("0000:1b:00.0", 3, "GPU-aaaaaaaa-0000-0000-0000-000000000000");
        host.write("sys/bus/pci/devices/0000:1b:00.0/drm/renderD128/dev", "226:128\n");
        host.write("sys/bus/pci/devices/0000:1b:00.0/drm/card1/dev", "226:1\n");
        host.write("sys/bus/pci/devices/0000:1b:00.0/drm/version", "");
        let access = "DeviceFileMinor: 12\nDeviceFileMode: 292\nDeviceFileModify: 0\n";
        host.write("proc/driver/nvidia/capabilities/gpu3/mig/gi1/access", access);
        host.write("proc/driver/nvidia/capabilities/gpu3/mig/gi1/ci0/access", access.replace("12", "13"));
        host.write("proc/driver/nvidia/capabilities/gpu3/mig/gi1/ci1/access", access.replace("12", "14"));
        // A stale node: a character device with another number.
        host.link("/dev/null", "dev/nvidia-uvm");
        let driver = Driver::find(&host.root()).expect("a driver");
        assert!(driver.gpus[0].mig_enabled);

        let check = |words: &[&str], capabilities: &str, expected: &str| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let selection = driver.select(&words).expect("devices");
            let nodes = driver.nodes(&selection, Capabilities::parse(capabilities).expect("capabilities"));
            let short = |node: &Node| {
                assert_eq!(node.host, host.path().join(node.container.strip_prefix("/").expect("absolute")));
                format!("{} {}:{}", node.container.display(), node.major, node.minor).replace("/dev/", "")
            };
            assert_eq!(nodes.iter().map(short).collect::<Vec<_>>().join(", "), expected, "{words:?} {capabilities}");
        };
        check(&[], "utility", "nvidiactl 195:255");
        check(&["0"], "utility,compute", "nvidiactl 195:255, nvidia-uvm 510:0, nvidia-uvm-tools 510:1, nvidia3 195:3");
        check(
            &["0"],
            "graphics",
            "nvidiactl 195:255, nvidia-modeset 195:254, nvidia3 195:3, dri/card1 226:1, dri/renderD128 226:128",
        );
        check(
            &["0:1", "0:0"],
            "utility",
            "nvidiactl 195:255, nvidia3 195:3, nvidia-caps/nvidia-cap12 234:12, nvidia-caps/nvidia-cap14 234:14, \
             nvidia-caps/nvidia-cap13 234:13",
        );
        assert_eq!(driver.capability_node("mig/config"), None, "there is no such file");
        assert_eq!(driver.imex_node(0), None, "the major is a block device's");
    }
}
