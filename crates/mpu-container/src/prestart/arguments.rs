//! The container CLI's arguments for a container.
//!
//! Source: NVIDIA Container Toolkit 1.20, `cmd/nvidia-container-runtime-hook/main.go`.

use crate::config::{CompatMode, Config};
use crate::kebab_name::KebabName;
use crate::request::Request;
use rustix::process::Pid;
use std::ffi::{OsStr, OsString};
use std::path::Path;

pub fn build(
    config: &Config,
    ldconfig: Option<String>,
    request: &Request,
    pid: Pid,
    root: &Path,
    debug: bool,
) -> Vec<OsString> {
    let cli = &config.cli;
    let set = |name: &str, value: &OsStr| {
        let mut argument = OsString::from(format!("--{name}="));
        argument.push(value);
        argument
    };
    let path = |name, path: &Option<_>| path.as_ref().map(|path: &std::path::PathBuf| set(name, path.as_os_str()));
    let text = |name, text: &str| (!text.is_empty()).then(|| set(name, text.as_ref()));
    let flag = |name: &str, on: bool| on.then(|| OsString::from(format!("--{name}")));
    let joined = |words: &[String]| words.iter().filter(|word| *word != "none").cloned().collect::<Vec<_>>().join(",");

    let log = if debug { text("debug", "/dev/stderr") } else { path("debug", &cli.debug) };
    let global = [
        path("root", &cli.root),
        flag("load-kmods", cli.load_kmods),
        flag("no-create-imex-channels", config.features.disable_imex_channel_creation),
        flag("no-pivot", cli.no_pivot),
        log,
        path("ldcache", &cli.ldcache),
        text("user", &cli.user),
        Some(OsString::from("configure")),
        text("cuda-compat-mode", compat_mode(config)),
        text("ldconfig", ldconfig.as_deref().unwrap_or_default()),
        flag("no-cgroups", cli.no_cgroups),
        text("device", &joined(&request.devices)),
        text("mig-config", request.mig_config.as_deref().unwrap_or_default()),
        text("mig-monitor", request.mig_monitor.as_deref().unwrap_or_default()),
        text("imex-channel", &request.imex.join(",")),
    ];
    let capabilities =
        request.capabilities.iter().map(|capability| OsString::from(format!("--{}", capability.kebab_name())));
    // Also pass an empty requirement: it always holds.
    let requirements = request.requirements.iter().map(|requirement| set("require", requirement.as_ref()));
    let last = [set("pid", pid.as_raw_nonzero().to_string().as_ref()), root.as_os_str().to_os_string()];
    global.into_iter().flatten().chain(capabilities).chain(requirements).chain(last).collect()
}

/// The CLI's mode for CUDA's compatibility libraries. The wrapper handles mode `hook`.
fn compat_mode(config: &Config) -> &'static str {
    match config.runtime.cuda_compat_mode {
        Some(CompatMode::Ldconfig) => "ldconfig",
        Some(CompatMode::Mount) => "mount",
        Some(CompatMode::Disabled | CompatMode::Hook) => "disabled",
        None if config.features.allow_cuda_compat_libs_from_container => "",
        None => "disabled",
    }
}
