//! What a driver adds to a container, as edits.
//!
//! Source: NVIDIA Container Toolkit 1.20, "Support for Container Device Interface": options of mounts, the
//! variables, the order of hooks.

use super::hooks::{HookName, Hooks};
use super::registry::append;
use crate::capability::{Capabilities, Capability};
use crate::driver::files::{File, Files};
use crate::driver::{Driver, DriverError, Gpu, Node, Selection};
use crate::edits::{ContainerEdits, DeviceNode, Hook, Mount};
use crate::kebab_name::KebabName;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub hooks: Hooks,
    pub sockets: bool,
    /// Whether the container's process joins the groups of device nodes that are not open to all users.
    pub groups: bool,
}

impl Options {
    pub fn of(hooks: PathBuf) -> Options {
        Options { hooks: Hooks::of(hooks), sockets: true, groups: true }
    }

    /// Changes them by the words of users: hooks left out (`all` is every one), hooks named in spite of that, feature
    /// flags. The words that mean nothing to us come back.
    pub fn change<'a>(&mut self, without: &'a [String], with: &'a [String], flags: &'a [String]) -> Vec<&'a str> {
        let mut unknown = Vec::new();
        for word in without {
            match HookName::from_kebab_name(word) {
                _ if word == "all" => self.hooks.without.extend(HookName::all()),
                Some(hook) => self.hooks.without.push(hook),
                None => unknown.push(word.as_str()),
            }
        }
        for word in with {
            match HookName::from_kebab_name(word) {
                Some(hook) => self.hooks.without.retain(|left_out| *left_out != hook),
                None => unknown.push(word.as_str()),
            }
        }
        for word in flags {
            match word.as_str() {
                "no-additional-gids-for-device-nodes" => self.groups = false,
                "disable-ipc-discoverer" => self.sockets = false,
                // We use neither in the first place.
                "disable-nvsandboxutils" | "disable-nvsandbox-utils" | "disable-multiple-csv-devices" => {}
                other => unknown.push(other),
            }
        }
        unknown
    }
}

const FILE: [&str; 5] = ["ro", "nosuid", "nodev", "rbind", "rprivate"];
/// Options of a socket's mount. Not read-only: connecting needs write access.
const SOCKET: [&str; 5] = ["nosuid", "nodev", "rbind", "rprivate", "noexec"];
/// Keeps a prestart hook from adding devices again.
pub const VOID: &str = "NVIDIA_VISIBLE_DEVICES=void";
/// Folders below `/dev` that hold our nodes.
const NODE_FOLDERS: [&str; 2] = ["/dev/dri", "/dev/nvidia-caps"];

pub fn edits_for(
    driver: &Driver,
    selection: &Selection<'_>,
    capabilities: Capabilities,
    options: &Options,
) -> Result<ContainerEdits, DriverError> {
    let gpus = selection.gpus.iter().chain(selection.migs.iter().map(|(gpu, _)| gpu)).copied();
    let mut edits = nodes(driver, gpus, driver.nodes(selection, capabilities), options);
    append(&mut edits, &files(driver, capabilities, options)?);
    sort(&mut edits);
    Ok(edits)
}

/// Edits besides nodes for programs that manage GPUs: the driver without graphics. They may make device nodes, and see every GPU.
pub fn for_managers(
    driver: &Driver,
    capabilities: Capabilities,
    options: &Options,
) -> Result<ContainerEdits, DriverError> {
    let mut options = options.clone();
    options.hooks.without.extend([HookName::DisableDeviceNodeModification, HookName::HideOtherGpus]);
    let mut edits = mounts_and_hooks(&driver.files(capabilities)?.without_desktop(), &driver.version, &options);
    sort(&mut edits);
    Ok(edits)
}

/// What these nodes add, and the links that name the GPUs' display nodes by address.
pub fn nodes<'a>(
    driver: &Driver,
    gpus: impl IntoIterator<Item = &'a Gpu>,
    nodes: Vec<Node>,
    options: &Options,
) -> ContainerEdits {
    let mut edits = ContainerEdits::default();
    let links: Vec<_> = gpus.into_iter().flat_map(|gpu| by_path(&driver.root.devices, gpu, &nodes)).collect();
    edits.hooks.extend(options.hooks.links(links.iter().map(|(path, target)| (path.as_path(), target.as_path()))));
    append(&mut edits, &plain_nodes(nodes, options));
    edits
}

/// The hook that limits memory on the GPUs of a selection, if the container asks for a limit. A MIG device is named by its
/// own UUID, so that the hook can refuse a limit on it.
pub fn memory_limits(driver: &Driver, selection: &Selection<'_>, options: &Options) -> Option<Hook> {
    let whole = |gpu: &&&Gpu| !selection.migs.iter().any(|(owner, _)| owner.index == gpu.index);
    // The driver does not know every device's UUID. The hook refuses what it does not find.
    let known = |uuid: &str, unknown: &str| if uuid.is_empty() { unknown.into() } else { uuid.to_owned() };
    let gpus = selection.gpus.iter().filter(whole).map(|gpu| known(&gpu.uuid, "GPU-?"));
    let migs = selection.migs.iter().map(|(_, mig)| known(&mig.uuid, "MIG-?"));
    options.hooks.memory_limits(&driver.root.files, gpus.chain(migs))
}

pub fn plain_nodes(nodes: Vec<Node>, options: &Options) -> ContainerEdits {
    let mut edits = ContainerEdits::default();
    let within = |folder: &&str| nodes.iter().any(|node| node.container.parent() == Some(Path::new(folder)));
    edits.hooks.extend(options.hooks.chmod(NODE_FOLDERS.into_iter().filter(within).map(String::from)));
    for node in nodes {
        let (described, group) = describe(node);
        edits.additional_gids.extend(group.filter(|group| options.groups && !edits.additional_gids.contains(group)));
        edits.device_nodes.push(described);
    }
    sort(&mut edits);
    edits
}

/// Sorts the edits, so that the same host gives the same bytes. A mount comes after those that contain its target.
pub fn sort(edits: &mut ContainerEdits) {
    let depth = |path: &str| (Path::new(path).components().count(), path.to_string());
    edits.device_nodes.sort_by_cached_key(|node| depth(&node.path));
    edits.device_nodes.dedup();
    edits.mounts.sort_by_cached_key(|mount| depth(&mount.container_path));
    edits.mounts.dedup();
    edits.additional_gids.sort_unstable();
    edits.additional_gids.dedup();
}

fn files(driver: &Driver, capabilities: Capabilities, options: &Options) -> Result<ContainerEdits, DriverError> {
    let draws = capabilities.has(Capability::Graphics) || capabilities.has(Capability::Display);
    let mut edits = mounts_and_hooks(&driver.files(capabilities)?, &driver.version, options);
    edits.hooks.extend(options.hooks.hook(HookName::UpdateApplicationProfile, []).filter(|_| draws));
    Ok(edits)
}

fn mounts_and_hooks(files: &Files, version: &str, options: &Options) -> ContainerEdits {
    let libraries = files.libraries.iter().map(|library| &library.file);
    let read = libraries.chain(&files.programs).chain(&files.firmware).chain(&files.data);
    let mut mounts: Vec<_> = read.map(read_only).collect();
    if options.sockets {
        mounts.extend(files.sockets.iter().map(|file| mount(file, &SOCKET)));
    }

    let hooks = &options.hooks;
    let folders = unique(files.libraries.iter().filter_map(|library| library.file.container.parent()));
    let cuda = files.libraries.iter().filter(|library| library.soname.starts_with("libcuda.so") && !library.compat32);
    let cuda = unique(cuda.filter_map(|library| library.file.container.parent()));
    // Loaders find a library by its soname; ldconfig would make these links, but the image's may be read-only or musl's.
    let sonames: Vec<_> = files.libraries.iter().filter_map(soname_link).collect();
    let links = sonames.iter().map(|(path, target)| (path.as_path(), target.as_path()));
    let links = links.chain(files.links.iter().map(|link| (link.path.as_path(), link.target.as_path())));
    let mut seen = BTreeSet::new();
    let mut named = Vec::new();
    named.extend(hooks.links(links.filter(|(path, _)| seen.insert(*path))));
    if !cuda.is_empty() {
        named.extend(hooks.cuda_compat(version));
    }
    named.extend(hooks.ldcache(folders));
    named.extend(hooks.hook(HookName::DisableDeviceNodeModification, []));
    named.extend(hooks.hook(HookName::HideOtherGpus, []));

    let mut env = Vec::new();
    if !cuda.is_empty() {
        env.push(format!("NVIDIA_CTK_LIBCUDA_DIR={}", cuda.join(":")));
    }
    env.push(VOID.into());
    ContainerEdits { env, mounts, hooks: named, ..ContainerEdits::default() }
}

/// `libcuda.so.1` beside `libcuda.so.580.159.04`.
fn soname_link(library: &crate::driver::files::Library) -> Option<(PathBuf, PathBuf)> {
    let name = library.file.container.file_name()?;
    let differs = !library.soname.is_empty() && name != library.soname.as_str();
    differs.then(|| (library.file.container.with_file_name(&library.soname), name.into()))
}

pub fn read_only(file: &File) -> Mount {
    mount(file, &FILE)
}

fn mount(file: &File, options: &[&str]) -> Mount {
    Mount {
        host_path: file.host.display().to_string(),
        container_path: file.container.display().to_string(),
        kind: None,
        options: options.iter().map(ToString::to_string).collect(),
    }
}

/// A node, and the group that may use it if not all users may.
fn describe(node: Node) -> (DeviceNode, Option<u32>) {
    let on_host = fs::metadata(&node.host).ok().filter(|node| node.file_type().is_char_device());
    // A node that has not been made yet is described in full: engines look the rest up on the host, and would not find it.
    let unmade = on_host.is_none();
    let mode = on_host.as_ref().map_or_else(|| mode_unmade(&node), |node| node.mode() & 0o7777);
    let group = on_host.as_ref().map(|node| node.gid()).filter(|gid| *gid != 0);
    let described = DeviceNode {
        path: node.container.display().to_string(),
        // A version that engines have had for longer knows no hostPath.
        host_path: (node.host != node.container).then(|| node.host.display().to_string()),
        kind: unmade.then(|| "c".into()),
        major: Some(node.major.into()),
        minor: Some(node.minor.into()),
        file_mode: Some(mode),
        permissions: Some("rwm".into()),
        gid: group,
        ..DeviceNode::default()
    };
    (described, group.filter(|_| mode & 0o006 != 0o006))
}

/// The mode of a node that is not on the host. The driver opens its own nodes to all users; the kernel's display nodes
/// are for root and, where the host has made them, a group.
fn mode_unmade(node: &Node) -> u32 {
    if node.container.starts_with("/dev/dri") { 0o660 } else { 0o666 }
}

/// `/dev/dri/by-path/pci-ADDRESS-card` and `-render`, as they are on the host, if they lead to one of these nodes.
fn by_path(devices: &Path, gpu: &Gpu, nodes: &[Node]) -> Vec<(PathBuf, PathBuf)> {
    let bus = gpu.bus.to_ascii_lowercase();
    // The kernel writes four digits of the domain, NVML eight.
    let address = bus.strip_prefix("0000").filter(|rest| rest.find(':') == Some(4)).unwrap_or(&bus);
    let links = ["card", "render"].map(|kind| Path::new("/dev/dri/by-path").join(format!("pci-{address}-{kind}")));
    let leads = |link: PathBuf| {
        let target = fs::read_link(devices.join(link.strip_prefix("/").ok()?)).ok()?;
        let node = Path::new("/dev/dri").join(target.file_name()?);
        nodes.iter().any(|known| known.container == node).then_some((link, target))
    };
    links.into_iter().filter_map(leads).collect()
}

/// Each once, in the order in which they come.
fn unique<'a>(folders: impl Iterator<Item = &'a Path>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    folders.filter(|folder| seen.insert(*folder)).map(|folder| folder.display().to_string()).collect()
}
