//! The device nodes that a container needs.
//!
//! Source: NVIDIA's driver README ("/dev/nvidia*"); `nv-caps.c` for the capability files; Linux,
//! `Documentation/admin-guide/devices.txt`.

use super::Driver;
use super::proc::{self, PciAddress};
use super::types::{Gpu, Mig, Selection};
use crate::capability::{Capabilities, Capability};
use mpu_os::devices::character_majors;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The path on the host. The node may not exist yet.
    pub host: PathBuf,
    pub container: PathBuf,
    pub major: u32,
    pub minor: u32,
}

/// The largest number of an IMEX channel: minor device numbers have 20 bits.
pub const LAST_IMEX_CHANNEL: u32 = (1 << 20) - 1;

/// Parses a channel's number: `7` or `channel7`. None if no channel can have that number.
pub fn imex_channel(word: &str) -> Option<u32> {
    let digits = word.strip_prefix("channel").unwrap_or(word);
    // `parse` would accept a sign.
    let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
    number.filter(|number| *number <= LAST_IMEX_CHANNEL)
}

/// NVIDIA's major number, assigned in the kernel's list of devices.
const NVIDIA: u32 = 195;

/// The source of a node's major number.
#[derive(Clone, Copy)]
enum Major {
    Fixed(u32),
    /// The name in `/proc/devices`.
    Listed(&'static str),
}

struct CommonNode {
    path: &'static str,
    major: Major,
    minor: u32,
    /// Needed with any of these capabilities. An empty list means always.
    with: &'static [Capability],
}

const fn common(path: &'static str, major: Major, minor: u32, with: &'static [Capability]) -> CommonNode {
    CommonNode { path, major, minor, with }
}

const COMMON: &[CommonNode] = &[
    common("dev/nvidiactl", Major::Fixed(NVIDIA), 255, &[]),
    common("dev/nvidia-uvm", Major::Listed("nvidia-uvm"), 0, &[Capability::Compute]),
    common("dev/nvidia-uvm-tools", Major::Listed("nvidia-uvm"), 1, &[Capability::Compute]),
    common("dev/nvidia-modeset", Major::Listed("nvidia-modeset"), 254, &[Capability::Display, Capability::Graphics]),
];

impl Driver {
    /// The nodes of these devices and capabilities. Nodes common to all GPUs come first.
    pub fn nodes(&self, selection: &Selection<'_>, capabilities: Capabilities) -> Vec<Node> {
        let majors = Majors::read(&self.root.kernel_files);
        let is_needed =
            |common: &&CommonNode| common.with.is_empty() || common.with.iter().any(|one| capabilities.has(*one));
        let common = COMMON.iter().filter(is_needed);
        let mut nodes: Vec<Node> =
            common.filter_map(|one| self.node(&majors, one.path.into(), one.major, one.minor)).collect();
        let needs_display = capabilities.has(Capability::Graphics) || capabilities.has(Capability::Display);
        for gpu in &selection.gpus {
            nodes.extend(self.node(&majors, format!("dev/nvidia{}", gpu.minor), Major::Fixed(NVIDIA), gpu.minor));
            if needs_display {
                nodes.extend(self.drm_nodes(gpu));
            }
        }
        for (gpu, mig) in &selection.migs {
            for access in mig.access_files(gpu) {
                // Compute instances of one GPU instance share its node.
                nodes.extend(self.capability_node(&access).filter(|node| !nodes.contains(node)));
            }
        }
        nodes
    }

    /// The node of a file below `/proc/driver/nvidia/capabilities`: `mig/config`, `mig/monitor` or
    /// `gpu0/mig/gi1/access`. None if the driver has no such capability.
    pub fn capability_node(&self, file: &str) -> Option<Node> {
        let text =
            fs::read_to_string(self.root.kernel_files.join("proc/driver/nvidia/capabilities").join(file)).ok()?;
        let minor = proc::field(&text, "DeviceFileMinor")?.parse().ok()?;
        let path = format!("dev/nvidia-caps/nvidia-cap{minor}");
        self.node(&Majors::read(&self.root.kernel_files), path, Major::Listed("nvidia-caps"), minor)
    }

    /// The node of an IMEX channel. None if the driver has no IMEX channels.
    pub fn imex_node(&self, channel: u32) -> Option<Node> {
        let path = format!("dev/nvidia-caps-imex-channels/channel{channel}");
        self.node(&Majors::read(&self.root.kernel_files), path, Major::Listed("nvidia-caps-imex-channels"), channel)
    }

    fn node(&self, majors: &Majors, path: String, major: Major, minor: u32) -> Option<Node> {
        let host = self.root.devices.join(&path);
        let major = match major {
            Major::Fixed(major) => Some(major),
            Major::Listed(name) => majors.get(name),
        };
        // Prefer `/proc/devices` to an existing node: after a reload, the module can have another major.
        let (major, minor) = major.map(|major| (major, minor)).or_else(|| device_number(&host))?;
        Some(Node { host, container: Path::new("/").join(path), major, minor })
    }

    /// The GPU's DRM nodes: `card0`, `renderD128`.
    fn drm_nodes(&self, gpu: &Gpu) -> Vec<Node> {
        let Some(address) = PciAddress::parse(&gpu.bus) else { return Vec::new() };
        let folder = self.root.kernel_files.join("sys/bus/pci/devices").join(address.to_sysfs_string()).join("drm");
        let names = fs::read_dir(folder.clone()).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let mut nodes: Vec<Node> = names
            .filter_map(|name| {
                let name = name.to_str().filter(|name| name.starts_with("card") || name.starts_with("renderD"))?;
                let numbers = fs::read_to_string(folder.join(name).join("dev")).ok()?;
                let (major, minor) = numbers.trim().split_once(':')?;
                let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
                // A driver container's `/dev` can lack the node. The host's node then has the mode and the owner.
                let paths = [&self.root.devices, &self.root.kernel_files].map(|root| root.join("dev/dri").join(name));
                let is_node = |path: &&PathBuf| device_number(path) == Some((major, minor));
                let host = paths.iter().find(is_node).unwrap_or(&paths[0]).clone();
                Some(Node { host, container: Path::new("/dev/dri").join(name), major, minor })
            })
            .collect();
        nodes.sort_by(|one, other| one.container.cmp(&other.container));
        nodes
    }
}

/// The major and minor number of a character device. None for other files.
pub(crate) fn device_number(path: &Path) -> Option<(u32, u32)> {
    let node = fs::metadata(path).ok().filter(|node| node.file_type().is_char_device())?;
    Some((rustix::fs::major(node.rdev()), rustix::fs::minor(node.rdev())))
}

impl Mig {
    /// The files below `/proc/driver/nvidia/capabilities` for access to the GPU instance and the compute instance. `gpu` is
    /// the GPU of this device.
    pub fn access_files(&self, gpu: &Gpu) -> [String; 2] {
        let instance = format!("gpu{}/mig/gi{}", gpu.minor, self.gpu_instance);
        [format!("{instance}/access"), format!("{instance}/ci{}/access", self.compute_instance)]
    }
}

/// Major numbers of character devices by name, from `/proc/devices`.
pub(crate) struct Majors(String);

impl Majors {
    /// Empty if the list cannot be read.
    pub(crate) fn read(kernel_files: &Path) -> Majors {
        Majors(fs::read_to_string(kernel_files.join("proc/devices")).unwrap_or_default())
    }

    pub(crate) fn get(&self, name: &str) -> Option<u32> {
        character_majors(&self.0).find(|(_, word)| *word == name).map(|(major, _)| major)
    }
}
