//! The driver's parts for a container: opened on the host, mounted in the container.
//!
//! All host files are opened before the container's mount namespace is entered, so none is mistaken for a file of the container.
//!
//! Source: libnvidia-container, `src/nvc_mount.c`: what is mounted where and with which flags; NVIDIA's driver
//! README, "The /proc/driver/nvidia file system" and "Application Profiles".

use super::changes::{ChangeError, Changes, DetachedMount};
use super::layout::Layout;
use crate::beneath::Restrictions;
use crate::capability::Capability;
use crate::cdi_hooks::{params, profile};
use crate::chain::chain;
use crate::cli::args::Configure;
use crate::cli::cgroup::program::Numbers;
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
const FACT: Restrictions = Restrictions { read_only: true, no_exec: true, no_devices: true };
const NODE: Restrictions = Restrictions { read_only: true, no_exec: true, no_devices: false };
// New nodes come and go in it as MIG devices are made.
const NODES: Restrictions = Restrictions { read_only: false, no_exec: true, no_devices: false };

/// Folders in which libvdpau and Mesa's libgbm look for drivers, beside the other libraries.
const OWN_FOLDERS: [&str; 2] = ["vdpau", "gbm"];
/// Nodes of modules that need not be loaded.
const OPTIONAL: [&str; 3] = ["/dev/nvidia-uvm", "/dev/nvidia-modeset", "/dev/dri/"];
const FACTS: &str = "/proc/driver/nvidia";

#[derive(Debug, Error)]
pub enum SupplyError {
    #[error(transparent)]
    Place(#[from] ChangeError),
    #[error("{} is {what}", path.display())]
    Node { path: PathBuf, what: &'static str },
    #[error("the driver has no IMEX channel {0}")]
    Channel(u32),
}

pub struct Order<'a> {
    pub driver: &'a Driver,
    pub files: &'a Files,
    pub selection: &'a Selection<'a>,
    pub config: &'a [&'a Gpu],
    pub monitor: &'a [&'a Gpu],
    pub arguments: &'a Configure,
    /// Whether ldconfig's root is changed by name only.
    pub no_pivot: bool,
}

#[derive(Debug, Default)]
pub struct DriverMounts {
    facts: Vec<(&'static str, String)>,
    profile: Option<String>,
    mounts: Vec<(DetachedMount, Target, Restrictions)>,
    links: Vec<(Target, PathBuf)>,
    pub devices: Vec<Numbers>,
}

#[derive(Debug, Clone)]
enum Target {
    At(PathBuf),
    Library { name: OsString, compat32: bool },
}

impl DriverMounts {
    pub fn open(order: &Order<'_>, log: &Log) -> Result<DriverMounts, SupplyError> {
        let mut mounts = DriverMounts::default();
        let capabilities = order.arguments.capabilities();
        mounts.facts(order);
        if capabilities.has(Capability::Graphics) {
            let minors = order.selection.gpus.iter().map(|gpu| gpu.minor);
            mounts.profile = Some(profile::text(profile::mask(minors)));
        }
        mounts.files(order, log)?;
        mounts.gpus(order)?;
        for node in order.driver.nodes(order.selection, capabilities) {
            mounts.node(order, &node, log)?;
        }
        for (file, gpus) in [("mig/config", order.config), ("mig/monitor", order.monitor)] {
            mounts.mig(order, file, gpus)?;
        }
        for channel in &order.arguments.imex_channel {
            let node = order.driver.imex_node(*channel).ok_or(SupplyError::Channel(*channel))?;
            mounts.node(order, &node, log)?;
        }
        Ok(mounts)
    }

    /// The driver's text files of procfs, with `ModifyDeviceFiles: 0`: in a container, the driver's programs must not make or change
    /// nodes.
    fn facts(&mut self, order: &Order<'_>) {
        let folder = order.driver.root.kernel_files.join("proc/driver/nvidia");
        for name in ["params", "version", "registry"] {
            if let Ok(text) = fs::read_to_string(folder.join(name)) {
                self.facts.push((name, params::without_modification(&text).unwrap_or(text)));
            }
        }
    }

    fn files(&mut self, order: &Order<'_>, log: &Log) -> Result<(), SupplyError> {
        let files = order.files;
        let without = order.arguments.without;
        let mut folders = Vec::new();
        for library in &files.libraries {
            let path = &library.file.container;
            let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { continue };
            folders.push((folder, library.compat32));
            // Some are found by their folder's name.
            let own = folder.file_name().filter(|name| OWN_FOLDERS.iter().any(|own| name == own));
            let name = own.map(|own| Path::new(own).join(name)).unwrap_or_else(|| name.into()).into();
            let target = Target::Library { name, compat32: library.compat32 };
            self.mount(&library.file.host, target, FILE)?;
        }
        for program in &files.programs {
            let Some(name) = program.container.file_name() else { continue };
            self.mount(&program.host, Target::At(Path::new("/usr/bin").join(name)), FILE)?;
        }
        let firmware = files.firmware.iter().filter(|_| !without.no_gsp_firmware);
        for file in firmware.chain(&files.data) {
            self.mount(&file.host, Target::At(file.container.clone()), FILE)?;
        }
        for socket in files.sockets.iter().filter(|socket| without.keeps(&socket.container)) {
            // In a pod a socket may not be mountable again. Programs work without these daemons.
            if let Err(error) = self.mount(&socket.host, Target::At(socket.container.clone()), SOCKET) {
                log.note(format_args!("the container goes without {}: {}", socket.container.display(), chain(&error)));
            }
        }
        for link in &files.links {
            // A link beside libraries goes where they go.
            let beside = folders.iter().find(|(folder, _)| link.path.parent() == Some(folder));
            let target = match (beside, link.path.file_name()) {
                (Some((_, compat32)), Some(name)) => Target::Library { name: name.into(), compat32: *compat32 },
                _ => Target::At(link.path.clone()),
            };
            self.links.push((target, link.target.clone()));
        }
        Ok(())
    }

    fn gpus(&mut self, order: &Order<'_>) -> Result<(), SupplyError> {
        let facts = &order.driver.root.kernel_files;
        for gpu in &order.selection.gpus {
            // The driver writes four digits of the PCI domain or eight, by its release.
            let address = gpu.bus.to_ascii_lowercase();
            let spellings = [Some(address.as_str()), address.get(4..)];
            let mut folders = spellings.into_iter().flatten().map(|name| format!("proc/driver/nvidia/gpus/{name}"));
            let folder = folders.find(|folder| facts.join(folder).is_dir());
            if let Some(folder) = folder {
                self.mount(&facts.join(&folder), Target::At(Path::new("/").join(folder)), FACT)?;
            }
        }
        if !order.config.is_empty() || !order.monitor.is_empty() {
            return self.mount(&facts.join(CAPABILITIES), Target::At(Path::new("/").join(CAPABILITIES)), FACT);
        }
        for (gpu, device) in &order.selection.migs {
            for file in device.access_files(gpu) {
                let path = Path::new(CAPABILITIES).join(file);
                self.mount(&facts.join(&path), Target::At(Path::new("/").join(path)), FACT)?;
            }
        }
        Ok(())
    }

    fn node(&mut self, order: &Order<'_>, node: &Node, log: &Log) -> Result<(), SupplyError> {
        let wrong = |what| SupplyError::Node { path: node.host.clone(), what };
        let numbers = Numbers { major: node.major, minor: node.minor };
        if !order.arguments.no_devbind {
            let there = fs::metadata(&node.host);
            let path = node.container.to_string_lossy();
            let optional = OPTIONAL.iter().any(|start| path.starts_with(start));
            match there {
                // A module that is not loaded has no nodes; a container may do without these.
                Err(_) if optional => {
                    log.say(format_args!("{} is missing: the container goes without", node.host.display()));
                    return Ok(());
                }
                Err(_) => return Err(wrong("missing")),
                Ok(about) if !about.file_type().is_char_device() => return Err(wrong("no character device")),
                Ok(about) if about.rdev() != rustix::fs::makedev(node.major, node.minor) => {
                    return Err(wrong("another device than the driver's"));
                }
                Ok(_) => self.mount(&node.host, Target::At(node.container.clone()), NODE)?,
            }
        }
        self.devices.push(numbers);
        Ok(())
    }

    fn mig(&mut self, order: &Order<'_>, file: &str, gpus: &[&Gpu]) -> Result<(), SupplyError> {
        let Some(rule) = order.driver.capability_node(file).filter(|_| !gpus.is_empty()) else { return Ok(()) };
        let folder = Path::new("/dev/nvidia-caps");
        let target = Target::At(folder.into());
        let there = self.mounts.iter().any(|(_, other, _)| matches!(other, Target::At(path) if path == folder));
        if !order.arguments.no_devbind && !there {
            self.mount(&order.driver.root.devices.join("dev/nvidia-caps"), target, NODES)?;
        }
        let minors = gpus.iter().flat_map(|gpu| mig::minors(order.driver, gpu));
        let all = std::iter::once(rule.minor).chain(minors);
        self.devices.extend(all.map(|minor| Numbers { major: rule.major, minor }));
        Ok(())
    }

    fn mount(&mut self, host: &Path, target: Target, restrictions: Restrictions) -> Result<(), SupplyError> {
        self.mounts.push((DetachedMount::open(host)?, target, restrictions));
        Ok(())
    }

    pub fn place(mut self, changes: &mut Changes<'_>, layout: &Layout, log: &Log) -> Result<(), ChangeError> {
        if changes.is_shared_with_host(Path::new(FACTS))? {
            log.note(format_args!("{FACTS} is the host's own, mounted shared: it stays as it is, with every GPU"));
            self.facts.clear();
            self.mounts.retain(|(_, target, _)| !target.path(layout).starts_with(FACTS));
        } else {
            changes.memory(Path::new(FACTS))?;
        }
        for (name, text) in &self.facts {
            changes.write(&Path::new(FACTS).join(name), text.as_bytes())?;
        }
        let profiles = Path::new(profile::FOLDER);
        if self.profile.is_some() && changes.is_shared_with_host(profiles)? {
            log.note(format_args!("{} is the host's own, mounted shared: EGL is shown every GPU", profile::FOLDER));
        } else if let Some(text) = &self.profile {
            changes.memory(profiles)?;
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
            Target::At(path) => path.clone(),
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
