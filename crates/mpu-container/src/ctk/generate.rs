//! `nvidia-ctk cdi generate`.

use super::context::{Context, Failure, env_switch, first_set, write_spec};
use crate::cdi::extra::Mode;
use crate::cdi::file::Format;
use crate::cdi::generate::{self, Naming};
use crate::cdi::{Kind, Options, Request};
use crate::config::Config;
use crate::driver::DriverRoot;
use crate::engines::command::{non_empty, path_parser};
use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Args};
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvidia-ctk cdi generate                                   print the spec
  sudo nvidia-ctk cdi generate --output=/etc/cdi/gpu.yaml   write it
  docker run --device nvidia.com/gpu=0 …                    use it

A file is true until the driver is updated or MIG devices change.
mpu-cdi-refresh.service writes one that stays true, and leaves files of
this command alone: `sudo mpu-container refresh` writes it at once.")]
pub(super) struct Generate {
    /// The file to write; standard output if none
    #[arg(long, value_parser = path_parser(), env = "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", value_name = "FILE")]
    output: Option<PathBuf>,
    /// The format [default: as the file's name says, else yaml]
    #[arg(long, env = "NVIDIA_CTK_CDI_GENERATE_OUTPUT_FORMAT", ignore_case = true)]
    format: Option<Format>,
    /// What to describe; auto is the GPUs
    #[arg(long, visible_alias = "discovery-mode", env = "NVIDIA_CTK_CDI_GENERATE_MODE", default_value = "auto",
        ignore_case = true, value_parser = PossibleValuesParser::new(Mode::names()))]
    mode: String,
    /// The runtime's configuration, as before the verb
    #[arg(long = "config", id = "generate-config", value_name = "FILE", hide = true)]
    config: Option<PathBuf>,
    /// Where the driver's files are [default: nvidia-container-cli.root of the configuration, else /]
    #[arg(long, value_parser = path_parser(), env = "NVIDIA_CTK_DRIVER_ROOT", value_name = "DIR")]
    driver_root: Option<PathBuf>,
    /// Where /dev is [default: the driver's root if it has device nodes, else /]
    #[arg(long, value_parser = path_parser(), env = "NVIDIA_CTK_DEV_ROOT", value_name = "DIR")]
    dev_root: Option<PathBuf>,
    /// How devices are named; given twice, each device has both names
    #[arg(long, env = "NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES", value_delimiter = ',',
        default_values = ["index", "uuid"], value_name = "WAY")]
    device_name_strategy: Vec<Naming>,
    /// The devices: all, none, or GPUs and MIG devices by index, UUID or PCI address
    #[arg(long, visible_aliases = ["device-ids", "device", "devices"], env = "NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS",
        value_delimiter = ',', default_value = "all", value_name = "ID")]
    device_id: Vec<String>,
    /// Omit the device "all"
    #[arg(long, env = "NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE", value_parser = env_switch(), action = ArgAction::SetTrue)]
    no_all_device: bool,
    /// The vendor in the devices' names
    #[arg(long, visible_alias = "cdi-vendor", env = "NVIDIA_CTK_CDI_GENERATE_VENDOR", default_value = "nvidia.com")]
    vendor: String,
    /// The class in the devices' names
    #[arg(long, visible_alias = "cdi-class", env = "NVIDIA_CTK_CDI_GENERATE_CLASS", default_value = "gpu")]
    class: String,
    /// The program that the spec names as hooks [default: this executable]
    #[arg(long, value_parser = path_parser(), visible_alias = "nvidia-ctk-path", env = "NVIDIA_CTK_CDI_HOOK_PATH", value_name = "PROGRAM")]
    nvidia_cdi_hook_path: Option<PathBuf>,
    /// The ldconfig that hooks run
    #[arg(long, value_parser = path_parser(), env = "NVIDIA_CTK_CDI_GENERATE_LDCONFIG_PATH", value_name = "PROGRAM")]
    ldconfig_path: Option<PathBuf>,
    /// A hook to leave out, or all
    #[arg(
        long,
        visible_alias = "disable-hooks",
        env = "NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS",
        value_delimiter = ',',
        value_name = "HOOK"
    )]
    disable_hook: Vec<String>,
    /// A hook to include in any case, such as chmod
    #[arg(
        long,
        visible_alias = "enable-hooks",
        env = "NVIDIA_CTK_CDI_GENERATE_ENABLED_HOOKS",
        value_delimiter = ',',
        value_name = "HOOK"
    )]
    enable_hook: Vec<String>,
    /// disable-ipc-discoverer: no sockets of daemons; no-additional-gids-for-device-nodes: no groups
    #[arg(
        long,
        visible_alias = "feature-flags",
        env = "NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS",
        value_delimiter = ',',
        value_name = "FLAG"
    )]
    feature_flag: Vec<String>,
    #[command(flatten)]
    ignored: IgnoredFlags,
}

/// Flags that scripts may give and that change nothing.
#[derive(Debug, Args)]
struct IgnoredFlags {
    #[arg(long, env = "NVIDIA_CTK_CDI_GENERATE_CONFIG_SEARCH_PATHS", hide = true)]
    config_search_path: Vec<PathBuf>,
    #[arg(long, env = "NVIDIA_CTK_CDI_GENERATE_LIBRARY_SEARCH_PATHS", hide = true)]
    library_search_path: Vec<PathBuf>,
    #[arg(long = "csv.file", env = "NVIDIA_CTK_CDI_GENERATE_CSV_FILES", hide = true)]
    csv_file: Vec<PathBuf>,
    #[arg(long = "csv.ignore-pattern", env = "NVIDIA_CTK_CDI_GENERATE_CSV_IGNORE_PATTERNS", hide = true)]
    csv_ignore_pattern: Vec<String>,
    #[arg(long = "csv.compat-container-root", env = "NVIDIA_CTK_CDI_GENERATE_CSV_CONTAINER_COMPAT_ROOT", hide = true)]
    csv_compat_container_root: Option<PathBuf>,
}

impl IgnoredFlags {
    fn any(&self) -> bool {
        !self.config_search_path.is_empty()
            || !self.library_search_path.is_empty()
            || !self.csv_file.is_empty()
            || !self.csv_ignore_pattern.is_empty()
            || self.csv_compat_container_root.is_some()
    }
}

impl Generate {
    pub(super) fn run(&self, context: &Context) -> Result<(), Failure> {
        let request = self.request(context)?;
        let mut spec = generate::generate(&self.root(context)?, &request)?;
        for warning in generate::warnings(&spec, request.mode) {
            context.note(format_args!("{warning}"));
        }
        if non_empty(&self.dev_root).is_some() {
            for path in generate::remove_missing_device_nodes(&mut spec)? {
                context.note(format_args!("{path} is not there: left out"));
            }
        }
        let output = non_empty(&self.output);
        let format = self.format.or(output.and_then(Format::of_path)).unwrap_or(Format::Yaml);
        if let Some(path) = write_spec(&spec, output, format)? {
            let (count, version) = (spec.devices.len(), &spec.cdi_version);
            context.note(format_args!("wrote {}: {count} devices, cdiVersion {version}", path.display()));
        }
        Ok(())
    }

    fn root(&self, context: &Context) -> Result<DriverRoot, Failure> {
        let files = match (non_empty(&self.driver_root), self.config.as_ref().or(context.config.as_ref())) {
            (Some(path), _) => Some(path.to_path_buf()),
            (None, Some(config)) => Config::at(config)?.config.cli.root,
            (None, None) => Config::load()?.config.cli.root,
        };
        Ok(DriverRoot::at(&files.unwrap_or_else(|| "/".into()), non_empty(&self.dev_root)))
    }

    fn request(&self, context: &Context) -> Result<Request, Failure> {
        if self.enable_hook.iter().any(|word| word == "all") {
            return Err("--enable-hook=all is not supported: name the hooks".into());
        }
        let mut edits = Options::new(hook_program(non_empty(&self.nvidia_cdi_hook_path))?);
        edits.hooks.ldconfig = non_empty(&self.ldconfig_path).map(Path::to_path_buf);
        for word in edits.apply_user_options(&self.disable_hook, &self.enable_hook, &self.feature_flag) {
            context.note(format_args!("'{word}' is no hook or feature that we know: passed over"));
        }
        if self.ignored.any() {
            context.note("search paths and CSV flags are passed over: the driver's own places are searched");
        }
        Ok(Request {
            kind: Kind::new(&self.vendor, &self.class)?,
            mode: Mode::from_name(&self.mode.to_ascii_lowercase()).unwrap_or(Mode::Nvml),
            names: self.device_name_strategy.clone(),
            devices: self.device_id.clone(),
            all: !self.no_all_device,
            edits,
        })
    }
}

fn hook_program(option: Option<&Path>) -> Result<PathBuf, Failure> {
    let Some(option) = option else {
        return Ok(crate::executable::path()?);
    };
    if option.components().count() > 1 {
        return Ok(option.to_path_buf());
    }
    let path = first_set(&["PATH"]).unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(option)).find(|program| program.is_file());
    Ok(found.unwrap_or_else(|| Path::new("/usr/bin").join(option)))
}
