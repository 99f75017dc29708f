//! The driver's files and nodes: opened on the host, mounted in the container.
//!
//! All host files are opened before the container's mount namespace is entered, so none is mistaken for a file of the container.
//!
//! Source: libnvidia-container, `src/nvc_mount.c` (mount points and flags); NVIDIA's driver README, "The /proc/driver/nvidia file
//! system" and "Application Profiles".

use super::changes::{ChangeError, Changes, DetachedMount};
use super::layout::Layout;
use crate::beneath::Restrictions;
use crate::capability::Capability;
use crate::cdi_hooks::{params, profile};
use crate::chain::chain;
use crate::cli::args::Configure;
use crate::cli::cgroup::program::DeviceNumber;
use crate::cli::log::Log;
use crate::cli::mig::{self, CAPABILITIES};
use crate::driver::files::Files;
use crate::driver::{Driver, Gpu, Node, Selection};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

const FILE: Restrictions = Restrictions { read_only: true, no_exec: false, no_devices: true };
const SOCKET: Restrictions = Restrictions { read_only: false, no_exec: true, no_devices: true };
const PROC_FILE: Restrictions = Restrictions { read_only: true, no_exec: true, no_devices: true };
const NODE: Restrictions = Restrictions { read_only: true, no_exec: true, no_devices: false };
// Not read-only: nodes are added and removed with MIG devices.
const NODE_DIRECTORY: Restrictions = Restrictions { read_only: false, no_exec: true, no_devices: false };

/// Subdirectories of the library directory in which libvdpau and Mesa's libgbm look for drivers.
const SUBDIRECTORIES: [&str; 2] = ["vdpau", "gbm"];
/// Nodes of kernel modules that may be missing.
const OPTIONAL_NODES: [&str; 3] = ["/dev/nvidia-uvm", "/dev/nvidia-modeset", "/dev/dri/"];
const PROC_DIRECTORY: &str = "/proc/driver/nvidia";

#[derive(Debug, Error)]
pub enum DriverMountError {
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error("{} is {problem}", path.display())]
    Node { path: PathBuf, problem: &'static str },
    #[error("the driver has no IMEX channel {0}")]
    Channel(u32),
}

pub struct Inputs<'a> {
    pub driver: &'a Driver,
    pub files: &'a Files,
    pub selection: &'a Selection<'a>,
    pub config: &'a [&'a Gpu],
    pub monitor: &'a [&'a Gpu],
    pub arguments: &'a Configure,
    /// Whether ldconfig runs without pivot_root.
    pub no_pivot: bool,
}

#[derive(Debug, Default)]
pub struct DriverMounts {
    facts: Vec<(&'static str, String)>,
    profile: Option<String>,
    mounts: Vec<(DetachedMount, Target, Restrictions)>,
    links: Vec<(Target, PathBuf)>,
    pub devices: Vec<DeviceNumber>,
}

#[derive(Debug, Clone)]
enum Target {
    Path(PathBuf),
    Library { name: OsString, compat32: bool },
}

impl DriverMounts {
    pub fn open(inputs: &Inputs<'_>, log: &Log) -> Result<DriverMounts, DriverMountError> {
        let mut mounts = DriverMounts::default();
        let capabilities = inputs.arguments.capabilities();
        mounts.facts(inputs);
        if capabilities.has(Capability::Graphics) {
            let minors = inputs.selection.gpus.iter().map(|gpu| gpu.minor);
            mounts.profile = Some(profile::text(profile::mask(minors)));
        }
        mounts.files(inputs, log)?;
        mounts.gpus(inputs)?;
        for node in inputs.driver.nodes(inputs.selection, capabilities) {
            mounts.node(inputs, &node, log)?;
        }
        for (file, gpus) in [("mig/config", inputs.config), ("mig/monitor", inputs.monitor)] {
            mounts.mig(inputs, file, gpus)?;
        }
        for channel in &inputs.arguments.imex_channel {
            let node = inputs.driver.imex_node(*channel).ok_or(DriverMountError::Channel(*channel))?;
            mounts.node(inputs, &node, log)?;
        }
        Ok(mounts)
    }

    /// The driver's text files of procfs, with `ModifyDeviceFiles: 0`: in a container, the driver's programs must not make or change
    /// nodes.
    fn facts(&mut self, inputs: &Inputs<'_>) {
        let folder = inputs.driver.root.kernel_files.join("proc/driver/nvidia");
        for name in ["params", "version", "registry"] {
            if let Ok(text) = fs::read_to_string(folder.join(name)) {
                self.facts.push((name, params::without_modification(&text).unwrap_or(text)));
            }
        }
    }

    fn files(&mut self, inputs: &Inputs<'_>, log: &Log) -> Result<(), DriverMountError> {
        let files = inputs.files;
        let exclusions = inputs.arguments.exclusions;
        let mut folders = Vec::new();
        for library in &files.libraries {
            let path = &library.file.container;
            let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { continue };
            folders.push((folder, library.compat32));
            // Some libraries are found by the name of their directory.
            let subdirectory =
                folder.file_name().filter(|name| SUBDIRECTORIES.iter().any(|subdirectory| name == subdirectory));
            let name = subdirectory
                .map(|subdirectory| Path::new(subdirectory).join(name))
                .unwrap_or_else(|| name.into())
                .into();
            let target = Target::Library { name, compat32: library.compat32 };
            self.mount(&library.file.host, target, FILE)?;
        }
        for program in &files.programs {
            let Some(name) = program.container.file_name() else { continue };
            self.mount(&program.host, Target::Path(Path::new("/usr/bin").join(name)), FILE)?;
        }
        let firmware = files.firmware.iter().filter(|_| !exclusions.no_gsp_firmware);
        for file in firmware.chain(&files.data) {
            self.mount(&file.host, Target::Path(file.container.clone()), FILE)?;
        }
        for socket in files.sockets.iter().filter(|socket| exclusions.includes_socket(&socket.container)) {
            // In a pod, a socket may not be mountable a second time. Programs work without these daemons.
            if let Err(error) = self.mount(&socket.host, Target::Path(socket.container.clone()), SOCKET) {
                log.note(format_args!("the container goes without {}: {}", socket.container.display(), chain(&error)));
            }
        }
        for link in &files.links {
            // A link beside libraries goes into the same directory as these.
            let beside = folders.iter().find(|(folder, _)| link.path.parent() == Some(folder));
            let target = match (beside, link.path.file_name()) {
                (Some((_, compat32)), Some(name)) => Target::Library { name: name.into(), compat32: *compat32 },
                _ => Target::Path(link.path.clone()),
            };
            self.links.push((target, link.target.clone()));
        }
        Ok(())
    }

    fn gpus(&mut self, inputs: &Inputs<'_>) -> Result<(), DriverMountError> {
        let facts = &inputs.driver.root.kernel_files;
        for gpu in &inputs.selection.gpus {
            // The driver writes the PCI domain with four or eight digits, depending on its release.
            let address = gpu.bus.to_ascii_lowercase();
            let spellings = [Some(address.as_str()), address.get(4..)];
            let mut folders = spellings.into_iter().flatten().map(|name| format!("proc/driver/nvidia/gpus/{name}"));
            let folder = folders.find(|folder| facts.join(folder).is_dir());
            if let Some(folder) = folder {
                self.mount(&facts.join(&folder), Target::Path(Path::new("/").join(folder)), PROC_FILE)?;
            }
        }
        if !inputs.config.is_empty() || !inputs.monitor.is_empty() {
            return self.mount(&facts.join(CAPABILITIES), Target::Path(Path::new("/").join(CAPABILITIES)), PROC_FILE);
        }
        for (gpu, device) in &inputs.selection.migs {
            for file in device.access_files(gpu) {
                let path = Path::new(CAPABILITIES).join(file);
                self.mount(&facts.join(&path), Target::Path(Path::new("/").join(path)), PROC_FILE)?;
            }
        }
        Ok(())
    }

    fn node(&mut self, inputs: &Inputs<'_>, node: &Node, log: &Log) -> Result<(), DriverMountError> {
        let node_error = |problem| DriverMountError::Node { path: node.host.clone(), problem };
        let number = DeviceNumber { major: node.major, minor: node.minor };
        if !inputs.arguments.no_devbind {
            let metadata = fs::metadata(&node.host);
            let path = node.container.to_string_lossy();
            let is_optional = OPTIONAL_NODES.iter().any(|start| path.starts_with(start));
            match metadata {
                // The node's module is not loaded; a container works without it.
                Err(_) if is_optional => {
                    log.write_line(format_args!("{} is missing: the container goes without", node.host.display()));
                    return Ok(());
                }
                Err(_) => return Err(node_error("missing")),
                Ok(metadata) if !metadata.file_type().is_char_device() => {
                    return Err(node_error("no character device"));
                }
                Ok(metadata) if metadata.rdev() != rustix::fs::makedev(node.major, node.minor) => {
                    return Err(node_error("another device than the driver's"));
                }
                Ok(_) => self.mount(&node.host, Target::Path(node.container.clone()), NODE)?,
            }
        }
        self.devices.push(number);
        Ok(())
    }

    fn mig(&mut self, inputs: &Inputs<'_>, file: &str, gpus: &[&Gpu]) -> Result<(), DriverMountError> {
        let Some(capability) = inputs.driver.capability_node(file).filter(|_| !gpus.is_empty()) else { return Ok(()) };
        let folder = Path::new("/dev/nvidia-caps");
        let target = Target::Path(folder.into());
        let is_mounted = self.mounts.iter().any(|(_, other, _)| matches!(other, Target::Path(path) if path == folder));
        if !inputs.arguments.no_devbind && !is_mounted {
            self.mount(&inputs.driver.root.devices.join("dev/nvidia-caps"), target, NODE_DIRECTORY)?;
        }
        let minors = gpus.iter().flat_map(|gpu| mig::capability_minors(inputs.driver, gpu));
        let all = std::iter::once(capability.minor).chain(minors);
        self.devices.extend(all.map(|minor| DeviceNumber { major: capability.major, minor }));
        Ok(())
    }

    fn mount(&mut self, host: &Path, target: Target, restrictions: Restrictions) -> Result<(), DriverMountError> {
        self.mounts.push((DetachedMount::open(host)?, target, restrictions));
        Ok(())
    }

    pub fn mount_all(mut self, changes: &mut Changes<'_>, layout: &Layout, log: &Log) -> Result<(), ChangeError> {
        if changes.is_shared_with_host(Path::new(PROC_DIRECTORY))? {
            log.note(format_args!(
                "{PROC_DIRECTORY} is the host's own, mounted shared: it stays as it is, with every GPU"
            ));
            self.facts.clear();
            self.mounts.retain(|(_, target, _)| !target.path(layout).starts_with(PROC_DIRECTORY));
        } else {
            changes.mount_tmpfs(Path::new(PROC_DIRECTORY))?;
        }
        for (name, text) in &self.facts {
            changes.write(&Path::new(PROC_DIRECTORY).join(name), text.as_bytes())?;
        }
        let profiles = Path::new(profile::FOLDER);
        if self.profile.is_some() && changes.is_shared_with_host(profiles)? {
            log.note(format_args!("{} is the host's own, mounted shared: EGL is shown every GPU", profile::FOLDER));
        } else if let Some(text) = &self.profile {
            changes.mount_tmpfs(profiles)?;
            changes.write(Path::new(profile::FILE), text.as_bytes())?;
        }
        for (mount, target, restrictions) in self.mounts {
            let path = target.path(layout);
            match changes.mount(mount, &path, restrictions) {
                Err(error) if restrictions == SOCKET => {
                    log.note(format_args!("the container goes without {}: {}", path.display(), chain(&error)));
                }
                done => done?,
            }
        }
        self.links.iter().try_for_each(|(link, target)| changes.link(&link.path(layout), target))
    }
}

impl Target {
    fn path(&self, layout: &Layout) -> PathBuf {
        match self {
            Target::Path(path) => path.clone(),
            Target::Library { name, compat32: false } => layout.libraries.join(name),
            Target::Library { name, compat32: true } => layout.libraries32.join(name),
        }
    }
}

pub fn mount_compat(
    libraries: Vec<(OsString, crate::beneath::Handle)>,
    changes: &mut Changes<'_>,
    layout: &Layout,
) -> Result<(), ChangeError> {
    for (name, library) in libraries {
        let path = library.path().to_path_buf();
        let mount = DetachedMount::of(&library).map_err(|source| ChangeError::Source { path, source })?;
        changes.mount(mount, &layout.libraries.join(name), FILE)?;
    }
    Ok(())
}
