//! The command line of `nvidia-container-cli`.
//!
//! Source: libnvidia-container, `src/cli/{main,list,info,configure}.c` (long and short names, repeatable options).

use crate::capability::{Capabilities, Capability};
use crate::driver::LAST_IMEX_CHANNEL;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use rustix::process::Pid;
use std::path::{Path, PathBuf};

/// Looks at the NVIDIA driver of this host, and puts it into a container.
#[derive(Debug, Parser)]
#[command(name = "nvidia-container-cli", version, max_term_width = 110, arg_required_else_help = true)]
#[command(infer_long_args = true, disable_help_subcommand = true, after_help = AFTER)]
pub struct Cli {
    /// Options for every command; give them before it
    #[command(flatten)]
    pub global: Global,

    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

const AFTER: &str = "Examples:
  nvidia-container-cli info                                  which driver, which GPUs
  nvidia-container-cli list --libraries                      which files a container would get
  nvidia-container-cli --load-kmods info                     … after loading the kernel modules
  nvidia-container-cli configure --utility --device=0 --pid=4711 /var/lib/ct/rootfs

Exit codes: 0 done, 1 failed (why: on standard error), 2 the command line is wrong.";

/// Options that stand before the command.
#[derive(Debug, Default, Args)]
pub struct Global {
    /// Append a log to this file
    #[arg(short, long, value_name = "FILE")]
    pub debug: Option<PathBuf>,

    /// Load the driver's kernel modules and create its device nodes first
    #[arg(short = 'k', long)]
    pub load_kmods: bool,

    /// Do not use pivot_root for ldconfig (on hosts whose root is an initial RAM file system, it is not used anyway)
    #[arg(short, long)]
    pub no_pivot: bool,

    /// Ask the driver of GPUs as this user: a number or a name each. Without a value: as the user that this process is
    #[arg(short, long, value_name = "UID[:GID]", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub user: Option<String>,

    /// The root of the driver's files: /, or the root of a driver container on the host
    #[arg(short, long, value_name = "PATH", default_value = "/")]
    pub root: PathBuf,

    /// The linker cache in which to look up the driver's libraries (default: etc/ld.so.cache below the driver's root)
    #[arg(short, long, value_name = "FILE")]
    pub ldcache: Option<PathBuf>,

    /// Do not create device nodes of IMEX channels that are asked for and missing
    #[arg(long)]
    pub no_create_imex_channels: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print the driver and the GPUs of this host
    Info(Info),
    /// List the device nodes, programs, libraries, sockets and firmware of the driver, one path a line
    #[command(after_help = LIST_AFTER)]
    List(List),
    /// Put the driver and some GPUs into a container that is created and not yet started
    #[command(long_about = CONFIGURE_LONG, after_help = CONFIGURE_AFTER)]
    Configure(Box<Configure>),
}

#[derive(Debug, Args)]
pub struct Info {
    /// Comma-separated values
    #[arg(long)]
    pub csv: bool,
}

const LIST_AFTER: &str = "Without an option, everything is listed.

Examples:
  nvidia-container-cli list
  nvidia-container-cli list --device=0,1 --libraries --compat32";

#[derive(Debug, Default, Clone, PartialEq, Eq, Args)]
pub struct List {
    /// Device nodes of these GPUs or MIG devices: index, GPU-UUID, MIG-UUID, GPU:MIG, PCI address, all
    #[arg(short, long, value_name = "ID", value_delimiter = ',', action = ArgAction::Append)]
    pub device: Option<Vec<String>>,
    /// Libraries
    #[arg(short, long)]
    pub libraries: bool,
    /// Programs
    #[arg(short, long)]
    pub binaries: bool,
    /// Sockets and pipes of the driver's daemons
    #[arg(short, long)]
    pub ipcs: bool,
    /// Firmware of the GPUs
    #[arg(short, long)]
    pub firmwares: bool,
    /// Also 32-bit libraries
    #[arg(long)]
    pub compat32: bool,
    /// The nodes for a container that changes the MIG configuration of these GPUs: all
    #[arg(long, value_name = "ID", value_delimiter = ',', action = ArgAction::Append)]
    pub mig_config: Vec<String>,
    /// The nodes for a container that watches these MIG GPUs: all
    #[arg(long, value_name = "ID", value_delimiter = ',', action = ArgAction::Append)]
    pub mig_monitor: Vec<String>,
    /// Device nodes of these IMEX channels
    #[arg(long, value_name = "CHANNEL", value_delimiter = ',', action = ArgAction::Append,
        value_parser = clap::value_parser!(u32).range(0..=i64::from(LAST_IMEX_CHANNEL)))]
    pub imex_channel: Vec<u32>,
    /// Leave the daemons' sockets out
    #[command(flatten)]
    pub exclusions: Exclusions,
}

impl List {
    /// Without an option, everything is listed.
    #[must_use]
    pub fn or_everything(self) -> List {
        if self != List::default() {
            return self;
        }
        let all = || vec!["all".to_owned()];
        List {
            device: Some(all()),
            libraries: true,
            binaries: true,
            ipcs: true,
            firmwares: true,
            compat32: true,
            mig_config: all(),
            mig_monitor: all(),
            ..self
        }
    }
}

/// Parts of the driver to leave out.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Args)]
pub struct Exclusions {
    /// Leave the persistence daemon's socket out
    #[arg(long)]
    pub no_persistenced: bool,
    /// Leave the fabric manager's socket out
    #[arg(long)]
    pub no_fabricmanager: bool,
    /// Leave the GPUs' firmware out
    #[arg(long)]
    pub no_gsp_firmware: bool,
}

impl Exclusions {
    pub fn includes_socket(self, socket: &Path) -> bool {
        let of = |daemon: &str| socket.to_string_lossy().contains(daemon);
        !(self.no_persistenced && of("nvidia-persistenced") || self.no_fabricmanager && of("nvidia-fabricmanager"))
    }
}

const CONFIGURE_LONG: &str = "Put the driver and some GPUs into a container that is created and not yet started.

Enters the mount namespace of --pid and mounts the driver's files below ROOTFS, read-only; shows there only the GPUs \
asked for, opens the container's device cgroup for them, and brings its library cache up to date. Every path in ROOTFS \
is resolved beneath ROOTFS: no link in it leads out. When a step fails, the steps before it are undone.";

const CONFIGURE_AFTER: &str = "Examples:
  from a runtime's prestart hook:
    nvidia-container-cli configure --ldconfig=@/sbin/ldconfig --device=all --compute --utility --pid=4711 /ct/rootfs
  by hand, before chroot or pivot_root (a proc file system is mounted at rootfs/proc):
    unshare --mount --pid --fork sh -c '
      mount -t proc proc /ct/rootfs/proc
      nvidia-container-cli configure --utility --device=0 --no-cgroups /ct/rootfs
      exec chroot /ct/rootfs nvidia-smi'";

#[derive(Debug, Args)]
pub struct Configure {
    /// The container's process; without it, the mount namespace of this command is the container's
    #[arg(short, long, value_name = "PID", value_parser = pid)]
    pub pid: Option<Pid>,
    /// GPUs or MIG devices: index, GPU-UUID, MIG-UUID, GPU:MIG, PCI address, all
    #[arg(short, long, value_name = "ID", value_delimiter = ',', action = ArgAction::Append)]
    pub device: Vec<String>,
    /// Fail unless this holds, as in 'cuda>=12.4 brand=tesla,driver>=550': a space is or, a comma is and
    #[arg(short, long, value_name = "EXPR", action = ArgAction::Append)]
    pub require: Vec<String>,
    /// The host's program that brings the library cache up to date (default: @/sbin/ldconfig). The image's own is never
    /// started: /sbin/ldconfig means the host's, too
    #[arg(short, long, value_name = "PATH")]
    pub ldconfig: Option<String>,
    /// CUDA and OpenCL
    #[arg(short, long)]
    pub compute: bool,
    /// nvidia-smi and NVML
    #[arg(short, long)]
    pub utility: bool,
    /// Video encoding and decoding
    #[arg(short, long)]
    pub video: bool,
    /// OpenGL and Vulkan
    #[arg(short, long)]
    pub graphics: bool,
    /// X11 display
    #[arg(short = 'D', long)]
    pub display: bool,
    /// DLSS
    #[arg(short, long)]
    pub ngx: bool,
    /// Also 32-bit libraries
    #[arg(long)]
    pub compat32: bool,
    /// Let the container change the MIG configuration of its GPUs: all
    #[arg(long, value_name = "ID", value_delimiter = ',', action = ArgAction::Append)]
    pub mig_config: Vec<String>,
    /// Let the container watch its MIG GPUs: all
    #[arg(long, value_name = "ID", value_delimiter = ',', action = ArgAction::Append)]
    pub mig_monitor: Vec<String>,
    /// Leave the device cgroup alone
    #[arg(long)]
    pub no_cgroups: bool,
    /// Leave the container's /dev alone
    #[arg(long)]
    pub no_devbind: bool,
    /// Leave the image's own CUDA compatibility libraries alone
    #[arg(long)]
    pub no_cntlibs: bool,
    /// IMEX channels
    #[arg(long, value_name = "CHANNEL", value_delimiter = ',', action = ArgAction::Append,
        value_parser = clap::value_parser!(u32).range(0..=i64::from(LAST_IMEX_CHANNEL)))]
    pub imex_channel: Vec<u32>,
    /// How to use the image's own CUDA compatibility libraries if they are newer than the driver
    #[arg(long, value_name = "MODE", value_enum, default_value = "mount")]
    pub cuda_compat_mode: CompatMode,
    /// Parts of the driver to leave out
    #[command(flatten)]
    pub exclusions: Exclusions,
    /// The container's root directory, as the container's process sees it: absolute, and not /
    #[arg(value_name = "ROOTFS", value_parser = rootfs)]
    pub rootfs: PathBuf,
}

impl Configure {
    /// The requested capabilities. Video needs the libraries of compute; display needs those of graphics.
    pub fn capabilities(&self) -> Capabilities {
        let flags = [
            (self.compat32, &[Capability::Compat32][..]),
            (self.compute, &[Capability::Compute]),
            (self.display, &[Capability::Display, Capability::Graphics]),
            (self.graphics, &[Capability::Graphics]),
            (self.ngx, &[Capability::Ngx]),
            (self.utility, &[Capability::Utility]),
            (self.video, &[Capability::Video, Capability::Compute]),
        ];
        let capabilities = flags.into_iter().filter(|(on, _)| *on).flat_map(|(_, brings)| brings);
        capabilities.fold(Capabilities::NONE, |set, capability| set.with(*capability))
    }
}

/// How the CUDA compatibility libraries of an image (`/usr/local/cuda/compat`) are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CompatMode {
    /// They come before the driver's in the library cache, when newer than the driver
    Ldconfig,
    /// They are mounted over the driver's, when of another major release
    Mount,
    /// They are left alone
    Disabled,
}

fn pid(text: &str) -> Result<Pid, &'static str> {
    text.parse().ok().filter(|number| *number > 0).and_then(Pid::from_raw).ok_or("a process id is a number above 0")
}

fn rootfs(text: &str) -> Result<PathBuf, &'static str> {
    let path = PathBuf::from(text);
    let names = path.components().filter(|part| matches!(part, std::path::Component::Normal(_))).count();
    match path.is_absolute() && names > 0 {
        true => Ok(path),
        false => Err("invalid rootfs directory: it must be absolute, and not /"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("nvidia-container-cli").chain(line.split_whitespace()))
    }

    fn configure(line: &str) -> Configure {
        match parse(line).unwrap_or_else(|error| panic!("{line}: {error}")).command {
            Command::Configure(configure) => *configure,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn hook_command_line_is_parsed() {
        let line = "--root=/run/nvidia/driver --load-kmods --no-pivot --debug=/x --ldcache=/y --user=0:44 configure \
                    --cuda-compat-mode=ldconfig --ldconfig=@/sbin/ldconfig --no-cgroups --device=0,GPU-1 --device 0:1 \
                    --mig-config=all --imex-channel=0,7 --compute --utility --require=cuda>=9.0 --require=driver>=550 \
                    --pid=12 /ct/rootfs";
        let cli = parse(line).unwrap();
        assert!(cli.global.load_kmods && cli.global.no_pivot && !cli.global.no_create_imex_channels);
        assert_eq!(cli.global.root, PathBuf::from("/run/nvidia/driver"));
        assert_eq!(cli.global.user.as_deref(), Some("0:44"));
        let configure = configure(line);
        assert_eq!(configure.device, ["0", "GPU-1", "0:1"]);
        assert_eq!(configure.require, ["cuda>=9.0", "driver>=550"]);
        assert_eq!(configure.capabilities().to_string(), "compute,utility");
        assert_eq!(configure.imex_channel, [0, 7]);
        assert_eq!(configure.cuda_compat_mode, CompatMode::Ldconfig);
        assert_eq!(configure.pid, Pid::from_raw(12));
    }

    #[test]
    fn short_options_in_any_order_are_parsed() {
        let configure = configure("--user configure /ct -cuvgDn --dev all -d 1 -r cuda>=1 -p 3 -l /sbin/ldconfig");
        assert_eq!(configure.capabilities().to_string(), "compute,display,graphics,ngx,utility,video");
        assert_eq!(configure.device, ["all", "1"]);
        assert_eq!(configure.cuda_compat_mode, CompatMode::Mount);
        assert_eq!(parse("-d /log -k -n list").unwrap().global.debug, Some("/log".into()));
        assert!(parse("--user list").unwrap().global.user.is_some());
    }

    #[test]
    fn video_and_display_bring_more_capabilities() {
        assert_eq!(configure("configure -v /ct").capabilities().to_string(), "compute,video");
        assert_eq!(configure("configure -D /ct").capabilities().to_string(), "display,graphics");
    }
}
