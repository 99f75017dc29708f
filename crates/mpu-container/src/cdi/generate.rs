//! Generates the CDI spec of a host's driver.
//!
//! Source: `nvidia-ctk cdi generate --help` and `pkg/nvcdi` of NVIDIA Container Toolkit 1.20.

use super::error::GenerateError;
use super::extra::{self, Mode};
use super::hooks::Hooks;
use super::inject::{self, Options};
use super::name::{Kind, QualifiedName};
use super::registry::append;
use super::validate;
use super::version;
use crate::capability::Capabilities;
use crate::driver::{Driver, DriverRoot, Gpu, Mig, Selection, UnknownDevice};
use crate::edits::{ContainerEdits, Device, Spec};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileTypeExt;

const ALL: &str = "all";

/// The libraries without which most containers are of no use, and what needs them.
const MAIN_LIBRARIES: &[(&str, &str)] = &[("libcuda", "CUDA"), ("libnvidia-ml", "nvidia-smi")];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub kind: Kind,
    pub mode: Mode,
    /// Each naming adds one CDI device per GPU or MIG device.
    pub names: Vec<Naming>,
    /// `all`, `none`, or device names as the container CLI accepts them.
    pub devices: Vec<String>,
    /// Whether to add a device `all`.
    pub all: bool,
    pub edits: Options,
}

/// The name of a device: `0` or `0:1` by index, `GPU-…` or `MIG-…` by UUID, `gpu0` or `mig0:1` by type and index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Naming {
    Index,
    Uuid,
    TypeIndex,
}

pub fn generate(root: &DriverRoot, request: &Request) -> Result<Spec, GenerateError> {
    let (devices, container_edits) = match request.mode {
        Mode::Nvml => gpu_devices(&Driver::find(root)?, request)?,
        Mode::Management => {
            let driver = Driver::find(root)?;
            let common = inject::management_edits(&driver, Capabilities::WHOLE, &request.edits)?;
            let nodes = extra::nodes(root, Mode::Management);
            (single_device(inject::device_nodes(nodes, &request.edits), "NVIDIA device node")?, common)
        }
        Mode::Imex => (extra::channels(root, &request.devices, &request.edits)?, void_edits()),
        other => (single_device(extra::edits(root, other, &request.edits), other.device_description())?, void_edits()),
    };
    build_spec(devices, container_edits, request)
}

/// Removes nodes that are not on the host, and devices that lose all nodes. Returns the removed paths.
///
/// # Errors
/// If no device is left: a spec must have one.
pub fn remove_missing_device_nodes(spec: &mut Spec) -> Result<BTreeSet<String>, GenerateError> {
    let mut missing = BTreeSet::new();
    remove_missing_nodes(&mut spec.container_edits, &mut missing);
    let mut empty = None;
    spec.devices.retain_mut(|device| match remove_missing_nodes(&mut device.container_edits, &mut missing) {
        Some(path) if device.container_edits.device_nodes.is_empty() => {
            empty.get_or_insert((device.name.clone(), path));
            false
        }
        _ => true,
    });
    match empty {
        Some((device, path)) if spec.devices.is_empty() => Err(GenerateError::NoNode(device, path)),
        _ => Ok(missing),
    }
}

/// Returns the last removed path.
fn remove_missing_nodes(edits: &mut ContainerEdits, missing: &mut BTreeSet<String>) -> Option<String> {
    let is_there = |path: &str| fs::metadata(path).is_ok_and(|node| node.file_type().is_char_device());
    let mut last_missing = None;
    edits.device_nodes.retain(|node| {
        let path = node.host_path.as_ref().unwrap_or(&node.path);
        is_there(path) || {
            last_missing = Some(path.clone());
            missing.insert(path.clone());
            false
        }
    });
    last_missing
}

pub fn generate_for_driver(driver: &Driver, request: &Request) -> Result<Spec, GenerateError> {
    let (devices, edits) = gpu_devices(driver, request)?;
    build_spec(devices, edits, request)
}

fn gpu_devices(driver: &Driver, request: &Request) -> Result<(Vec<Device>, ContainerEdits), GenerateError> {
    let common = inject::edits_for(driver, &Selection::default(), Capabilities::WHOLE, &request.edits)?;
    if request.devices.iter().any(|word| word == "none") {
        // CDI requires that a device has edits.
        let env = vec!["NVCT_EMPTY_DEVICE=".into()];
        let none = Device {
            name: "none".into(),
            annotations: Default::default(),
            container_edits: ContainerEdits { env, ..Default::default() },
        };
        return Ok((vec![none], common));
    }
    let shared: BTreeSet<_> = common.device_nodes.iter().map(|node| node.path.clone()).collect();
    let (mut devices, mut unnamed) = (Vec::new(), Vec::new());
    for selection in &selections(driver, &request.devices)? {
        let nodes = driver.nodes(selection, Capabilities::WHOLE);
        let own = nodes.into_iter().filter(|node| !shared.contains(&*node.container.to_string_lossy())).collect();
        let mut container_edits = inject::nodes_and_links(driver, selection.gpus.iter().copied(), own, &request.edits);
        container_edits.hooks.extend(inject::memory_limits_hook(driver, selection, &request.edits));
        let own_names = names(selection, &request.names);
        if own_names.is_empty() {
            unnamed.extend(names(selection, &[Naming::Index]));
        }
        for name in own_names {
            devices.push(Device { name, annotations: Default::default(), container_edits: container_edits.clone() });
        }
    }
    match unnamed.is_empty() {
        true => Ok((devices, common)),
        false => Err(GenerateError::NoUuid(unnamed)),
    }
}

fn selections<'a>(driver: &'a Driver, words: &[String]) -> Result<Vec<Selection<'a>>, UnknownDevice> {
    let gpu = |gpu: &'a Gpu| Selection { gpus: vec![gpu], migs: Vec::new() };
    let mig = |gpu: &'a Gpu, mig: &'a Mig| Selection { gpus: vec![gpu], migs: vec![(gpu, mig)] };
    if words.iter().any(|word| word.eq_ignore_ascii_case(ALL)) {
        let whole = driver.gpus.iter().filter(|gpu| !gpu.mig_enabled).map(gpu);
        let parts = driver.gpus.iter().flat_map(|gpu| gpu.mig.iter().map(move |part| mig(gpu, part)));
        return Ok(whole.chain(parts).collect());
    }
    let mut selections = Vec::new();
    for word in words {
        let found = driver.select(std::slice::from_ref(word))?;
        match found.migs.is_empty() {
            true => selections.extend(found.gpus.iter().map(|found| gpu(found))),
            false => selections.extend(found.migs.iter().map(|(owner, part)| mig(owner, part))),
        }
    }
    Ok(selections)
}

fn names(selection: &Selection<'_>, namings: &[Naming]) -> Vec<String> {
    // If the driver does not know a UUID, it reports question marks or nothing.
    let known = |uuid: &str| !uuid.is_empty() && !uuid.contains('?');
    let name = |naming: &Naming| match (selection.migs.first(), selection.gpus.first(), naming) {
        (Some((gpu, mig)), _, Naming::Index) => Some(format!("{}:{}", gpu.index, mig.index)),
        (Some((gpu, mig)), _, Naming::TypeIndex) => Some(format!("mig{}:{}", gpu.index, mig.index)),
        (Some((_, mig)), _, Naming::Uuid) => known(&mig.uuid).then(|| mig.uuid.clone()),
        (None, Some(gpu), Naming::Index) => Some(gpu.index.to_string()),
        (None, Some(gpu), Naming::TypeIndex) => Some(format!("gpu{}", gpu.index)),
        (None, Some(gpu), Naming::Uuid) => known(&gpu.uuid).then(|| gpu.uuid.clone()),
        (None, None, _) => None,
    };
    namings.iter().filter_map(name).collect()
}

fn build_spec(devices: Vec<Device>, container_edits: ContainerEdits, request: &Request) -> Result<Spec, GenerateError> {
    let mut spec = Spec {
        cdi_version: String::new(),
        kind: request.kind.to_string(),
        annotations: Default::default(),
        devices,
        container_edits,
    };
    if spec.devices.is_empty() {
        return Err(GenerateError::Nothing(request.mode.device_description()));
    }
    let none = spec.devices.iter().any(|device| device.name == "none");
    if request.all && !none && !spec.devices.iter().any(|device| device.name == ALL) {
        spec.devices.push(merged_device(&spec.devices));
    }
    // Two requested names for one device would give it twice.
    spec.devices.sort_by(|left, right| left.name.cmp(&right.name));
    spec.devices.dedup_by(|left, right| left.name == right.name);
    spec.cdi_version = version::lowest(&spec).into();
    validate::check(&spec)?;
    Ok(spec)
}

/// The device `all`, with the edits of all others, each once.
fn merged_device(devices: &[Device]) -> Device {
    let mut edits = ContainerEdits::default();
    devices.iter().for_each(|device| append(&mut edits, &device.container_edits));
    let mut seen = BTreeSet::new();
    edits.hooks.retain(|hook| seen.insert(hook.args.clone()));
    Hooks::merge_memory_limits(&mut edits.hooks);
    inject::sort(&mut edits);
    Device { name: ALL.into(), annotations: Default::default(), container_edits: edits }
}

fn void_edits() -> ContainerEdits {
    ContainerEdits { env: vec![inject::VISIBLE_DEVICES_VOID.into()], ..ContainerEdits::default() }
}

fn single_device(edits: ContainerEdits, what: &'static str) -> Result<Vec<Device>, GenerateError> {
    match edits.device_nodes.is_empty() {
        true => Err(GenerateError::Nothing(what)),
        false => Ok(vec![Device { name: ALL.into(), annotations: Default::default(), container_edits: edits }]),
    }
}

/// Warnings about main libraries of the driver that a spec with the driver's files lacks. Many containers do without one of them, so
/// they are no errors.
pub fn warnings(spec: &Spec, mode: Mode) -> Vec<String> {
    let has_library = |stem: &str| {
        let start = format!("/{stem}.so.");
        spec.container_edits.mounts.iter().any(|mount| mount.container_path.contains(&start))
    };
    let main = match mode {
        Mode::Nvml | Mode::Management => MAIN_LIBRARIES,
        _ => &[],
    };
    let missing = main.iter().filter(|(stem, _)| !has_library(stem));
    let warning = |(stem, program): &(&str, &str)| {
        format!(
            "warning: {program} will not work in containers: the driver's {stem} is missing or damaged; \
             install the driver's libraries again, then write the spec again"
        )
    };
    missing.map(warning).collect()
}

pub fn qualified_names(spec: &Spec) -> Vec<QualifiedName> {
    let kind: Option<Kind> = spec.kind.parse().ok();
    let name = |device: &Device| QualifiedName::new(kind.clone()?, &device.name).ok();
    spec.devices.iter().filter_map(name).collect()
}
