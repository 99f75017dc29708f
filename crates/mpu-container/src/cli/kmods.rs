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

/// A driver that does not come in this time hangs.
pub(crate) const LOAD_TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const LONGEST_WORDS: u64 = 64 << 10;

/// The modules, each after those that it needs, by file name and by the kernel's name.
const MODULES: [(&str, &str); 3] =
    [("nvidia", "nvidia"), ("nvidia-uvm", "nvidia_uvm"), ("nvidia-modeset", "nvidia_modeset")];

pub fn load(root: &DriverRoot, log: &Log) {
    if in_user_namespace() {
        return log.say(format_args!("kernel modules are left alone in a user namespace"));
    }
    for (file, name) in MODULES {
        if !root.kernel_files.join("sys/module").join(name).exists() {
            match modprobe(&root.files, file) {
                Ok(true) => log.say(format_args!("loaded {file}")),
                Ok(false) => log.say(format_args!("modprobe {file} failed: see the kernel's log")),
                Err(error) => log.say(format_args!("cannot start modprobe: {error}")),
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
    Ok(child::run(command.stdin(Stdio::null()), LOAD_TIMEOUT, LONGEST_WORDS)?.is_success())
}

/// Creates the driver's nodes where they are missing, unless its parameters leave that to another program.
fn create_nodes(driver: &Driver, log: &Log) {
    let owner = Owner::of(driver);
    if !owner.ours {
        return log.say(format_args!("device nodes are not ours to make: ModifyDeviceFiles is 0"));
    }
    let all = ["all".to_owned()];
    let Ok(selection) = driver.select(&all) else { return };
    let nodes = driver.nodes(&selection, Capabilities::ALL);
    // Those of the kernel's graphics layer are the kernel's.
    let nodes = nodes.iter().filter(|node| !node.container.starts_with("/dev/dri"));
    let rules = ["mig/config", "mig/monitor"].into_iter().filter_map(|file| driver.capability_node(file));
    for node in nodes.cloned().chain(rules) {
        create(&node, &owner, log);
    }
}

/// Creates the nodes of these IMEX channels where they are missing. A channel that the driver does not have is left to
/// the container.
pub fn create_channels(driver: &Driver, channels: &[u32], log: &Log) {
    let owner = Owner::of(driver);
    let nodes = channels.iter().filter_map(|channel| driver.imex_node(*channel));
    nodes.filter(|_| owner.ours && !in_user_namespace()).for_each(|node| create(&node, &owner, log));
}

fn create(node: &Node, owner: &Owner, log: &Log) {
    match owner.make(node) {
        Ok(true) => log.say(format_args!("made {} ({}:{})", node.host.display(), node.major, node.minor)),
        Ok(false) => {}
        Err(error) => log.say(format_args!("cannot make {}: {error}", node.host.display())),
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Owner {
    pub ours: bool,
    pub user: u32,
    pub group: u32,
    pub mode: u32,
}

impl Owner {
    /// By the parameters with which the driver was loaded.
    fn of(driver: &Driver) -> Owner {
        let path = driver.root.kernel_files.join("proc/driver/nvidia/params");
        Owner::read(&fs::read_to_string(path).unwrap_or_default())
    }

    fn read(parameters: &str) -> Owner {
        let value = |name: &str| {
            let mut pairs = parameters.lines().filter_map(|line| line.split_once(": "));
            pairs.find(|(key, _)| *key == name).and_then(|(_, value)| value.trim().parse().ok())
        };
        Owner {
            ours: value("ModifyDeviceFiles") != Some(0),
            user: value("DeviceFileUID").unwrap_or(0),
            group: value("DeviceFileGID").unwrap_or(0),
            mode: value("DeviceFileMode").unwrap_or(0o666),
        }
    }

    /// Whether a node had to be made. One that is there and is another device is replaced.
    pub fn make(&self, node: &Node) -> io::Result<bool> {
        let number = rustix::fs::makedev(node.major, node.minor);
        match fs::symlink_metadata(&node.host) {
            Ok(there) if there.file_type().is_char_device() && there.rdev() == number => return Ok(false),
            Ok(there) if there.file_type().is_char_device() => fs::remove_file(&node.host)?,
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
        let read = Owner::read("Mobile: 4294967295\nModifyDeviceFiles: 0\nDeviceFileUID: 3\nDeviceFileMode: 432\n");
        assert_eq!(read, Owner { ours: false, user: 3, group: 0, mode: 0o660 });
        assert_eq!(Owner::read(""), Owner { ours: true, user: 0, group: 0, mode: 0o666 });
    }

    #[test]
    fn missing_nodes_are_made_and_others_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let owner = Owner { ours: true, user: 7, group: 8, mode: 0o660 };
        let path = folder.path().join("dev/nvidia-caps/nvidia-cap1");
        let mut node =
            Node { host: path.clone(), container: "/dev/nvidia-caps/nvidia-cap1".into(), major: 234, minor: 1 };
        match owner.make(&node) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return eprintln!("skipped: device nodes can be made by root only");
            }
            made => assert!(made.unwrap()),
        }
        let about = fs::metadata(&path).unwrap();
        assert_eq!((about.uid(), about.gid(), about.mode() & 0o7777), (7, 8, 0o660));
        assert!(!owner.make(&node).unwrap(), "it is there");
        node.minor = 2;
        assert!(owner.make(&node).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().rdev(), rustix::fs::makedev(234, 2));
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(owner.make(&node).is_err(), "a file is not ours to replace");
    }
}
