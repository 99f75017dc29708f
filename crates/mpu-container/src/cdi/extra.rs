//! What besides GPUs a spec can describe.
//!
//! Source: NVIDIA Container Toolkit 1.20, `pkg/nvcdi/mode.go` and the discoverers of each mode.

use super::inject::{self, Options};
use crate::driver::files::File;
use crate::driver::{DriverRoot, Node, imex_channel, number_of};
use crate::edits::{ContainerEdits, Device};
use std::fs;
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Nvml,
    /// Every node of the driver at once, for programs that manage GPUs.
    Management,
    Imex,
    Gdrcopy,
    Gds,
    Mofed,
    Nvswitch,
}

/// Nodes: a folder, and how their names begin.
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

/// Nodes below `/dev/nvidia*` that have a mode of their own.
const NOT_MANAGEMENT: [&str; 3] = ["nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink"];

impl Mode {
    /// The mode of a word. `auto` stands for GPUs on every host; other devices need their own mode.
    pub fn from_name(name: &str) -> Option<Mode> {
        let row = ROWS.iter().find(|row| row.name == name);
        row.map(|row| row.mode).or((name == "auto").then_some(Mode::Nvml))
    }

    pub fn names() -> Vec<&'static str> {
        ["auto"].into_iter().chain(ROWS.iter().map(|row| row.name)).collect()
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

/// What a mode of the table adds: its nodes, and its files if there is a node.
pub fn edits(root: &DriverRoot, mode: Mode, options: &Options) -> ContainerEdits {
    let mut edits = inject::plain_nodes(nodes(root, mode), options);
    if !edits.device_nodes.is_empty() {
        let there = mode.row().files.iter().filter(|path| root.files.join(path).exists());
        let file = |path: &&str| File { host: root.files.join(path), container: Path::new("/").join(path) };
        edits.mounts.extend(there.map(file).map(|file| inject::read_only(&file)));
    }
    inject::sort(&mut edits);
    edits
}

#[derive(Debug)]
pub enum ChannelError {
    /// It is another word than a channel's number.
    NotANumber(String),
    /// This host has no such channel.
    Missing,
}

pub fn channels(root: &DriverRoot, words: &[String], options: &Options) -> Result<Vec<Device>, ChannelError> {
    let nodes = nodes(root, Mode::Imex);
    let number = |node: &Node| node.container.file_name()?.to_str()?.strip_prefix("channel")?.parse::<u32>().ok();
    let known: Vec<_> = nodes.into_iter().filter_map(|node| Some((number(&node)?, node))).collect();
    let mut devices = Vec::new();
    for word in words {
        let requested = match (imex_channel(word), word.strip_prefix("channel").unwrap_or(word)) {
            (None, "all") => None,
            (None, _) => return Err(ChannelError::NotANumber(word.clone())),
            (number, _) => number,
        };
        let before = devices.len();
        for (number, node) in known.iter().filter(|(number, _)| requested.is_none_or(|requested| requested == *number))
        {
            devices.push(Device {
                name: number.to_string(),
                annotations: Default::default(),
                container_edits: inject::plain_nodes(vec![node.clone()], options),
            });
        }
        if devices.len() == before {
            return Err(ChannelError::Missing);
        }
    }
    Ok(devices)
}

fn nodes_in(root: &Path, folder: &str, prefix: &str) -> Vec<Node> {
    let Ok(entries) = fs::read_dir(root.join(folder)) else { return Vec::new() };
    let node = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok().filter(|name| name.starts_with(prefix))?;
        let (major, minor) = number_of(&entry.path())?;
        Some(Node { host: entry.path(), container: Path::new("/").join(folder).join(name), major, minor })
    };
    entries.flatten().filter_map(node).collect()
}
