//! `nvidia-ctk system`.

use super::context::{Context, Failure, env_switch, first_set};
use super::{links, nodes};
use crate::driver::DriverRoot;
use clap::{ArgAction, Args, Subcommand};
use std::path::{Path, PathBuf};

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Makes the driver's device nodes that belong to no GPU
    CreateDeviceNodes(Nodes),
    /// Makes /dev/char links to the driver's nodes, so that containers keep their GPU when systemd reloads
    CreateDevCharSymlinks(Links),
}

impl Verb {
    pub(super) fn run(&self, context: &Context) -> Result<(), Failure> {
        match self {
            Verb::CreateDeviceNodes(verb) => verb.run(context),
            Verb::CreateDevCharSymlinks(verb) => verb.run(context),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  sudo nvidia-ctk system create-device-nodes --control-devices --load-kernel-modules")]
pub(super) struct Nodes {
    /// The root whose modprobe loads modules, and below whose dev nodes are made [env: ROOT=, NVIDIA_DRIVER_ROOT=,
    /// DRIVER_ROOT=] [default: /]
    #[arg(long, visible_alias = "driver-root", value_name = "DIR")]
    root: Option<PathBuf>,
    /// The root below whose dev nodes are made, if another [env: NVIDIA_DEV_ROOT=, DEV_ROOT=]
    #[arg(long, value_name = "DIR")]
    dev_root: Option<PathBuf>,
    /// Make nvidiactl, nvidia-modeset, nvidia-uvm and nvidia-uvm-tools
    #[arg(long)]
    control_devices: bool,
    /// Load nvidia, nvidia-uvm and nvidia-modeset first
    #[arg(long)]
    load_kernel_modules: bool,
    /// Print what would be done, and do nothing
    #[arg(long, env = "DRY_RUN", value_parser = env_switch(), action = ArgAction::SetTrue)]
    dry_run: bool,
}

impl Nodes {
    fn run(&self, context: &Context) -> Result<(), Failure> {
        let root =
            path_or_variable(&self.root, &["ROOT", "NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"]).unwrap_or_else(|| "/".into());
        let devices =
            path_or_variable(&self.dev_root, &["NVIDIA_DEV_ROOT", "DEV_ROOT"]).unwrap_or_else(|| root.clone());
        let mut note = |line: String| context.note(line);
        if self.load_kernel_modules {
            nodes::load_modules(&root, self.dry_run, &mut note)?;
        }
        if self.control_devices {
            nodes::create_control_nodes(
                &DriverRoot { devices, ..DriverRoot::at(&root, None) },
                self.dry_run,
                &mut note,
            )?;
        }
        if !self.load_kernel_modules && !self.control_devices {
            context.note("nothing was asked for: --control-devices makes nodes, --load-kernel-modules loads modules");
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example, for a unit or udev rule that runs when the driver is loaded:
  nvidia-ctk system create-dev-char-symlinks --create-all")]
pub(super) struct Links {
    /// Where the links are made
    #[arg(long, env = "DEV_CHAR_PATH", value_name = "DIR", default_value = "/dev/char")]
    dev_char_path: PathBuf,
    /// The root below whose dev the nodes are [env: NVIDIA_DRIVER_ROOT=, DRIVER_ROOT=] [default: /]
    #[arg(long, value_name = "DIR")]
    driver_root: Option<PathBuf>,
    /// Also link nodes that do not exist yet: those of future MIG devices
    #[arg(long, env = "CREATE_ALL", value_parser = env_switch(), action = ArgAction::SetTrue)]
    create_all: bool,
    /// With --create-all: make the control nodes first
    #[arg(long, env = "CREATE_DEVICE_NODES", value_parser = env_switch(), action = ArgAction::SetTrue)]
    create_device_nodes: bool,
    /// With --create-all: load the driver's modules first
    #[arg(long, env = "LOAD_KERNEL_MODULES", value_parser = env_switch(), action = ArgAction::SetTrue)]
    load_kernel_modules: bool,
    /// Print what would be done, and do nothing
    #[arg(long, env = "DRY_RUN", value_parser = env_switch(), action = ArgAction::SetTrue)]
    dry_run: bool,
}

impl Links {
    fn run(&self, context: &Context) -> Result<(), Failure> {
        let files =
            path_or_variable(&self.driver_root, &["NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"]).unwrap_or_else(|| "/".into());
        let mut note = |line: String| context.note(line);
        if self.create_all && self.load_kernel_modules {
            nodes::load_modules(&files, self.dry_run, &mut note)?;
        }
        if !self.create_all && (self.load_kernel_modules || self.create_device_nodes) {
            context.note("--load-kernel-modules and --create-device-nodes count with --create-all only");
        }
        let root = DriverRoot::at(&files, None);
        if self.create_all && self.create_device_nodes {
            nodes::create_control_nodes(&root, self.dry_run, &mut note)?;
        }
        let links = match self.create_all {
            true => links::all_links(&root, &self.dev_char_path)?,
            false => links::links_to_existing_nodes(&root, &self.dev_char_path),
        };
        if links.is_empty() {
            context.note(format_args!("there are no NVIDIA device nodes below {}", root.devices.join("dev").display()));
        }
        for link in &links {
            let changed = links::make(link, self.dry_run);
            if changed.map_err(|error| format!("cannot make {}: {error}", link.0.display()))? {
                context.note(format_args!("{} -> {}", link.0.display(), link.1.display()));
            }
        }
        Ok(())
    }
}

fn path_or_variable(flag: &Option<PathBuf>, variables: &[&str]) -> Option<PathBuf> {
    let set = flag.clone().filter(|path| path != Path::new(""));
    set.or_else(|| first_set(variables).map(PathBuf::from))
}
