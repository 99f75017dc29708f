//! Container edits for a driver, its GPUs and its files.
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
    pub fn new(hooks: PathBuf) -> Options {
        Options { hooks: Hooks::new(hooks), sockets: true, groups: true }
    }

    /// Applies names from users: hooks to disable (`all` is every hook), then hooks to enable, then feature flags. Returns
    /// the unknown names.
    pub fn apply_user_options<'a>(
        &mut self,
        disable: &'a [String],
        enable: &'a [String],
        flags: &'a [String],
    ) -> Vec<&'a str> {
        let mut unknown = Vec::new();
        for word in disable {
            match HookName::from_kebab_name(word) {
                _ if word == "all" => self.hooks.disabled.extend(HookName::all()),
                Some(hook) => self.hooks.disabled.push(hook),
                None => unknown.push(word.as_str()),
            }
        }
        for word in enable {
            match HookName::from_kebab_name(word) {
                Some(hook) => self.hooks.disabled.retain(|disabled| *disabled != hook),
                None => unknown.push(word.as_str()),
            }
        }
        for word in flags {
            match word.as_str() {
                "no-additional-gids-for-device-nodes" => self.groups = false,
                "disable-ipc-discoverer" => self.sockets = false,
                // We never use these features.
                "disable-nvsandboxutils" | "disable-nvsandbox-utils" | "disable-multiple-csv-devices" => {}
                other => unknown.push(other),
            }
        }
        unknown
    }
}

const FILE_OPTIONS: [&str; 5] = ["ro", "nosuid", "nodev", "rbind", "rprivate"];
/// Not read-only: connecting to a socket needs write access.
const SOCKET_OPTIONS: [&str; 5] = ["nosuid", "nodev", "rbind", "rprivate", "noexec"];
/// Keeps a prestart hook from adding devices again.
pub const VISIBLE_DEVICES_VOID: &str = "NVIDIA_VISIBLE_DEVICES=void";
/// Folders below `/dev` that contain the driver's nodes.
const NODE_FOLDERS: [&str; 2] = ["/dev/dri", "/dev/nvidia-caps"];

pub fn edits_for(
    driver: &Driver,
    selection: &Selection<'_>,
    capabilities: Capabilities,
    options: &Options,
) -> Result<ContainerEdits, DriverError> {
    let gpus = selection.gpus.iter().chain(selection.migs.iter().map(|(gpu, _)| gpu)).copied();
    let mut edits = nodes_and_links(driver, gpus, driver.nodes(selection, capabilities), options);
    append(&mut edits, &files(driver, capabilities, options)?);
    sort(&mut edits);
    Ok(edits)
}

/// Edits besides nodes for programs that manage GPUs: the driver's files without those for desktops. These programs may make device nodes
/// and see every GPU.
pub fn management_edits(
    driver: &Driver,
    capabilities: Capabilities,
    options: &Options,
) -> Result<ContainerEdits, DriverError> {
    let mut options = options.clone();
    options.hooks.disabled.extend([HookName::DisableDeviceNodeModification, HookName::HideOtherGpus]);
    let mut edits = mounts_and_hooks(&driver.files(capabilities)?.without_desktop(), &driver.version, &options);
    sort(&mut edits);
    Ok(edits)
}

/// The edits of these nodes, and the `by-path` links to the GPUs' display nodes.
pub fn nodes_and_links<'a>(
    driver: &Driver,
    gpus: impl IntoIterator<Item = &'a Gpu>,
    nodes: Vec<Node>,
    options: &Options,
) -> ContainerEdits {
    let mut edits = ContainerEdits::default();
    let links: Vec<_> = gpus.into_iter().flat_map(|gpu| by_path_links(&driver.root.devices, gpu, &nodes)).collect();
    edits.hooks.extend(options.hooks.links(links.iter().map(|(path, target)| (path.as_path(), target.as_path()))));
    append(&mut edits, &device_nodes(nodes, options));
    edits
}

/// The hook that limits memory on the GPUs of a selection, if the container requests a limit. A MIG device is passed by
/// its own UUID, so that the hook can refuse a limit on it.
pub fn memory_limits_hook(driver: &Driver, selection: &Selection<'_>, options: &Options) -> Option<Hook> {
    let whole = |gpu: &&&Gpu| !selection.migs.iter().any(|(owner, _)| owner.index == gpu.index);
    // The driver does not know every device's UUID. The hook refuses an unknown device.
    let or_placeholder =
        |uuid: &str, placeholder: &str| if uuid.is_empty() { placeholder.into() } else { uuid.to_owned() };
    let gpus = selection.gpus.iter().filter(whole).map(|gpu| or_placeholder(&gpu.uuid, "GPU-?"));
    let migs = selection.migs.iter().map(|(_, mig)| or_placeholder(&mig.uuid, "MIG-?"));
    options.hooks.memory_limits(&driver.root.files, gpus.chain(migs))
}

pub fn device_nodes(nodes: Vec<Node>, options: &Options) -> ContainerEdits {
    let mut edits = ContainerEdits::default();
    let within = |folder: &&str| nodes.iter().any(|node| node.container.parent() == Some(Path::new(folder)));
    edits.hooks.extend(options.hooks.chmod(NODE_FOLDERS.into_iter().filter(within).map(String::from)));
    for node in nodes {
        let (described, group) = describe_node(node);
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
    let needs_display = capabilities.has(Capability::Graphics) || capabilities.has(Capability::Display);
    let mut edits = mounts_and_hooks(&driver.files(capabilities)?, &driver.version, options);
    edits.hooks.extend(options.hooks.hook(HookName::UpdateApplicationProfile, []).filter(|_| needs_display));
    Ok(edits)
}

fn mounts_and_hooks(files: &Files, version: &str, options: &Options) -> ContainerEdits {
    let libraries = files.libraries.iter().map(|library| &library.file);
    let read = libraries.chain(&files.programs).chain(&files.firmware).chain(&files.data);
    let mut mounts: Vec<_> = read.map(read_only).collect();
    if options.sockets {
        mounts.extend(files.sockets.iter().map(|file| mount(file, &SOCKET_OPTIONS)));
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
    env.push(VISIBLE_DEVICES_VOID.into());
    ContainerEdits { env, mounts, hooks: named, ..ContainerEdits::default() }
}

/// The link `libcuda.so.1` beside `libcuda.so.580.159.04`.
fn soname_link(library: &crate::driver::files::Library) -> Option<(PathBuf, PathBuf)> {
    let name = library.file.container.file_name()?;
    let differs = !library.soname.is_empty() && name != library.soname.as_str();
    differs.then(|| (library.file.container.with_file_name(&library.soname), name.into()))
}

pub fn read_only(file: &File) -> Mount {
    mount(file, &FILE_OPTIONS)
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
fn describe_node(node: Node) -> (DeviceNode, Option<u32>) {
    let on_host = fs::metadata(&node.host).ok().filter(|node| node.file_type().is_char_device());
    // A missing node needs its type: engines look a missing type up on the host, and would fail.
    let is_missing = on_host.is_none();
    let mode = on_host.as_ref().map_or_else(|| default_mode(&node), |node| node.mode() & 0o7777);
    let group = on_host.as_ref().map(|node| node.gid()).filter(|gid| *gid != 0);
    let described = DeviceNode {
        path: node.container.display().to_string(),
        // Without a hostPath the spec needs an older CDI version, which more engines accept.
        host_path: (node.host != node.container).then(|| node.host.display().to_string()),
        kind: is_missing.then(|| "c".into()),
        major: Some(node.major.into()),
        minor: Some(node.minor.into()),
        file_mode: Some(mode),
        permissions: Some("rwm".into()),
        gid: group,
        ..DeviceNode::default()
    };
    (described, group.filter(|_| mode & 0o006 != 0o006))
}

/// The mode of a node that is not on the host. The driver opens its own nodes to all users. The kernel's display nodes
/// are for root and a group of the host.
fn default_mode(node: &Node) -> u32 {
    if node.container.starts_with("/dev/dri") { 0o660 } else { 0o666 }
}

/// `/dev/dri/by-path/pci-ADDRESS-card` and `-render`, as they are on the host, if they lead to one of these nodes.
fn by_path_links(devices: &Path, gpu: &Gpu, nodes: &[Node]) -> Vec<(PathBuf, PathBuf)> {
    let bus = gpu.bus.to_ascii_lowercase();
    // The kernel writes four digits of the domain, NVML eight.
    let address = bus.strip_prefix("0000").filter(|rest| rest.find(':') == Some(4)).unwrap_or(&bus);
    let links = ["card", "render"].map(|kind| Path::new("/dev/dri/by-path").join(format!("pci-{address}-{kind}")));
    let to_node = |link: PathBuf| {
        let target = fs::read_link(devices.join(link.strip_prefix("/").ok()?)).ok()?;
        let node = Path::new("/dev/dri").join(target.file_name()?);
        nodes.iter().any(|own| own.container == node).then_some((link, target))
    };
    links.into_iter().filter_map(to_node).collect()
}

/// Removes duplicates. Keeps the order.
fn unique<'a>(folders: impl Iterator<Item = &'a Path>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    folders.filter(|folder| seen.insert(*folder)).map(|folder| folder.display().to_string()).collect()
}
