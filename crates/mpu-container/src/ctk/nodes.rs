//! Makes the driver's device nodes before a program of NVIDIA does: a container cannot get a missing node. Existing nodes stay
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

/// The driver's kernel modules, in the order in which they need each other.
const MODULES: [&str; 3] = ["nvidia", "nvidia-uvm", "nvidia-modeset"];
/// The nodes that belong to no GPU.
const CONTROL: [&str; 4] = ["/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];

const MODESET: u32 = 254;
/// As nvidia-modprobe makes nodes.
const PUBLIC: NodeAttributes = NodeAttributes { managed: true, user: 0, group: 0, mode: 0o666 };

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("there is no number for {0}: its kernel module is not loaded on the host")]
    NoNumber(&'static str),
    #[error("{} is there and is no character device: remove it", .0.display())]
    Taken(PathBuf),
    #[error("cannot make {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("cannot run {program}")]
    Start { program: String, source: io::Error },
    #[error("cannot load {module}: {program} failed ({why})")]
    Modprobe { module: &'static str, program: String, why: String },
}

pub(super) fn load_modules(root: &Path, dry: bool, note: &mut dyn FnMut(String)) -> Result<(), NodeError> {
    for module in MODULES {
        let mut words = vec!["/sbin/modprobe".to_string(), module.to_string()];
        if root != Path::new("/") {
            words.splice(0..0, ["chroot".to_string(), root.display().to_string()]);
        }
        note(words.join(" "));
        if dry {
            continue;
        }
        let program = words[..words.len() - 1].join(" ");
        let mut command = Command::new(&words[0]);
        match child::run(command.args(&words[1..]).stdin(Stdio::null()), LOAD_TIMEOUT, MAX_OUTPUT) {
            Ok(done) if done.is_success() => {}
            Ok(done) => {
                let words = String::from_utf8_lossy(&done.stderr);
                let why = match done.status {
                    Some(status) if words.trim().is_empty() => status.to_string(),
                    Some(status) => format!("{status}: {}", printable(words.trim(), 200)),
                    None => format!("stopped: not done after {} s, or printed too much", LOAD_TIMEOUT.as_secs()),
                };
                return Err(NodeError::Modprobe { module, program, why });
            }
            Err(source) => return Err(NodeError::Start { program, source }),
        }
    }
    Ok(())
}

/// Makes the control nodes below a root's `dev`. An unknown number is an error before any node is made.
pub fn make_control(root: &DriverRoot, dry: bool, note: &mut dyn FnMut(String)) -> Result<(), NodeError> {
    let mut known = control(root);
    // Modeset's number is NVIDIA's, and never was another. Hosts without displays do not load the module, but programs
    // that make these nodes on such hosts expect all four.
    if let Some(ctl) = known.iter().find(|node| node.container == Path::new(CONTROL[0])).cloned()
        && !known.iter().any(|node| node.container == Path::new(CONTROL[1]))
    {
        let host = ctl.host.with_file_name("nvidia-modeset");
        known.push(Node { host, container: CONTROL[1].into(), major: ctl.major, minor: MODESET });
    }
    let named = |path| known.iter().find(|node| node.container == Path::new(path)).ok_or(NodeError::NoNumber(path));
    for node in CONTROL.into_iter().map(named).collect::<Result<Vec<_>, _>>()? {
        match fs::symlink_metadata(&node.host) {
            Ok(metadata) if metadata.file_type().is_char_device() => continue,
            Ok(_) => return Err(NodeError::Taken(node.host.clone())),
            Err(_) => {}
        }
        note(format!("mknod {} c {} {}", node.host.display(), node.major, node.minor));
        if !dry {
            PUBLIC.create_node(node).map_err(|source| NodeError::Io { path: node.host.clone(), source })?;
        }
    }
    Ok(())
}

pub(super) fn control(root: &DriverRoot) -> Vec<Node> {
    // Which GPUs there are does not matter, nor does the release.
    let driver = Driver { root: root.clone(), version: String::new(), gpus: Vec::new() };
    driver.nodes(&Selection::default(), Capabilities::ALL)
}
