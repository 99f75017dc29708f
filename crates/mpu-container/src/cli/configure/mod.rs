//! `configure`: puts the driver and some GPUs into a container that is created and not yet started.
//!
//! The order: find the driver on the host and open its files, enter the container's mount namespace, mount them, update the library
//! cache, return, open the device cgroup. If a step fails, all earlier steps are undone.
//!
//! Source: libnvidia-container, `src/cli/configure.c`.

mod changes;
mod driver_mounts;
mod layout;

use super::args::CompatMode;
use super::cgroup::{CgroupError, DeviceCgroup};
use super::log::Log;
use super::process::{Namespace, Process, in_user_namespace};
use crate::beneath::host::PeerGroups;
use crate::beneath::{BeneathError, Root};
use crate::capability::Capability;
use crate::ldconfig::{self, LdconfigError, SealedLdconfig};
use changes::{ChangeError, Changes};
pub use driver_mounts::Order;
use driver_mounts::{DriverMounts, SupplyError};
use layout::Layout;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum ConfigureError {
    #[error("container error: cannot {what} the container's process")]
    Process { what: &'static str, source: io::Error },
    #[error("container error")]
    Root(#[source] BeneathError),
    #[error("container error: invalid rootfs directory: {} is this process's own root", .0.display())]
    OwnRoot(PathBuf),
    #[error("mount error")]
    Supply(#[from] SupplyError),
    #[error("mount error")]
    Place(#[from] ChangeError),
    #[error("mount error")]
    Image(#[source] BeneathError),
    #[error("ldcache error")]
    Cache(#[source] LdconfigError),
    #[error("mount error: device cgroup")]
    Cgroup(#[source] CgroupError),
}

impl ConfigureError {
    pub fn fix(&self) -> Option<&'static str> {
        Some(match self {
            ConfigureError::Process { .. } => "name a process that runs, as root: --pid=PID",
            ConfigureError::Root(_) | ConfigureError::OwnRoot(_) => {
                "name the container's root directory as its process sees it"
            }
            ConfigureError::Supply(SupplyError::Node { .. }) => {
                "create it: --load-kmods before the command, or nvidia-modprobe"
            }
            ConfigureError::Supply(SupplyError::Channel(_)) => {
                "load the driver on a machine with IMEX, or ask for none"
            }
            ConfigureError::Place(ChangeError::Shared(_)) => "give the container that volume without shared or rshared",
            ConfigureError::Place(ChangeError::Beneath(error)) if error.is_missing() => {
                "mount a proc file system at proc in the container's root first"
            }
            ConfigureError::Place(ChangeError::Beneath(error)) if error.is_denied() => {
                "give the container a root that can be written while it is set up: an overlay or a tmpfs over the image"
            }
            ConfigureError::Cgroup(_) => {
                "--no-cgroups leaves the device cgroup alone; then the runtime has to allow the devices"
            }
            _ => return None,
        })
    }
}

pub fn configure(order: &Order<'_>, log: &Log) -> Result<(), ConfigureError> {
    let arguments = order.arguments;
    let failed = |what| move |source| ConfigureError::Process { what, source };
    let process = Process::of(arguments.pid).map_err(failed("find"))?;
    let own = Process::of(None).and_then(|own| own.mount_namespace()).map_err(failed("find"))?;
    let container = process.mount_namespace().map_err(failed("find the mount namespace of"))?;
    let cgroup = match arguments.no_cgroups || in_user_namespace() {
        true => None,
        false => Some(DeviceCgroup::of(&process).map_err(ConfigureError::Cgroup)?),
    };
    // The path is the container's and need not exist here. A magic link is refused first.
    if let Err(error @ BeneathError::MagicLink { .. }) = Root::open(&arguments.rootfs) {
        return Err(ConfigureError::Root(error));
    }
    let mut mounts = DriverMounts::open(order, log)?;
    // Never the image's, whether the path says so by an @ or not.
    let path = arguments.ldconfig.as_deref().unwrap_or("@/sbin/ldconfig");
    let sealed = ldconfig::seal(path.as_ref()).map_err(ConfigureError::Cache)?;
    let ldconfig = if order.no_pivot { sealed.without_pivot() } else { sealed };
    let devices = std::mem::take(&mut mounts.devices);

    // Where this process is in the container's mounts already, the host's are not known.
    let peers = match arguments.pid {
        Some(_) => Process::of(None).and_then(|own| own.read("mountinfo")).map(|mounts| PeerGroups::of(&mounts)),
        None => Ok(PeerGroups::default()),
    };
    let peers = peers.map_err(failed("list the mounts beside"))?;
    let namespaces = Namespaces { own, container, apart: arguments.pid.is_some() };
    namespaces.enter().map_err(failed("enter the mount namespace of"))?;
    let root = Root::open(&arguments.rootfs).map_err(ConfigureError::Root)?;
    if root.is_process_root().map_err(ConfigureError::Root)? {
        return Err(ConfigureError::OwnRoot(arguments.rootfs.clone()));
    }
    let mut changes = Changes::nothing(&root, &process, peers, log);
    let done = fill(mounts, order, &ldconfig, &mut changes, log)
        .and_then(|()| namespaces.leave().map_err(failed("come back from")))
        .and_then(|()| match &cgroup {
            None => Ok(()),
            Some(cgroup) => {
                log.say(format_args!("opening {} for {} devices", cgroup.path().display(), devices.len()));
                let hidden = cgroup.open_for(&devices).map_err(ConfigureError::Cgroup)?;
                if hidden > 0 {
                    log.say(format_args!("{hidden} device programs are hidden from us, and may go on forbidding"));
                }
                Ok(())
            }
        });
    if done.is_err() {
        log.say(format_args!("undoing"));
        match namespaces.enter() {
            Ok(()) => changes.undo(),
            Err(error) => log.say(format_args!("cannot undo: {error}")),
        }
    }
    done
}

struct Namespaces {
    own: Namespace,
    container: Namespace,
    apart: bool,
}

impl Namespaces {
    fn enter(&self) -> io::Result<()> {
        if self.apart { self.container.enter() } else { Ok(()) }
    }

    fn leave(&self) -> io::Result<()> {
        if self.apart { self.own.enter() } else { Ok(()) }
    }
}

/// All that happens in the container's mount namespace.
fn fill(
    mounts: DriverMounts,
    order: &Order<'_>,
    ldconfig: &SealedLdconfig,
    changes: &mut Changes<'_>,
    log: &Log,
) -> Result<(), ConfigureError> {
    let root = changes.root();
    let layout = Layout::of(root).map_err(ConfigureError::Image)?;
    let arguments = order.arguments;
    // Before the driver's libraries are mounted: these must be the image's own.
    let compat = match arguments.capabilities().has(Capability::Compute) && !arguments.no_cntlibs {
        true => layout::compat(root, arguments.cuda_compat_mode, &order.driver.version),
        false => Ok(Vec::new()),
    };
    let compat = compat.map_err(ConfigureError::Image)?;
    mounts.place(changes, &layout, log)?;
    let mut folders = vec![layout.libraries.clone(), layout.libraries32.clone()];
    match arguments.cuda_compat_mode {
        CompatMode::Mount => driver_mounts::mount_compat(compat, changes, &layout)?,
        CompatMode::Ldconfig if !compat.is_empty() => folders.insert(0, layout::COMPAT.into()),
        CompatMode::Ldconfig | CompatMode::Disabled => {}
    }
    let folders: Vec<_> = folders.iter().map(|folder| folder.to_string_lossy()).collect();
    log.say(format_args!("library cache for {}", folders.join(", ")));
    ldconfig.run(root, &folders).map_err(ConfigureError::Cache)
}
