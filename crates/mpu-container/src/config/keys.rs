//! The keys of config.toml: one row each.
//!
//! Source: NVIDIA Container Toolkit 1.20, `api/config/v1`: the keys, and which are written as comments.

use mpu_seccomp::NotifyPolicy;

use super::Config;
use super::values::{CompatMode, LogLevel, Mode};
use crate::capability::Capabilities;
use crate::kebab_name::KebabName;
use std::path::PathBuf;

/// The field of [`Config`] that a key sets, by the kind of its value.
#[derive(Clone, Copy)]
pub enum Field {
    Bool(fn(&mut Config) -> &mut bool),
    Text(fn(&mut Config) -> &mut String),
    /// A path; an empty one is `None`.
    Path(fn(&mut Config) -> &mut Option<PathBuf>),
    /// A string with a parser, which returns an error message.
    Parsed(fn(&mut Config, &str) -> Result<(), String>),
    Texts(fn(&mut Config) -> &mut Vec<String>),
    Paths(fn(&mut Config) -> &mut Vec<PathBuf>),
}

pub struct Key {
    pub name: &'static str,
    pub default: &'static str,
    /// A value that the shipped file shows after a `#` instead of the default.
    pub example: Option<&'static str>,
    pub about: &'static str,
    pub field: Field,
}

pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The default file: every key with a description and its default. Keys with an example are commented out.
pub fn default_text(host: &Config) -> String {
    let mut text = String::from(
        "# The NVIDIA container runtime's configuration. A line that begins with #key shows a value that could be set.\n",
    );
    let mut table = "";
    for key in KEYS {
        let (prefix, name) = key.name.rsplit_once('.').unwrap_or(("", key.name));
        if prefix != table {
            text.push_str(&format!("\n[{prefix}]\n"));
            table = prefix;
        }
        let suse = key.name == "nvidia-container-cli.user" && !host.cli.user.is_empty();
        let mark = if key.example.is_some() && !suse { "#" } else { "" };
        let default = key.example.map(|_| format!(" Default: {}", key.default)).unwrap_or_default();
        text.push_str(&format!("# {}{default}\n{mark}{name} = {}\n", key.about, key.example.unwrap_or(key.default)));
    }
    text
}

const fn key(name: &'static str, default: &'static str, field: Field, about: &'static str) -> Key {
    Key { name, default, example: None, about, field }
}

const fn commented(
    name: &'static str,
    default: &'static str,
    example: &'static str,
    field: Field,
    about: &'static str,
) -> Key {
    Key { name, default, example: Some(example), about, field }
}

#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    commented("accept-nvidia-visible-devices-as-volume-mounts", "false", "false", Field::Bool(|c| &mut c.devices_as_volume_mounts),
        "Mounts of /dev/null on /var/run/nvidia-container-devices/DEVICE ask for devices."),
    commented("accept-nvidia-visible-devices-envvar-when-unprivileged", "true", "true", Field::Bool(|c| &mut c.envvar_when_unprivileged),
        "Containers without CAP_SYS_ADMIN may ask for devices by their environment."),
    key("disable-require", "false", Field::Bool(|c| &mut c.disable_require),
        "Do not look at an image's NVIDIA_REQUIRE_* conditions."),
    key("supported-driver-capabilities", r#""compat32,compute,display,graphics,ngx,utility,video""#, Field::Parsed(supported),
        "The driver capabilities that an image may ask for, or \"all\"."),
    commented("swarm-resource", r#""""#, r#""DOCKER_RESOURCE_GPU""#, Field::Text(|c| &mut c.swarm_resource),
        "Variables, separated by commas, that ask for devices before NVIDIA_VISIBLE_DEVICES does."),

    commented("nvidia-container-cli.debug", r#""""#, r#""/var/log/nvidia-container-toolkit.log""#, Field::Path(|c| &mut c.cli.debug),
        "The container CLI's log."),
    key("nvidia-container-cli.environment", "[]", Field::Texts(|c| &mut c.cli.environment),
        "NAME=value for the container CLI's environment."),
    commented("nvidia-container-cli.ldcache", r#""""#, r#""/etc/ld.so.cache""#, Field::Path(|c| &mut c.cli.ldcache),
        "The linker's cache that lists the driver's libraries."),
    key("nvidia-container-cli.ldconfig", r#""@/sbin/ldconfig""#, Field::Text(|c| &mut c.cli.ldconfig),
        "The ldconfig to run: @ and a path on the host."),
    key("nvidia-container-cli.load-kmods", "true", Field::Bool(|c| &mut c.cli.load_kmods),
        "Load the driver's kernel modules and make its device nodes if they are missing."),
    commented("nvidia-container-cli.no-cgroups", "false", "false", Field::Bool(|c| &mut c.cli.no_cgroups),
        "Leave the device cgroup alone (not needed for rootless containers: those are recognized)."),
    commented("nvidia-container-cli.no-pivot", "false", "false", Field::Bool(|c| &mut c.cli.no_pivot),
        "Do not use pivot_root (for roots on a ramdisk)."),
    commented("nvidia-container-cli.path", r#""""#, r#""/usr/bin/nvidia-container-cli""#, Field::Path(|c| &mut c.cli.path),
        "The container CLI, where it is not this executable."),
    commented("nvidia-container-cli.root", r#""""#, r#""/run/nvidia/driver""#, Field::Path(|c| &mut c.cli.root),
        "The driver's root, where it is not /."),
    commented("nvidia-container-cli.user", r#""""#, r#""root:video""#, Field::Text(|c| &mut c.cli.user),
        "USER[:GROUP] to ask the driver as; root:video by default on SUSE."),

    commented("nvidia-container-runtime.debug", r#""/dev/null""#, r#""/var/log/nvidia-container-runtime.log""#,
        Field::Path(|c| &mut c.runtime.debug),
        "The runtime wrapper's log."),
    key("nvidia-container-runtime.log-level", r#""info""#, Field::Parsed(log_level),
        "What goes into the log: error, warning, info or debug."),
    key("nvidia-container-runtime.mode", r#""auto""#, Field::Parsed(mode),
        "How a GPU gets into a container: auto, legacy, cdi, jit-cdi or csv."),
    key("nvidia-container-runtime.runtimes", r#"["runc", "crun"]"#, Field::Texts(|c| &mut c.runtime.runtimes),
        "The low-level runtimes to look for: the first that exists is used."),

    key("nvidia-container-runtime.modes.cdi.annotation-prefixes", r#"["cdi.k8s.io/"]"#,
        Field::Texts(|c| &mut c.runtime.cdi_annotation_prefixes),
        "Annotations whose name begins with one of these ask for CDI devices."),
    key("nvidia-container-runtime.modes.cdi.default-kind", r#""nvidia.com/gpu""#, Field::Text(|c| &mut c.runtime.cdi_default_kind),
        "The vendor/class of a device whose name has no vendor/class."),
    key("nvidia-container-runtime.modes.cdi.spec-dirs", r#"["/etc/cdi", "/var/run/cdi"]"#, Field::Paths(|c| &mut c.runtime.cdi_spec_dirs),
        "The directories of CDI files; a later one overrides an earlier."),

    commented("nvidia-container-runtime.modes.csv.compat-container-root", r#""""#, r#""/usr/local/cuda/compat_orin""#,
        Field::Path(|c| &mut c.runtime.csv_compat_container_root),
        "The directory of a container's CUDA compatibility libraries, where it is not the usual one."),
    key("nvidia-container-runtime.modes.csv.mount-spec-path", r#""/etc/nvidia-container-runtime/host-files-for-container.d""#,
        Field::Path(|c| &mut c.runtime.csv_mount_spec_path),
        "The directory of the lists of files (Tegra)."),

    commented("nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks", "[]", r#"["enable-cuda-compat"]"#,
        Field::Texts(|c| &mut c.runtime.jit_cdi_disable_hooks),
        "Hooks to leave out."),
    commented("nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags", "[]", r#"["no-additional-gids-for-device-nodes"]"#,
        Field::Texts(|c| &mut c.runtime.jit_cdi_feature_flags),
        "Feature flags of the generator."),

    key("nvidia-container-runtime.modes.legacy.cuda-compat-mode", r#""ldconfig""#, Field::Parsed(compat_mode),
        "How a container's CUDA compatibility libraries are found: ldconfig, mount, hook or disabled."),

    key("nvidia-container-runtime-hook.path", r#""nvidia-container-runtime-hook""#, Field::Text(|c| &mut c.hook.path),
        "The prestart hook."),
    key("nvidia-container-runtime-hook.skip-mode-detection", "false", Field::Bool(|c| &mut c.hook.skip_mode_detection),
        "Let the hook run without the runtime in modes that do not use the hook."),

    key("nvidia-ctk.path", r#""nvidia-ctk""#, Field::Text(|c| &mut c.ctk_path),
        "The program that CDI hooks run."),

    commented("mpu.notify", r#""on""#, r#""opt-in""#, Field::Parsed(notify),
        "Which containers get the notify engine's listener: on (GPU containers without MPU_NOTIFY=off), opt-in (with MPU_NOTIFY=on), always or off."),
    commented("mpu.notify-socket", r#""/run/mpu/notify/listener.sock""#, r#""/run/mpu/notify/listener.sock""#, Field::Parsed(notify_socket),
        "The socket where the notify engine accepts containers."),

    commented("mpu.strict-requests", "false", "true", Field::Bool(|c| &mut c.strict_requests),
        "In the CDI modes, too, a container gets only the parts of the driver that it names, and its conditions must hold."),
    commented("mpu.raise-memory-requests", "false", "true", Field::Bool(|c| &mut c.raise_memory_requests),
        "Add up requests of GPU memory in the cgroups above the container's cgroup, unless the administrator has set a value there."),

    commented("features.allow-cuda-compat-libs-from-container", "false", "false",
        Field::Bool(|c| &mut c.features.allow_cuda_compat_libs_from_container),
        "A container's CUDA compatibility libraries may hide the driver's."),
    commented("features.allow-ldconfig-from-container", "false", "false", Field::Bool(|c| &mut c.features.allow_ldconfig_from_container),
        "ldconfig may be a path in the container (unsafe: the image's own program runs before its confinement)."),
    commented("features.allow-unknown-oci-spec-fields", "false", "false", Field::Bool(|c| &mut c.features.allow_unknown_oci_spec_fields),
        "Without effect: unknown fields of a spec are always kept."),
    commented("features.disable-cuda-compat-lib-hook", "false", "false", Field::Bool(|c| &mut c.features.disable_cuda_compat_lib_hook),
        "Leave out the hook for CUDA's compatibility libraries."),
    commented("features.disable-imex-channel-creation", "false", "false", Field::Bool(|c| &mut c.features.disable_imex_channel_creation),
        "Do not make IMEX channels that do not exist."),
    commented("features.ignore-imex-channel-requests", "false", "false", Field::Bool(|c| &mut c.features.ignore_imex_channel_requests),
        "Requests for IMEX channels are ignored."),
    commented("features.no-additional-gids-for-device-nodes", "false", "false",
        Field::Bool(|c| &mut c.features.no_additional_gids_for_device_nodes),
        "Do not give the container's process the groups of the device nodes."),
];

fn supported(config: &mut Config, text: &str) -> Result<(), String> {
    let unknown = |name| format!("{name:?} is no driver capability (supported: {})", Capabilities::ALL);
    config.supported_driver_capabilities = Capabilities::parse(text).map_err(unknown)?;
    Ok(())
}

fn log_level(config: &mut Config, text: &str) -> Result<(), String> {
    config.runtime.log_level = LogLevel::parse(text);
    Ok(())
}

fn mode(config: &mut Config, text: &str) -> Result<(), String> {
    let none = || format!("{text:?} is none of {}", Mode::kebab_names().join(", "));
    config.runtime.mode = Mode::from_kebab_name(text).ok_or_else(none)?;
    Ok(())
}

fn compat_mode(config: &mut Config, text: &str) -> Result<(), String> {
    config.runtime.cuda_compat_mode = CompatMode::from_kebab_name(text);
    Ok(())
}

fn notify(config: &mut Config, text: &str) -> Result<(), String> {
    let found = NotifyPolicy::ALL.into_iter().find(|(name, _)| *name == text);
    let none = || format!("{text:?} is none of {}", NotifyPolicy::ALL.map(|(name, _)| name).join(", "));
    config.notify.policy = found.ok_or_else(none)?.1;
    Ok(())
}

fn notify_socket(config: &mut Config, text: &str) -> Result<(), String> {
    // A socket's path has at most 107 bytes, unix(7). It must be absolute: runtimes resolve it from their own working directory.
    if !text.starts_with('/') || text.len() > 107 || text.contains('\0') {
        return Err(format!("{text:?} is no absolute path of at most 107 bytes"));
    }
    config.notify.socket = text.into();
    Ok(())
}
