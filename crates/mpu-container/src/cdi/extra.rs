//! Modes of CDI generation, and the device nodes of each mode besides GPUs.
//!
//! Source: NVIDIA Container Toolkit 1.20, `pkg/nvcdi/mode.go` and the discoverers of each mode.

use super::error::GenerateError;
use super::inject::{self, Options};
use crate::driver::files::File;
use crate::driver::{DriverRoot, Node, device_number, imex_channel};
use crate::edits::{ContainerEdits, Device};
use std::fs;
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Nvml,
    /// One device with every node of the driver, for programs that manage GPUs.
    Management,
    Imex,
    Gdrcopy,
    Gds,
    Mofed,
    Nvswitch,
}

/// A folder, and the prefix of its nodes' names.
type Nodes = &'static [(&'static str, &'static str)];

struct Row {
    mode: Mode,
    name: &'static str,
    device: &'static str,
    nodes: Nodes,
    files: &'static [&'static str],
}

const fn row(
    mode: Mode,
    name: &'static str,
    device: &'static str,
    nodes: Nodes,
    files: &'static [&'static str],
) -> Row {
    Row { mode, name, device, nodes, files }
}

const CHANNELS: (&str, &str) = ("dev/nvidia-caps-imex-channels", "channel");

const ROWS: &[Row] = &[
    row(Mode::Nvml, "nvml", "GPU", &[], &[]),
    row(
        Mode::Management,
        "management",
        "NVIDIA device node",
        &[("dev", "nvidia"), ("dev/nvidia-caps", "nvidia-cap"), CHANNELS],
        &[],
    ),
    row(Mode::Imex, "imex", "IMEX channel", &[CHANNELS], &[]),
    row(Mode::Gdrcopy, "gdrcopy", "GDRCopy device", &[("dev", "gdrdrv")], &[]),
    row(Mode::Gds, "gds", "GPUDirect Storage device", &[("dev", "nvidia-fs")], &["run/udev", "etc/cufile.json"]),
    row(Mode::Mofed, "mofed", "InfiniBand device", &[("dev/infiniband", "uverbs"), ("dev/infiniband", "rdma_cm")], &[]),
    row(Mode::Nvswitch, "nvswitch", "NVSwitch", &[("dev", "nvidia-nvswitch")], &[]),
];

/// Prefixes of `/dev/nvidia*` nodes that have their own mode.
const NOT_MANAGEMENT: [&str; 3] = ["nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink"];

impl Mode {
    /// `auto` means GPUs on every host.
    pub fn from_name(name: &str) -> Option<Mode> {
        let row = ROWS.iter().find(|row| row.name == name);
        row.map(|row| row.mode).or((name == "auto").then_some(Mode::Nvml))
    }

    pub fn names() -> Vec<&'static str> {
        ["auto"].into_iter().chain(ROWS.iter().map(|row| row.name)).collect()
    }

    pub fn name(self) -> &'static str {
        self.row().name
    }

    pub fn device_description(self) -> &'static str {
        self.row().device
    }

    fn row(self) -> &'static Row {
        ROWS.iter().find(|row| row.mode == self).unwrap_or(&ROWS[0])
    }
}

pub fn nodes(root: &DriverRoot, mode: Mode) -> Vec<Node> {
    let found = |(folder, prefix): &(&str, &str)| nodes_in(&root.devices, folder, prefix);
    let mut nodes: Vec<_> = mode.row().nodes.iter().flat_map(found).collect();
    if mode == Mode::Management {
        let name = |node: &Node| node.container.file_name().unwrap_or_default().to_string_lossy().into_owned();
        nodes.retain(|node| !NOT_MANAGEMENT.iter().any(|prefix| name(node).starts_with(prefix)));
    }
    nodes.sort_by(|left, right| left.container.cmp(&right.container));
    nodes
}

/// The edits of a mode: its nodes, and its files if there is a node.
pub fn edits(root: &DriverRoot, mode: Mode, options: &Options) -> ContainerEdits {
    let mut edits = inject::device_nodes(nodes(root, mode), options);
    if !edits.device_nodes.is_empty() {
        let existing = mode.row().files.iter().filter(|path| root.files.join(path).exists());
        let file = |path: &&str| File { host: root.files.join(path), container: Path::new("/").join(path) };
        edits.mounts.extend(existing.map(file).map(|file| inject::read_only(&file)));
    }
    inject::sort(&mut edits);
    edits
}

pub fn channels(root: &DriverRoot, words: &[String], options: &Options) -> Result<Vec<Device>, GenerateError> {
    let nodes = nodes(root, Mode::Imex);
    let number = |node: &Node| node.container.file_name()?.to_str()?.strip_prefix("channel")?.parse::<u32>().ok();
    let existing: Vec<_> = nodes.into_iter().filter_map(|node| Some((number(&node)?, node))).collect();
    let mut devices = Vec::new();
    for word in words {
        let requested = match (imex_channel(word), word.strip_prefix("channel").unwrap_or(word)) {
            (None, "all") => None,
            (None, _) => return Err(GenerateError::Channel(word.clone())),
            (number, _) => number,
        };
        let before = devices.len();
        for (number, node) in
            existing.iter().filter(|(number, _)| requested.is_none_or(|requested| requested == *number))
        {
            devices.push(Device {
                name: number.to_string(),
                annotations: Default::default(),
                container_edits: inject::device_nodes(vec![node.clone()], options),
            });
        }
        if devices.len() == before {
            return Err(GenerateError::Nothing("such IMEX channel"));
        }
    }
    Ok(devices)
}

fn nodes_in(root: &Path, folder: &str, prefix: &str) -> Vec<Node> {
    let Ok(entries) = fs::read_dir(root.join(folder)) else { return Vec::new() };
    let node = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok().filter(|name| name.starts_with(prefix))?;
        let (major, minor) = device_number(&entry.path())?;
        Some(Node { host: entry.path(), container: Path::new("/").join(folder).join(name), major, minor })
    };
    entries.flatten().filter_map(node).collect()
}
