//! Identifies device nodes of the NVIDIA driver by device number, under any file name.
//!
//! Source: NVIDIA's driver README ("/dev/nvidia*"); `/proc/devices` for dynamic majors; `/sys/dev/char` for nodes of other subsystems
//! below a GPU (DRM, I²C, frame buffer).

use crate::folder::{NVIDIA_MAJOR, field};
use crate::host::Host;
use mpu_os::devices::character_majors;
use schemars::JsonSchema;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Minors of [`NVIDIA_MAJOR`] that are no GPU (nv.h of every release).
const CONTROL_MINOR: u32 = 255;
const MODESET_MINOR: u32 = 254;

/// A GPU that the driver has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverGpu {
    /// Its place in the order of PCI addresses, as in nvidia-smi.
    pub index: u32,
    /// The minor number of its node; none if the driver does not answer.
    pub minor: Option<u32>,
    /// None before the driver has started it.
    pub uuid: Option<String>,
    /// `0000:65:00.0`
    pub address: String,
}

/// Limit for the driver's description of its GPUs: the driver can be stuck with its locks held.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Reads a file of the driver. The driver can block it for ever.
pub(super) fn read(host: &Host, path: &str) -> Option<String> {
    host.text(path)
}

/// The GPUs of the loaded driver, as `/proc/driver/nvidia/gpus` lists them, and the threads that still wait for the driver's description of
/// one. If the driver does not describe a GPU in time, only its address and index are set.
pub(super) fn describe_gpus(
    host: &Host,
    read: fn(&Host, &str) -> Option<String>,
) -> (Vec<DriverGpu>, Vec<JoinHandle<()>>) {
    let folder = "/proc/driver/nvidia/gpus";
    let addresses = host.names(folder);
    let (sender, receiver) = mpsc::channel();
    let mut threads = Vec::new();
    for (index, address) in addresses.iter().enumerate() {
        let (sender, host, path) = (sender.clone(), host.clone(), format!("{folder}/{address}/information"));
        let describe = move || drop(sender.send((index, read(&host, &path).unwrap_or_default())));
        threads.push(thread::Builder::new().spawn(describe).ok());
    }
    drop(sender);
    let mut texts = vec![String::new(); addresses.len()];
    let end = Instant::now() + TIMEOUT;
    while let Ok((index, text)) = receiver.recv_timeout(end.saturating_duration_since(Instant::now())) {
        (texts[index], threads[index]) = (text, None);
    }
    let gpu = |((address, text), index): ((String, String), u32)| {
        let uuid = field(&text, "GPU UUID").filter(|uuid| !uuid.contains('?')).map(str::to_string);
        DriverGpu { index, minor: field(&text, "Device Minor").and_then(|minor| minor.parse().ok()), uuid, address }
    };
    let gpus = addresses.into_iter().zip(texts).zip(0..).map(gpu).collect();
    (gpus, threads.into_iter().flatten().collect())
}

/// A node of the driver.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct Node {
    /// As the driver calls it below /dev, whatever the process calls it.
    #[serde(rename = "node")]
    pub name: String,
    /// The GPU's index; null for a node of all GPUs.
    pub gpu: Option<u32>,
    /// The kernel module that an open node keeps loaded.
    #[serde(skip)]
    pub module: &'static str,
}

impl Node {
    fn new(name: String, gpu: Option<u32>, module: &'static str) -> Node {
        Node { name, gpu, module }
    }
}

/// The driver's nodes by device number.
pub struct Nodes<'a> {
    host: &'a Host,
    majors: BTreeMap<u32, String>,
    gpus: Vec<DriverGpu>,
    known: RefCell<BTreeMap<(u32, u32), Option<Node>>>,
}

impl<'a> Nodes<'a> {
    pub fn of(host: &'a Host, gpus: Vec<DriverGpu>) -> Nodes<'a> {
        let devices = host.text("/proc/devices").unwrap_or_default();
        let ours = character_majors(&devices).filter(|(_, name)| name.starts_with("nvidia"));
        let majors = ours.map(|(major, name)| (major, name.to_string())).collect();
        Nodes { host, majors, gpus, known: RefCell::default() }
    }

    /// With these majors as the driver's.
    #[cfg(test)]
    pub fn with_majors(host: &'a Host, majors: BTreeMap<u32, String>) -> Nodes<'a> {
        Nodes { majors, ..Nodes::of(host, describe_gpus(host, read).0) }
    }

    /// The node with this number, if it is the driver's.
    pub fn node(&self, device: (u32, u32)) -> Option<Node> {
        if let Some(known) = self.known.borrow().get(&device) {
            return known.clone();
        }
        let node = self.find(device);
        self.known.borrow_mut().insert(device, node.clone());
        node
    }

    fn find(&self, (major, minor): (u32, u32)) -> Option<Node> {
        if major == NVIDIA_MAJOR {
            return Some(match minor {
                CONTROL_MINOR => Node::new("nvidiactl".to_string(), None, "nvidia"),
                MODESET_MINOR => Node::new("nvidia-modeset".to_string(), None, "nvidia_modeset"),
                minor => {
                    let gpu = self.gpus.iter().find(|gpu| gpu.minor == Some(minor)).map(|gpu| gpu.index);
                    Node::new(format!("nvidia{minor}"), gpu, "nvidia")
                }
            });
        }
        match self.majors.get(&major).map(String::as_str) {
            Some("nvidia-uvm") if minor == 0 => Some(Node::new("nvidia-uvm".to_string(), None, "nvidia_uvm")),
            Some("nvidia-uvm") => Some(Node::new("nvidia-uvm-tools".to_string(), None, "nvidia_uvm")),
            Some("nvidia-caps") => Some(Node::new(format!("nvidia-caps/nvidia-cap{minor}"), None, "nvidia")),
            Some(name) => Some(Node::new(format!("{name}{minor}"), None, "nvidia")),
            None => self.below_gpu(major, minor),
        }
    }

    /// A node of another subsystem whose device is below a GPU in sysfs.
    fn below_gpu(&self, major: u32, minor: u32) -> Option<Node> {
        let link = std::fs::read_link(self.host.at(format!("/sys/dev/char/{major}:{minor}"))).ok()?;
        let parts: Vec<&str> = link.iter().filter_map(|part| part.to_str()).collect();
        let gpu = self.gpus.iter().find(|gpu| parts.contains(&gpu.address.as_str()))?;
        let module = match parts.iter().any(|part| ["drm", "graphics"].contains(part)) {
            true => "nvidia_drm",
            false => "nvidia",
        };
        Some(Node::new((*parts.last()?).to_string(), Some(gpu.index), module))
    }
}
