//! The wrapper's modes: how a GPU gets into a container.
//!
//! | mode | what happens |
//! |---|---|
//! | `cdi` | names are looked up in the host's CDI files; a name without a kind is of the default kind |
//! | `jit-cdi` | edits are generated from the present driver; no file is needed |
//! | `legacy` | one prestart hook, which calls the container CLI; the device nodes are in the specification, too |
//! | `auto` | `cdi` if every name is a CDI name, `jit-cdi` if none is; a mixture is refused |
//!
//! Device nodes and their cgroup rules are in the specification in every mode. When systemd reloads, it writes only the rules that it
//! knows, so rules of a hook would be lost. It knows a device by its link below `/dev/char`.
//!
//! Source: NVIDIA Container Toolkit 1.20, "nvidia-container-runtime" modes. Without a driver NVIDIA's selects `legacy`, whose hook
//! fails; ours reports the missing driver at once.

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

/// Devices of this kind are generated on request.
const ON_THE_SPOT: &str = "runtime.nvidia.com/gpu";
/// The prestart hook's present and earlier name.
const HOOK_NAMES: [&str; 2] = ["nvidia-container-runtime-hook", "nvidia-container-toolkit"];
/// A file that Tegra systems have, and no others.
const TEGRA: &str = "/etc/nv_tegra_release";
/// NVIDIA's classes of CDI devices that bring nothing of the driver but nodes.
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
    #[error("devices of {ON_THE_SPOT} cannot be asked for together with other CDI devices: {0}")]
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
enum Way {
    Files(Vec<QualifiedName>),
    OnTheSpot(Vec<String>),
    Hook(Vec<String>),
}

/// Edits a specification if it requests a GPU; returns whether it did.
pub(super) fn edit(spec: &mut Spec, mode: Mode, config: &Config, log: &mut Log) -> Result<bool, ModeError> {
    let parsed = request::parse_for_mode(spec.tree(), config, mode)?;
    for note in &parsed.notes {
        log.warning(note);
    }
    let Some(request) = parsed.request else {
        log.info("the container asks for no GPU");
        return Ok(false);
    };
    let mut edits = match way(mode, &request, config)? {
        Way::Hook(words) => {
            log.info(&format!("mode legacy, devices {}", words.join(",")));
            by_hook(spec, &words, &request, config, log)?
        }
        Way::OnTheSpot(words) => {
            log.info(&format!("mode jit-cdi, devices {}", words.join(",")));
            spec.remove_prestart_hooks(&HOOK_NAMES);
            on_the_spot(&words, &request, config, log)?
        }
        Way::Files(names) => {
            log.info(&format!("mode cdi, devices {}", request.devices.join(",")));
            spec.remove_prestart_hooks(&HOOK_NAMES);
            from_files(&names, mode, &request, config, log)?
        }
    };
    merge_hooks(&mut edits.hooks);
    spec.apply(&edits)?;
    if let Err(error) = char_links::ensure() {
        log.warning(&format!("cannot make links below /dev/char, by which systemd knows devices: {error}"));
    }
    Ok(true)
}

fn way(mode: Mode, request: &Request, config: &Config) -> Result<Way, ModeError> {
    let kind = match mode {
        Mode::Csv => return Err(ModeError::Csv),
        Mode::Legacy => return Ok(Way::Hook(request.devices.clone())),
        Mode::Cdi => &config.runtime.cdi_default_kind,
        Mode::Auto | Mode::JitCdi => ON_THE_SPOT,
    };
    let qualified = |word: &String| if QualifiedName::is_valid(word) { word.clone() } else { format!("{kind}={word}") };
    let names: Vec<String> = request.devices.iter().map(qualified).collect();
    let id = |name: &String| Some(name.strip_prefix(ON_THE_SPOT)?.strip_prefix('=')?.to_owned());
    let ids: Vec<String> = names.iter().filter_map(id).collect();
    match ids.len() {
        0 => Ok(Way::Files(names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?)),
        all if all == names.len() => Ok(Way::OnTheSpot(ids)),
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

/// Checks the image's conditions for each of its GPUs. Facts are read only if there is a condition.
fn conditions(request: &Request, driver: &Driver, selection: &Selection<'_>) -> Result<(), ModeError> {
    if request.requirements.is_empty() {
        return Ok(());
    }
    let gpus: Vec<_> = selection.gpus.iter().map(|gpu| driver.gpu_facts(gpu)).collect();
    require::check_all(&request.requirements, &driver.facts(), &gpus).map_err(Box::new)?;
    Ok(())
}

/// An unfulfilled condition refuses the container if requests are strict, and is only logged otherwise.
fn check_terms(held: Result<(), ModeError>, config: &Config, log: &mut Log) -> Result<(), ModeError> {
    match held {
        Err(error) if !config.strict_requests => {
            log.warning(&format!("the container starts all the same: {error}"));
            Ok(())
        }
        held => held,
    }
}

fn on_the_spot(
    words: &[String],
    request: &Request,
    config: &Config,
    log: &mut Log,
) -> Result<ContainerEdits, ModeError> {
    let driver = driver(config)?;
    let selection = driver.select(words)?;
    check_terms(conditions(request, &driver, &selection), config, log)?;
    let options = options_on_the_spot(config, log);
    let mut edits = inject::edits_for(&driver, &selection, request.capabilities, &options)?;
    cdi::registry::append(&mut edits, &inject::device_nodes(nodes_by_word(&driver, request), &options));
    extras(&driver, request, &options, &mut edits, log);
    if request.memory.is_some() && options.hooks.has(HookName::ApplyCudaMemoryLimits) {
        if !selection.migs.is_empty() {
            return Err(ModeError::Memory("a MIG device's memory is what its profile says"));
        }
        edits.hooks.extend(inject::memory_limits_hook(&driver, &selection, &options));
    }
    in_full(&mut edits);
    Ok(edits)
}

/// The nodes that a container gets besides its GPUs': for IMEX, and for MIG's division.
fn nodes_by_word(driver: &Driver, request: &Request) -> Vec<Node> {
    let mig = [("mig/config", &request.mig_config), ("mig/monitor", &request.mig_monitor)];
    let mig = mig
        .into_iter()
        .filter(|(_, requested)| requested.is_some())
        .filter_map(|(file, _)| driver.capability_node(file));
    channels(driver, request).into_iter().chain(mig).collect()
}

fn channels(driver: &Driver, request: &Request) -> Vec<Node> {
    match request.imex.iter().any(|channel| channel == request::ALL_CHANNELS) {
        true => extra::nodes(&driver.root, extra::Mode::Imex),
        false => request.imex.iter().filter_map(|channel| driver.imex_node(driver::imex_channel(channel)?)).collect(),
    }
}

/// GPUDirect and the like, in every mode that has the driver at hand.
fn extras(driver: &Driver, request: &Request, options: &inject::Options, edits: &mut ContainerEdits, log: &mut Log) {
    for extra in &request.extras {
        let found = extra::Mode::from_name(&extra.kebab_name()).map(|mode| extra::edits(&driver.root, mode, options));
        match found.filter(|edits| !edits.is_empty()) {
            Some(found) => cdi::registry::append(edits, &found),
            None => log.warning(&format!("{} is asked for, and this host has none", extra.kebab_name())),
        }
    }
}

/// Fills in the driver's device numbers, so that missing nodes on the host do not matter.
fn in_full(edits: &mut ContainerEdits) {
    for node in &mut edits.device_nodes {
        node.kind.get_or_insert_with(|| "c".into());
    }
}

/// The options of mode `jit-cdi`, which has keys of its own.
fn options_on_the_spot(config: &Config, log: &mut Log) -> inject::Options {
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
    // `@` says that the program is the host's, which for a CDI hook it always is.
    options.hooks.ldconfig = config.cli.ldconfig.strip_prefix('@').map(PathBuf::from);
    options
}

/// Edits from the host's files. A GPU without a file is generated on the spot, unless mode `cdi` was configured.
fn from_files(
    names: &[QualifiedName],
    mode: Mode,
    request: &Request,
    config: &Config,
    log: &mut Log,
) -> Result<ContainerEdits, ModeError> {
    let whole_drivers: Vec<&QualifiedName> = names.iter().filter(|name| brings_the_driver(name)).collect();
    let narrowed = !whole_drivers.is_empty() && request.capabilities.and(Capabilities::WHOLE) != Capabilities::WHOLE;
    let could_be_described = mode != Mode::Cdi && names.iter().all(is_gpu);
    let on_the_spot = |why: String, log: &mut Log| {
        log.warning(&format!("{why}: describing it on the spot"));
        let words: Vec<String> = names.iter().map(|name| name.device().to_owned()).collect();
        on_the_spot(&words, request, config, log)
    };
    if narrowed && could_be_described {
        return on_the_spot(format!("the container may have {} alone", request.capabilities), log);
    }
    let registry = Registry::read(&config.runtime.cdi_spec_dirs);
    let edits = match registry.edits(names) {
        Err(error @ ResolveError::Unknown { .. }) if could_be_described => return on_the_spot(error.to_string(), log),
        other => other.map_err(Box::new)?,
    };
    if narrowed {
        return Err(ModeError::Whole { names: request.devices.join(", "), allowed: request.capabilities });
    }
    check_terms(conditions_by_name(&whole_drivers, request, config), config, log)?;
    let limits = HookName::ApplyCudaMemoryLimits.kebab_name();
    let left_out = || config.runtime.jit_cdi_disable_hooks.iter().any(|word| *word == limits || word == "all");
    if request.memory.is_some() && !left_out() {
        // Each, for itself: files of several makings can be in use together.
        for name in whole_drivers {
            let own = registry.edits(std::slice::from_ref(name)).map_err(Box::new)?;
            if !own.hooks.iter().any(|hook| hook.args.contains(&limits)) {
                return Err(ModeError::Memory(
                    "the host's CDI file has no hook for it; `nvidia-ctk cdi generate` writes one that has",
                ));
            }
        }
    }
    match missing(&edits) {
        Some(path) => Err(ModeError::Stale(path)),
        None => Ok(edits),
    }
}

/// Checks the image's conditions for GPUs of a file. For `all`, and for a device that the driver does not know by that name, every GPU is
/// checked.
fn conditions_by_name(names: &[&QualifiedName], request: &Request, config: &Config) -> Result<(), ModeError> {
    if names.is_empty() || request.requirements.is_empty() {
        return Ok(());
    }
    let driver = driver(config)?;
    let words: Vec<String> = names.iter().map(|name| name.device().to_owned()).collect();
    let selection = driver.select(&words).or_else(|_| driver.select(&["all".to_owned()]))?;
    conditions(request, &driver, &selection)
}

/// Whether a device's file includes the driver.
fn brings_the_driver(name: &QualifiedName) -> bool {
    name.is_nvidia() && !WITHOUT_DRIVER.contains(&name.kind().class())
}

fn is_gpu(name: &QualifiedName) -> bool {
    (name.kind().vendor(), name.kind().class()) == ("nvidia.com", "gpu")
}

/// Adds the prestart hook, its nodes, and the parts that it does not handle: links to display nodes, GPUDirect and the like, and CUDA's
/// compatibility libraries in mode `hook`.
fn by_hook(
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
    cdi::registry::append(&mut edits, &inject::device_nodes(nodes_by_word(&driver, request), &options));
    extras(&driver, request, &options, &mut edits, log);
    in_full(&mut edits);
    let hooks = &options.hooks;
    if config.runtime.cuda_compat_mode == Some(CompatMode::Hook) && hooks.has(HookName::EnableCudaCompat) {
        edits.hooks.extend(hooks.cuda_compat(&driver.version));
        // The prestart hook has written the loader's cache already, without what this one finds.
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

pub(super) fn missing(edits: &ContainerEdits) -> Option<PathBuf> {
    let nodes = edits.device_nodes.iter().filter(|node| !is_complete(node)).map(host_of);
    let mounts = edits.mounts.iter().filter(|mount| is_bind(mount)).map(|mount| mount.host_path.as_str());
    // A program of `startContainer` is the container's.
    let hooks = edits.hooks.iter().filter(|hook| hook.hook_name != "startContainer").map(|hook| hook.path.as_str());
    let there = |path: &str| Path::new(path).symlink_metadata().is_ok();
    nodes.chain(mounts).chain(hooks).find(|path| !there(path)).map(PathBuf::from)
}

/// Whether the runtime makes the node from the file's words alone.
fn is_complete(node: &DeviceNode) -> bool {
    match node.kind.as_deref() {
        None | Some("") => false,
        Some("p") => true,
        Some(_) => node.major.is_some_and(|major| major != 0),
    }
}

/// Whether a file or directory of the host is mounted, and no file system in memory.
fn is_bind(mount: &Mount) -> bool {
    matches!(mount.kind.as_deref(), None | Some("" | "bind" | "none"))
}

fn host_of(node: &DeviceNode) -> &str {
    node.host_path.as_deref().filter(|path| !path.is_empty()).unwrap_or(&node.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_in_image_is_not_looked_up_on_host() {
        for (hook_name, expected) in [("startContainer", None), ("createRuntime", Some(PathBuf::from("/in/the/image")))]
        {
            let hook = Hook { hook_name: hook_name.into(), path: "/in/the/image".into(), ..Hook::default() };
            assert_eq!(missing(&ContainerEdits { hooks: vec![hook], ..ContainerEdits::default() }), expected);
        }
    }
}
