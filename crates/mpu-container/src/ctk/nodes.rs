//! Creates the driver's control nodes before a program of NVIDIA does: a container cannot get a missing node. Existing nodes stay
//! unchanged.
//!
//! Source: NVIDIA's driver README, "device nodes"; `nvidia-modprobe`, which makes them with mode 0666.

use crate::capability::Capabilities;
use crate::cli::kmods::{LOAD_TIMEOUT, MAX_OUTPUT, NodeAttributes};
use crate::driver::{Driver, DriverRoot, Node, Selection};
use mpu_os::child;
use mpu_os::text::printable;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The driver's kernel modules in load order.
const MODULES: [&str; 3] = ["nvidia", "nvidia-uvm", "nvidia-modeset"];
/// The nodes that belong to no GPU.
const CONTROL_NODES: [&str; 4] = ["/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];

const MODESET_MINOR: u32 = 254;
/// The attributes of nvidia-modprobe.
const DEFAULT_ATTRIBUTES: NodeAttributes = NodeAttributes { managed: true, user: 0, group: 0, mode: 0o666 };

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("there is no number for {0}: its kernel module is not loaded on the host")]
    UnknownMajor(&'static str),
    #[error("{} is there and is no character device: remove it", .0.display())]
    Taken(PathBuf),
    #[error("cannot make {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("cannot run {program}")]
    Start { program: String, source: io::Error },
    #[error("cannot load {module}: {program} failed ({reason})")]
    Modprobe { module: &'static str, program: String, reason: String },
}

pub(super) fn load_modules(root: &Path, dry_run: bool, note: &mut dyn FnMut(String)) -> Result<(), NodeError> {
    for module in MODULES {
        let mut command_line = vec!["/sbin/modprobe".to_string(), module.to_string()];
        if root != Path::new("/") {
            command_line.splice(0..0, ["chroot".to_string(), root.display().to_string()]);
        }
        note(command_line.join(" "));
        if dry_run {
            continue;
        }
        let program = command_line[..command_line.len() - 1].join(" ");
        let mut command = Command::new(&command_line[0]);
        match child::run(command.args(&command_line[1..]).stdin(Stdio::null()), LOAD_TIMEOUT, MAX_OUTPUT) {
            Ok(output) if output.is_success() => {}
            Ok(output) => {
                let stderr = String::from_utf8_lossy(&output.stderr);
                let reason = match output.status {
                    Some(status) if stderr.trim().is_empty() => status.to_string(),
                    Some(status) => format!("{status}: {}", printable(stderr.trim(), 200)),
                    None => format!("stopped: not done after {} s, or printed too much", LOAD_TIMEOUT.as_secs()),
                };
                return Err(NodeError::Modprobe { module, program, reason });
            }
            Err(source) => return Err(NodeError::Start { program, source }),
        }
    }
    Ok(())
}

/// Creates the control nodes below a root's `dev`. If a device number is unknown, it fails before it creates any node.
pub fn create_control_nodes(root: &DriverRoot, dry_run: bool, note: &mut dyn FnMut(String)) -> Result<(), NodeError> {
    let mut nodes = control_nodes(root);
    // nvidia-modeset always has NVIDIA's major number and minor 254. Hosts without displays do not load its module, but callers expect
    // all four nodes.
    if let Some(ctl) = nodes.iter().find(|node| node.container == Path::new(CONTROL_NODES[0])).cloned()
        && !nodes.iter().any(|node| node.container == Path::new(CONTROL_NODES[1]))
    {
        let host = ctl.host.with_file_name("nvidia-modeset");
        nodes.push(Node { host, container: CONTROL_NODES[1].into(), major: ctl.major, minor: MODESET_MINOR });
    }
    let named = |path| nodes.iter().find(|node| node.container == Path::new(path)).ok_or(NodeError::UnknownMajor(path));
    for node in CONTROL_NODES.into_iter().map(named).collect::<Result<Vec<_>, _>>()? {
        match fs::symlink_metadata(&node.host) {
            Ok(metadata) if metadata.file_type().is_char_device() => continue,
            Ok(_) => return Err(NodeError::Taken(node.host.clone())),
            Err(_) => {}
        }
        note(format!("mknod {} c {} {}", node.host.display(), node.major, node.minor));
        if !dry_run {
            DEFAULT_ATTRIBUTES.create_node(node).map_err(|source| NodeError::Io { path: node.host.clone(), source })?;
        }
    }
    Ok(())
}

pub(super) fn control_nodes(root: &DriverRoot) -> Vec<Node> {
    // Control nodes do not depend on the GPUs and the release.
    let driver = Driver { root: root.clone(), version: String::new(), gpus: Vec::new() };
    driver.nodes(&Selection::default(), Capabilities::ALL)
}
