//! `--load-kmods`: loads the driver's kernel modules and creates its device nodes. Does nothing in a user namespace.
//!
//! A module that cannot be loaded is no error here: the driver may be built in, or the next step reports it.
//!
//! Source: nvidia-modprobe(1) and its `modprobe-utils`; NVIDIA's driver README, "Device nodes" (`DeviceFileMode`
//! and its siblings); Linux, modprobe(8).

use super::log::Log;
use super::process::in_user_namespace;
use crate::capability::Capabilities;
use crate::driver::{Driver, DriverRoot, Node};
use mpu_os::child;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid, chownat};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit of modprobe. A driver that needs longer hangs.
pub(crate) const LOAD_TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const MAX_OUTPUT: u64 = 64 << 10;

/// The modules in load order: file name and name in `/sys/module`.
const MODULES: [(&str, &str); 3] =
    [("nvidia", "nvidia"), ("nvidia-uvm", "nvidia_uvm"), ("nvidia-modeset", "nvidia_modeset")];

pub fn load(root: &DriverRoot, log: &Log) {
    if in_user_namespace() {
        return log.write_line(format_args!("kernel modules are left alone in a user namespace"));
    }
    for (file, name) in MODULES {
        if !root.kernel_files.join("sys/module").join(name).exists() {
            match modprobe(&root.files, file) {
                Ok(true) => log.write_line(format_args!("loaded {file}")),
                Ok(false) => log.write_line(format_args!("modprobe {file} failed: see the kernel's log")),
                Err(error) => log.write_line(format_args!("cannot start modprobe: {error}")),
            }
        }
    }
    // Without a driver there is nothing to create; the next step reports it.
    if let Ok(driver) = Driver::find(root) {
        create_nodes(&driver, log);
    }
}

fn modprobe(root: &Path, module: &str) -> io::Result<bool> {
    let mut command = Command::new("/sbin/modprobe");
    if root != Path::new("/") {
        command.arg("--dirname").arg(root);
    }
    let command = command.arg(module).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    Ok(child::run(command.stdin(Stdio::null()), LOAD_TIMEOUT, MAX_OUTPUT)?.is_success())
}

/// Creates the driver's missing nodes, unless its parameters leave that to another program.
fn create_nodes(driver: &Driver, log: &Log) {
    let attributes = NodeAttributes::of(driver);
    if !attributes.managed {
        return log.write_line(format_args!("device nodes are not ours to make: ModifyDeviceFiles is 0"));
    }
    let all = ["all".to_owned()];
    let Ok(selection) = driver.select(&all) else { return };
    let nodes = driver.nodes(&selection, Capabilities::ALL);
    // The kernel creates the nodes of its graphics layer.
    let nodes = nodes.iter().filter(|node| !node.container.starts_with("/dev/dri"));
    let rules = ["mig/config", "mig/monitor"].into_iter().filter_map(|file| driver.capability_node(file));
    for node in nodes.cloned().chain(rules) {
        create_and_log(&node, &attributes, log);
    }
}

/// Creates the missing nodes of these IMEX channels. An unknown channel is skipped here and reported when the container is configured.
pub fn create_channels(driver: &Driver, channels: &[u32], log: &Log) {
    let attributes = NodeAttributes::of(driver);
    let nodes = channels.iter().filter_map(|channel| driver.imex_node(*channel));
    nodes
        .filter(|_| attributes.managed && !in_user_namespace())
        .for_each(|node| create_and_log(&node, &attributes, log));
}

fn create_and_log(node: &Node, attributes: &NodeAttributes, log: &Log) {
    match attributes.create_node(node) {
        Ok(true) => log.write_line(format_args!("made {} ({}:{})", node.host.display(), node.major, node.minor)),
        Ok(false) => {}
        Err(error) => log.write_line(format_args!("cannot make {}: {error}", node.host.display())),
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct NodeAttributes {
    pub managed: bool,
    pub user: u32,
    pub group: u32,
    pub mode: u32,
}

impl NodeAttributes {
    /// Reads the parameters of the loaded driver.
    fn of(driver: &Driver) -> NodeAttributes {
        let path = driver.root.kernel_files.join("proc/driver/nvidia/params");
        NodeAttributes::parse(&fs::read_to_string(path).unwrap_or_default())
    }

    fn parse(parameters: &str) -> NodeAttributes {
        let value = |name: &str| {
            let mut pairs = parameters.lines().filter_map(|line| line.split_once(": "));
            pairs.find(|(key, _)| *key == name).and_then(|(_, value)| value.trim().parse().ok())
        };
        NodeAttributes {
            managed: value("ModifyDeviceFiles") != Some(0),
            user: value("DeviceFileUID").unwrap_or(0),
            group: value("DeviceFileGID").unwrap_or(0),
            mode: value("DeviceFileMode").unwrap_or(0o666),
        }
    }

    /// Creates a node. Replaces a character device with another number. Returns false if the node existed.
    pub fn create_node(&self, node: &Node) -> io::Result<bool> {
        let number = rustix::fs::makedev(node.major, node.minor);
        match fs::symlink_metadata(&node.host) {
            Ok(metadata) if metadata.file_type().is_char_device() && metadata.rdev() == number => return Ok(false),
            Ok(metadata) if metadata.file_type().is_char_device() => fs::remove_file(&node.host)?,
            Ok(_) => return Err(Errno::EXIST.into()),
            Err(_) => {}
        }
        if let Some(parent) = node.host.parent() {
            fs::create_dir_all(parent)?;
        }
        rustix::fs::mknodat(CWD, &node.host, FileType::CharacterDevice, Mode::empty(), number)?;
        let (user, group) = (Uid::from_raw(self.user), Gid::from_raw(self.group));
        chownat(CWD, &node.host, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
        fs::set_permissions(&node.host, fs::Permissions::from_mode(self.mode))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_owner_comes_from_driver_parameters() {
        let read =
            NodeAttributes::parse("Mobile: 4294967295\nModifyDeviceFiles: 0\nDeviceFileUID: 3\nDeviceFileMode: 432\n");
        assert_eq!(read, NodeAttributes { managed: false, user: 3, group: 0, mode: 0o660 });
        assert_eq!(NodeAttributes::parse(""), NodeAttributes { managed: true, user: 0, group: 0, mode: 0o666 });
    }

    #[test]
    fn missing_nodes_are_made_and_others_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let attributes = NodeAttributes { managed: true, user: 7, group: 8, mode: 0o660 };
        let path = folder.path().join("dev/nvidia-caps/nvidia-cap1");
        let mut node =
            Node { host: path.clone(), container: "/dev/nvidia-caps/nvidia-cap1".into(), major: 234, minor: 1 };
        match attributes.create_node(&node) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return eprintln!("skipped: device nodes can be made by root only");
            }
            created => assert!(created.unwrap()),
        }
        let about = fs::metadata(&path).unwrap();
        assert_eq!((about.uid(), about.gid(), about.mode() & 0o7777), (7, 8, 0o660));
        assert!(!attributes.create_node(&node).unwrap(), "it is there");
        node.minor = 2;
        assert!(attributes.create_node(&node).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().rdev(), rustix::fs::makedev(234, 2));
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(attributes.create_node(&node).is_err(), "a file is not ours to replace");
    }
}
