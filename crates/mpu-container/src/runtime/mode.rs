//! The wrapper's modes of giving GPUs to a container.
//!
//! | mode | effect |
//! |---|---|
//! | `cdi` | edits come from the host's CDI files; a name without a kind gets the default kind |
//! | `jit-cdi` | edits are generated from the loaded driver, without CDI files |
//! | `legacy` | a prestart hook calls the container CLI; the specification also gets the device nodes |
//! | `auto` | `cdi` if every name is a CDI name, `jit-cdi` if none is; a mixture is refused |
//!
//! In every mode, the specification gets the device nodes and their cgroup rules. At a reload, systemd rewrites only the rules of the
//! specification, so a hook's rules would be lost. systemd finds a device by its link below `/dev/char`.
//!
//! Source: NVIDIA Container Toolkit 1.20, "nvidia-container-runtime" modes. Without a driver, NVIDIA's wrapper selects `legacy`, whose
//! hook fails. Ours reports the missing driver immediately.

use super::log::Log;
use super::merge::merge_hooks;
use super::program;
use crate::capability::Capabilities;
use crate::cdi::name::NameError;
use crate::cdi::registry::ResolveError;
use crate::cdi::{self, HookName, QualifiedName, Registry, extra, inject};
use crate::char_links;
use crate::config::{CompatMode, Config, Mode};
use crate::driver::{self, Driver, DriverError, DriverRoot, Node, Selection, UnknownDevice};
use crate::edits::{ContainerEdits, DeviceNode, Hook, Mount};
use crate::kebab_name::KebabName;
use crate::request::{self, Request, RequestError};
use crate::require::{self, RequireError};
use crate::spec::{EditError, Spec};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The kind of devices that are generated just in time.
const JIT_KIND: &str = "runtime.nvidia.com/gpu";
/// The prestart hook's current and earlier name.
const HOOK_NAMES: [&str; 2] = ["nvidia-container-runtime-hook", "nvidia-container-toolkit"];
/// Only Tegra systems have this file.
const TEGRA: &str = "/etc/nv_tegra_release";
/// NVIDIA's classes of CDI devices without the driver's files.
const WITHOUT_DRIVER: [&str; 5] = ["gds", "gdrcopy", "imex-channel", "mofed", "nvswitch"];

#[derive(Debug, Error)]
pub enum ModeError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Unknown(#[from] UnknownDevice),
    #[error(transparent)]
    Require(#[from] Box<RequireError>),
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Unresolvable(#[from] Box<ResolveError>),
    #[error("the host's CDI files are out of date: {} is not there", .0.display())]
    Stale(PathBuf),
    #[error("devices of {JIT_KIND} cannot be asked for together with other CDI devices: {0}")]
    Mixed(String),
    #[error("{names}: the host's CDI files give the whole driver, and the container may have {allowed} alone")]
    Whole { names: String, allowed: Capabilities },
    #[error("the container asks for a limit of GPU memory, which would not hold: {0}")]
    Memory(&'static str),
    #[error("mode csv, for Tegra systems, is not supported")]
    Csv,
    #[error(transparent)]
    Edit(#[from] EditError),
}

impl ModeError {
    pub(super) fn fix(&self) -> Option<String> {
        let fix = match self {
            ModeError::Request(error) => error.fix(),
            ModeError::Driver(DriverError::NotLoaded { .. }) => {
                "load the driver (modprobe nvidia) or start the container without asking for a GPU"
            }
            ModeError::Unknown(_) => "`nvidia-smi -L` lists the devices of this host",
            ModeError::Unresolvable(_) => {
                "`nvidia-ctk cdi list` lists what is described; `nvidia-ctk cdi generate` describes this host's GPUs"
            }
            ModeError::Stale(_) => {
                "describe the driver that is installed now: sudo mpu-container refresh, or what has made that CDI file"
            }
            ModeError::Memory(_) => {
                "take NVIDIA_GPU_MEMORY_LIMIT and NVIDIA_GPU_MEMORY_REQUEST away, or mend that; \
                 nvcdi-disable-hooks = [\"apply-cuda-memory-limits\"] in config.toml starts containers without their limits"
            }
            ModeError::Mixed(_) => "use names of one kind",
            ModeError::Whole { .. } => {
                "name GPUs by number or UUID, in mode auto; or set NVIDIA_DRIVER_CAPABILITIES=all, \
                 if supported-driver-capabilities in config.toml has all of them"
            }
            ModeError::Csv => {
                "set nvidia-container-runtime.mode to auto in config.toml; on Tegra, use NVIDIA's own toolkit"
            }
            ModeError::Require(error) => return Some(error.fix()),
            ModeError::Name(_) | ModeError::Driver(_) | ModeError::Edit(_) => return None,
        };
        Some(fix.into())
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Injection {
    CdiFiles(Vec<QualifiedName>),
    Jit(Vec<String>),
    LegacyHook(Vec<String>),
}

/// Edits a specification if it requests a GPU. Returns whether it does.
pub(super) fn edit(spec: &mut Spec, mode: Mode, config: &Config, log: &mut Log) -> Result<bool, ModeError> {
    let parsed = request::parse_for_mode(spec.tree(), config, mode)?;
    for note in &parsed.notes {
        log.warning(note);
    }
    let Some(request) = parsed.request else {
        log.info("the container asks for no GPU");
        return Ok(false);
    };
    let mut edits = match select_injection(mode, &request, config)? {
        Injection::LegacyHook(words) => {
            log.info(&format!("mode legacy, devices {}", words.join(",")));
            legacy_edits(spec, &words, &request, config, log)?
        }
        Injection::Jit(words) => {
            log.info(&format!("mode jit-cdi, devices {}", words.join(",")));
            spec.remove_prestart_hooks(&HOOK_NAMES);
            jit_edits(&words, &request, config, log)?
        }
        Injection::CdiFiles(names) => {
            log.info(&format!("mode cdi, devices {}", request.devices.join(",")));
            spec.remove_prestart_hooks(&HOOK_NAMES);
            cdi_file_edits(&names, mode, &request, config, log)?
        }
    };
    merge_hooks(&mut edits.hooks);
    spec.apply(&edits)?;
    if let Err(error) = char_links::ensure() {
        log.warning(&format!("cannot make links below /dev/char, by which systemd knows devices: {error}"));
    }
    Ok(true)
}

fn select_injection(mode: Mode, request: &Request, config: &Config) -> Result<Injection, ModeError> {
    let kind = match mode {
        Mode::Csv => return Err(ModeError::Csv),
        Mode::Legacy => return Ok(Injection::LegacyHook(request.devices.clone())),
        Mode::Cdi => &config.runtime.cdi_default_kind,
        Mode::Auto | Mode::JitCdi => JIT_KIND,
    };
    let qualified = |word: &String| if QualifiedName::is_valid(word) { word.clone() } else { format!("{kind}={word}") };
    let names: Vec<String> = request.devices.iter().map(qualified).collect();
    let id = |name: &String| Some(name.strip_prefix(JIT_KIND)?.strip_prefix('=')?.to_owned());
    let ids: Vec<String> = names.iter().filter_map(id).collect();
    match ids.len() {
        0 => Ok(Injection::CdiFiles(names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?)),
        all if all == names.len() => Ok(Injection::Jit(ids)),
        _ => Err(ModeError::Mixed(names.join(", "))),
    }
}

fn driver(config: &Config) -> Result<Driver, ModeError> {
    let root = config.cli.root.as_deref().map_or_else(DriverRoot::host, |root| DriverRoot::at(root, None));
    Driver::find(&root).map_err(|error| match error {
        DriverError::NotLoaded { .. } if Path::new(TEGRA).exists() => ModeError::Csv,
        other => other.into(),
    })
}

/// Checks the image's requirements for each GPU. Reads facts only if there is a requirement.
fn check_requirements(request: &Request, driver: &Driver, selection: &Selection<'_>) -> Result<(), ModeError> {
    if request.requirements.is_empty() {
        return Ok(());
    }
    let gpus: Vec<_> = selection.gpus.iter().map(|gpu| driver.gpu_facts(gpu)).collect();
    require::check_all(&request.requirements, &driver.facts(), &gpus).map_err(Box::new)?;
    Ok(())
}

/// If requests are strict, an unsatisfied requirement refuses the container. Otherwise it is only logged.
fn apply_strictness(result: Result<(), ModeError>, config: &Config, log: &mut Log) -> Result<(), ModeError> {
    match result {
        Err(error) if !config.strict_requests => {
            log.warning(&format!("the container starts all the same: {error}"));
            Ok(())
        }
        result => result,
    }
}

fn jit_edits(words: &[String], request: &Request, config: &Config, log: &mut Log) -> Result<ContainerEdits, ModeError> {
    let driver = driver(config)?;
    let selection = driver.select(words)?;
    apply_strictness(check_requirements(request, &driver, &selection), config, log)?;
    let options = jit_options(config, log);
    let mut edits = inject::edits_for(&driver, &selection, request.capabilities, &options)?;
    cdi::registry::append(&mut edits, &inject::device_nodes(imex_and_mig_nodes(&driver, request), &options));
    append_extras(&driver, request, &options, &mut edits, log);
    if request.memory.is_some() && options.hooks.has(HookName::ApplyCudaMemoryLimits) {
        if !selection.migs.is_empty() {
            return Err(ModeError::Memory("a MIG device's memory is what its profile says"));
        }
        edits.hooks.extend(inject::memory_limits_hook(&driver, &selection, &options));
    }
    fill_types(&mut edits);
    Ok(edits)
}

/// Nodes for requested IMEX channels, and for MIG's configuration and monitoring.
fn imex_and_mig_nodes(driver: &Driver, request: &Request) -> Vec<Node> {
    let mig = [("mig/config", &request.mig_config), ("mig/monitor", &request.mig_monitor)];
    let mig = mig
        .into_iter()
        .filter(|(_, requested)| requested.is_some())
        .filter_map(|(file, _)| driver.capability_node(file));
    imex_nodes(driver, request).into_iter().chain(mig).collect()
}

fn imex_nodes(driver: &Driver, request: &Request) -> Vec<Node> {
    match request.imex.iter().any(|channel| channel == request::ALL_CHANNELS) {
        true => extra::nodes(&driver.root, extra::Mode::Imex),
        false => request.imex.iter().filter_map(|channel| driver.imex_node(driver::imex_channel(channel)?)).collect(),
    }
}

/// Appends the edits for GPUDirect and other extra devices.
fn append_extras(
    driver: &Driver,
    request: &Request,
    options: &inject::Options,
    edits: &mut ContainerEdits,
    log: &mut Log,
) {
    for mode in &request.extras {
        let found = extra::edits(&driver.root, *mode, options);
        match found.is_empty() {
            true => log.warning(&format!("{} is asked for, and this host has none", mode.name())),
            false => cdi::registry::append(edits, &found),
        }
    }
}

/// Adds the type of device nodes, so that the host does not need the nodes.
fn fill_types(edits: &mut ContainerEdits) {
    for node in &mut edits.device_nodes {
        node.kind.get_or_insert_with(|| "c".into());
    }
}

/// Options with the keys of mode `jit-cdi`.
fn jit_options(config: &Config, log: &mut Log) -> inject::Options {
    let mut options = options(config);
    let unknown =
        options.apply_user_options(&config.runtime.jit_cdi_disable_hooks, &[], &config.runtime.jit_cdi_feature_flags);
    if !unknown.is_empty() {
        log.warning(&format!(
            "nvidia-container-runtime.modes.jit-cdi in config.toml names what has no effect here: {}",
            unknown.join(", ")
        ));
    }
    options
}

fn options(config: &Config) -> inject::Options {
    let mut options = inject::Options::new(program::configured(&config.ctk_path, "nvidia-cdi-hook"));
    options.groups = !config.features.no_additional_gids_for_device_nodes;
    if config.features.disable_cuda_compat_lib_hook {
        options.hooks.disabled.push(HookName::EnableCudaCompat);
    }
    // `@` means the host's program. For a CDI hook, it always is the host's.
    options.hooks.ldconfig = config.cli.ldconfig.strip_prefix('@').map(PathBuf::from);
    options
}

/// Edits from the host's CDI files. Generates edits for GPUs without a file, unless the mode is `cdi`.
fn cdi_file_edits(
    names: &[QualifiedName],
    mode: Mode,
    request: &Request,
    config: &Config,
    log: &mut Log,
) -> Result<ContainerEdits, ModeError> {
    let with_driver: Vec<&QualifiedName> = names.iter().filter(|name| includes_driver(name)).collect();
    let is_limited = !with_driver.is_empty() && request.capabilities.and(Capabilities::WHOLE) != Capabilities::WHOLE;
    let can_generate = mode != Mode::Cdi && names.iter().all(is_gpu);
    let generate = |why: String, log: &mut Log| {
        log.warning(&format!("{why}: describing it on the spot"));
        let words: Vec<String> = names.iter().map(|name| name.device().to_owned()).collect();
        jit_edits(&words, request, config, log)
    };
    if is_limited && can_generate {
        return generate(format!("the container may have {} alone", request.capabilities), log);
    }
    let registry = Registry::read(&config.runtime.cdi_spec_dirs);
    let edits = match registry.edits(names) {
        Err(error @ ResolveError::Unknown { .. }) if can_generate => return generate(error.to_string(), log),
        other => other.map_err(Box::new)?,
    };
    if is_limited {
        return Err(ModeError::Whole { names: request.devices.join(", "), allowed: request.capabilities });
    }
    apply_strictness(check_requirements_by_name(&with_driver, request, config), config, log)?;
    let limits = HookName::ApplyCudaMemoryLimits.kebab_name();
    let left_out = || config.runtime.jit_cdi_disable_hooks.iter().any(|word| *word == limits || word == "all");
    if request.memory.is_some() && !left_out() {
        // Check each device, because several tools may have written the files.
        for name in with_driver {
            let own = registry.edits(std::slice::from_ref(name)).map_err(Box::new)?;
            if !own.hooks.iter().any(|hook| hook.args.contains(&limits)) {
                return Err(ModeError::Memory(
                    "the host's CDI file has no hook for it; `nvidia-ctk cdi generate` writes one that has",
                ));
            }
        }
    }
    match missing_host_path(&edits) {
        Some(path) => Err(ModeError::Stale(path)),
        None => Ok(edits),
    }
}

/// Checks the image's requirements for GPUs of a file. For a device name that the driver does not know, checks every GPU.
fn check_requirements_by_name(names: &[&QualifiedName], request: &Request, config: &Config) -> Result<(), ModeError> {
    if names.is_empty() || request.requirements.is_empty() {
        return Ok(());
    }
    let driver = driver(config)?;
    let words: Vec<String> = names.iter().map(|name| name.device().to_owned()).collect();
    let selection = driver.select(&words).or_else(|_| driver.select(&["all".to_owned()]))?;
    check_requirements(request, &driver, &selection)
}

/// Whether a device's file includes the driver.
fn includes_driver(name: &QualifiedName) -> bool {
    name.is_nvidia() && !WITHOUT_DRIVER.contains(&name.kind().class())
}

fn is_gpu(name: &QualifiedName) -> bool {
    (name.kind().vendor(), name.kind().class()) == ("nvidia.com", "gpu")
}

/// Adds the prestart hook, its nodes, and edits that the hook does not make: links to display nodes, extra devices such as GPUDirect, and
/// CUDA's compatibility libraries in mode `hook`.
fn legacy_edits(
    spec: &Spec,
    words: &[String],
    request: &Request,
    config: &Config,
    log: &mut Log,
) -> Result<ContainerEdits, ModeError> {
    let driver = driver(config)?;
    let selection = driver.select(words)?;
    let options = options(config);
    let nodes = driver.nodes(&selection, request.capabilities);
    let mut edits = inject::nodes_and_links(&driver, selection.gpus.iter().copied(), nodes, &options);
    cdi::registry::append(&mut edits, &inject::device_nodes(imex_and_mig_nodes(&driver, request), &options));
    append_extras(&driver, request, &options, &mut edits, log);
    fill_types(&mut edits);
    let hooks = &options.hooks;
    if config.runtime.cuda_compat_mode == Some(CompatMode::Hook) && hooks.has(HookName::EnableCudaCompat) {
        edits.hooks.extend(hooks.cuda_compat(&driver.version));
        // The prestart hook has already written the loader's cache, without these libraries.
        edits.hooks.extend(hooks.refresh_ldcache());
    }
    if !spec.has_prestart_hook(&HOOK_NAMES) {
        let path = program::configured(&config.hook.path, HOOK_NAMES[0]);
        edits.hooks.push(Hook {
            hook_name: "prestart".into(),
            path: path.display().to_string(),
            args: vec![HOOK_NAMES[0].into(), "prestart".into()],
            ..Hook::default()
        });
    }
    Ok(edits)
}

pub(super) fn missing_host_path(edits: &ContainerEdits) -> Option<PathBuf> {
    let nodes = edits.device_nodes.iter().filter(|node| !is_complete(node)).map(host_path);
    let mounts = edits.mounts.iter().filter(|mount| is_bind(mount)).map(|mount| mount.host_path.as_str());
    // A `startContainer` hook's program is in the container.
    let hooks = edits.hooks.iter().filter(|hook| hook.hook_name != "startContainer").map(|hook| hook.path.as_str());
    nodes.chain(mounts).chain(hooks).map(PathBuf::from).find(|path| !path.exists())
}

/// Whether the runtime can create the node without the host's node.
fn is_complete(node: &DeviceNode) -> bool {
    match node.kind.as_deref() {
        None | Some("") => false,
        Some("p") => true,
        Some(_) => node.major.is_some_and(|major| major != 0),
    }
}

/// Whether it mounts a file or directory of the host.
fn is_bind(mount: &Mount) -> bool {
    matches!(mount.kind.as_deref(), None | Some("" | "bind" | "none"))
}

fn host_path(node: &DeviceNode) -> &str {
    node.host_path.as_deref().filter(|path| !path.is_empty()).unwrap_or(&node.path)
}
