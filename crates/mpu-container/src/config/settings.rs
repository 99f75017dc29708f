//! The settings of config.toml and their defaults.

use mpu_seccomp::Notify;

use super::values::{CompatMode, LogLevel, Mode};
use crate::capability::Capabilities;
use std::path::PathBuf;

/// All settings, with defaults filled in. An empty path or string in the file means `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub disable_require: bool,
    /// Names of variables, separated by commas, that take precedence over `NVIDIA_VISIBLE_DEVICES`.
    pub swarm_resource: String,
    /// Whether a container without `CAP_SYS_ADMIN` may request devices by its environment.
    pub envvar_when_unprivileged: bool,
    /// Whether mounts below `/var/run/nvidia-container-devices` request devices.
    pub devices_as_volume_mounts: bool,
    pub supported_driver_capabilities: Capabilities,
    pub cli: Cli,
    pub runtime: Runtime,
    pub hook: Hook,
    /// `nvidia-ctk` for hooks in specs: a path, or a name to look up.
    pub ctk_path: String,
    /// `[mpu]`: MPU's notify engine. NVIDIA's toolkit has no such table.
    pub notify: Notify,
    /// Whether an image's declared capabilities and conditions are applied in the CDI modes, too.
    pub strict_requests: bool,
    /// Whether the program may set GPU memory requests in cgroups above a container's.
    pub raise_memory_requests: bool,
    pub features: Features,
}

/// `[nvidia-container-cli]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cli {
    pub root: Option<PathBuf>,
    pub path: Option<PathBuf>,
    /// `NAME=value` for the program's environment.
    pub environment: Vec<String>,
    pub debug: Option<PathBuf>,
    /// The linker's cache that lists the driver's libraries, where it is not the usual one.
    pub ldcache: Option<PathBuf>,
    pub load_kmods: bool,
    pub no_pivot: bool,
    pub no_cgroups: bool,
    /// `user[:group]` with whose rights the driver is queried.
    pub user: String,
    /// The ldconfig to run: `@` and a path on the host, or a path in the container if [`Features`] allows it.
    pub ldconfig: String,
}

/// `[nvidia-container-runtime]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    pub debug: Option<PathBuf>,
    pub log_level: LogLevel,
    /// The low-level runtimes, by name or path; the first one that exists is used.
    pub runtimes: Vec<String>,
    /// How a GPU gets into a container.
    pub mode: Mode,
    /// Mode `csv`: the directory with the lists.
    pub csv_mount_spec_path: Option<PathBuf>,
    /// Mode `csv`: the container's directory of CUDA compatibility libraries.
    pub csv_compat_container_root: Option<PathBuf>,
    /// Mode `cdi`: the directories with CDI files; a later one overrides an earlier.
    pub cdi_spec_dirs: Vec<PathBuf>,
    /// Mode `cdi`: the `vendor/class` of a device whose name has none.
    pub cdi_default_kind: String,
    /// Mode `cdi`: prefixes of annotations that request devices.
    pub cdi_annotation_prefixes: Vec<String>,
    /// Mode `jit-cdi`: feature flags of the generator.
    pub jit_cdi_feature_flags: Vec<String>,
    pub jit_cdi_disable_hooks: Vec<String>,
    /// Mode `legacy`: how CUDA's compatibility libraries are found; `None` for an unknown value.
    pub cuda_compat_mode: Option<CompatMode>,
}

/// `[nvidia-container-runtime-hook]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// The hook: a path, or a name to look up.
    pub path: String,
    /// Lets the hook run in modes that have no hook.
    pub skip_mode_detection: bool,
}

/// `[features]`: all are off unless switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// The container's CUDA compatibility libraries may hide the driver's libraries.
    pub allow_cuda_compat_libs_from_container: bool,
    pub allow_ldconfig_from_container: bool,
    /// Accepted and without effect: unknown fields of a spec are always kept.
    pub allow_unknown_oci_spec_fields: bool,
    pub disable_cuda_compat_lib_hook: bool,
    /// Do not make IMEX channels that do not exist.
    pub disable_imex_channel_creation: bool,
    pub ignore_imex_channel_requests: bool,
    /// Do not give the container's process the groups of the device nodes.
    pub no_additional_gids_for_device_nodes: bool,
}

impl Default for Config {
    fn default() -> Config {
        let words = |list: &[&str]| list.iter().map(|word| word.to_string()).collect();
        Config {
            disable_require: false,
            swarm_resource: String::new(),
            envvar_when_unprivileged: true,
            devices_as_volume_mounts: false,
            supported_driver_capabilities: Capabilities::ALL,
            cli: Cli {
                root: None,
                path: None,
                environment: Vec::new(),
                debug: None,
                ldcache: None,
                load_kmods: true,
                no_pivot: false,
                no_cgroups: false,
                user: String::new(),
                ldconfig: "@/sbin/ldconfig".to_string(),
            },
            runtime: Runtime {
                debug: Some("/dev/null".into()),
                log_level: LogLevel::Info,
                runtimes: words(&["runc", "crun"]),
                mode: Mode::Auto,
                csv_mount_spec_path: Some("/etc/nvidia-container-runtime/host-files-for-container.d".into()),
                csv_compat_container_root: None,
                cdi_spec_dirs: vec!["/etc/cdi".into(), "/var/run/cdi".into()],
                cdi_default_kind: "nvidia.com/gpu".to_string(),
                cdi_annotation_prefixes: words(&["cdi.k8s.io/"]),
                jit_cdi_feature_flags: Vec::new(),
                jit_cdi_disable_hooks: Vec::new(),
                cuda_compat_mode: Some(CompatMode::Ldconfig),
            },
            hook: Hook { path: "nvidia-container-runtime-hook".to_string(), skip_mode_detection: false },
            ctk_path: "nvidia-ctk".to_string(),
            notify: Notify::default(),
            strict_requests: false,
            raise_memory_requests: false,
            features: Features::default(),
        }
    }
}
