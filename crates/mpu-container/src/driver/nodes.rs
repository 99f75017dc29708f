//! The device nodes that a container needs.
//!
//! Source: NVIDIA's driver README ("/dev/nvidia*"); `nv-caps.c` for the capability files; Linux,
//! `Documentation/admin-guide/devices.txt`.

use super::Driver;
use super::parts::{Gpu, Mig, Selection};
use super::proc::{self, Place};
use crate::capability::{Capabilities, Capability};
use mpu_os::devices::character_majors;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Where it is on the host, or belongs there: it may not have been made yet.
    pub host: PathBuf,
    pub container: PathBuf,
    pub major: u32,
    pub minor: u32,
}

/// The largest number of an IMEX channel: the kernel's device numbers have 20 bits for it.
pub const LAST_IMEX_CHANNEL: u32 = (1 << 20) - 1;

/// The channel that a word names, as `7` or `channel7`; none if no channel can have that number.
pub fn imex_channel(word: &str) -> Option<u32> {
    let digits = word.strip_prefix("channel").unwrap_or(word);
    // A sign is no digit, though numbers are parsed with one.
    let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
    number.filter(|number| *number <= LAST_IMEX_CHANNEL)
}

/// NVIDIA's own major, assigned by the kernel's list of devices.
const NVIDIA: u32 = 195;

/// How a node's major is known when the node is not there.
#[derive(Clone, Copy)]
enum Major {
    Fixed(u32),
    /// It has a name in `/proc/devices`.
    Listed(&'static str),
}

struct Common {
    path: &'static str,
    major: Major,
    minor: u32,
    /// Any of these brings it; an empty list: it is always needed.
    with: &'static [Capability],
}

const fn common(path: &'static str, major: Major, minor: u32, with: &'static [Capability]) -> Common {
    Common { path, major, minor, with }
}

const COMMON: &[Common] = &[
    common("dev/nvidiactl", Major::Fixed(NVIDIA), 255, &[]),
    common("dev/nvidia-uvm", Major::Listed("nvidia-uvm"), 0, &[Capability::Compute]),
    common("dev/nvidia-uvm-tools", Major::Listed("nvidia-uvm"), 1, &[Capability::Compute]),
    common("dev/nvidia-modeset", Major::Listed("nvidia-modeset"), 254, &[Capability::Display, Capability::Graphics]),
];

impl Driver {
    /// The nodes that a container with these devices and capabilities needs: those common to all GPUs first.
    pub fn nodes(&self, selection: &Selection<'_>, capabilities: Capabilities) -> Vec<Node> {
        let majors = Majors::read(&self.root.facts);
        let is_needed =
            |common: &&Common| common.with.is_empty() || common.with.iter().any(|one| capabilities.has(*one));
        let common = COMMON.iter().filter(is_needed);
        let mut nodes: Vec<Node> =
            common.filter_map(|one| self.node(&majors, one.path.into(), one.major, one.minor)).collect();
        let draws = capabilities.has(Capability::Graphics) || capabilities.has(Capability::Display);
        for gpu in &selection.gpus {
            nodes.extend(self.node(&majors, format!("dev/nvidia{}", gpu.minor), Major::Fixed(NVIDIA), gpu.minor));
            if draws {
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

    /// The node behind a file below `/proc/driver/nvidia/capabilities`, as `mig/config`, `mig/monitor` or
    /// `gpu0/mig/gi1/access`; none where the driver has no such capability.
    pub fn capability_node(&self, file: &str) -> Option<Node> {
        let text = fs::read_to_string(self.root.facts.join("proc/driver/nvidia/capabilities").join(file)).ok()?;
        let minor = proc::field(&text, "DeviceFileMinor")?.parse().ok()?;
        let path = format!("dev/nvidia-caps/nvidia-cap{minor}");
        self.node(&Majors::read(&self.root.facts), path, Major::Listed("nvidia-caps"), minor)
    }

    /// The node of an IMEX channel; none where the driver has no IMEX channels.
    pub fn imex_node(&self, channel: u32) -> Option<Node> {
        let path = format!("dev/nvidia-caps-imex-channels/channel{channel}");
        self.node(&Majors::read(&self.root.facts), path, Major::Listed("nvidia-caps-imex-channels"), channel)
    }

    fn node(&self, majors: &Majors, path: String, major: Major, minor: u32) -> Option<Node> {
        let host = self.root.devices.join(&path);
        let major = match major {
            Major::Fixed(major) => Some(major),
            Major::Listed(name) => majors.of(name),
        };
        // The node can be an old one: a module that is loaded again can get another major.
        let (major, minor) = major.map(|major| (major, minor)).or_else(|| device_number(&host))?;
        Some(Node { host, container: Path::new("/").join(path), major, minor })
    }

    /// The GPU's nodes of the kernel's own graphics layer: `card0`, `renderD128`.
    fn drm_nodes(&self, gpu: &Gpu) -> Vec<Node> {
        let Some(place) = Place::parse(&gpu.bus) else { return Vec::new() };
        let folder = self.root.facts.join("sys/bus/pci/devices").join(place.as_linux_writes_it()).join("drm");
        let names = fs::read_dir(folder.clone()).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let mut nodes: Vec<Node> = names
            .filter_map(|name| {
                let name = name.to_str().filter(|name| name.starts_with("card") || name.starts_with("renderD"))?;
                let numbers = fs::read_to_string(folder.join(name).join("dev")).ok()?;
                let (major, minor) = numbers.trim().split_once(':')?;
                let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
                // A driver container's `/dev` can lack the node. The host's own then says who may use it.
                let places = [&self.root.devices, &self.root.facts].map(|root| root.join("dev/dri").join(name));
                let there = |place: &&PathBuf| device_number(place) == Some((major, minor));
                let host = places.iter().find(there).unwrap_or(&places[0]).clone();
                Some(Node { host, container: Path::new("/dev/dri").join(name), major, minor })
            })
            .collect();
        nodes.sort_by(|one, other| one.container.cmp(&other.container));
        nodes
    }
}

/// The major and minor of a character device; none of anything else.
pub(crate) fn device_number(path: &Path) -> Option<(u32, u32)> {
    let node = fs::metadata(path).ok().filter(|node| node.file_type().is_char_device())?;
    Some((rustix::fs::major(node.rdev()), rustix::fs::minor(node.rdev())))
}

impl Mig {
    /// The files below `/proc/driver/nvidia/capabilities` that stand for access to the device: its GPU instance's and
    /// its own. `gpu` is the GPU that it is a part of.
    pub fn access_files(&self, gpu: &Gpu) -> [String; 2] {
        let instance = format!("gpu{}/mig/gi{}", gpu.minor, self.gpu_instance);
        [format!("{instance}/access"), format!("{instance}/ci{}/access", self.compute_instance)]
    }
}

/// The majors of character devices by name, as `/proc/devices` lists them.
pub(crate) struct Majors(String);

impl Majors {
    /// Without the list, no major is known.
    pub(crate) fn read(facts: &Path) -> Majors {
        Majors(fs::read_to_string(facts.join("proc/devices")).unwrap_or_default())
    }

    pub(crate) fn of(&self, name: &str) -> Option<u32> {
        character_majors(&self.0).find(|(_, word)| *word == name).map(|(major, _)| major)
    }
}
