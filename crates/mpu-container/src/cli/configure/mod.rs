//! `configure`: puts the driver and some GPUs into a container that is created but not yet started.
//!
//! The order: find the driver on the host and open its files, enter the container's mount namespace, mount them, update the library
//! cache, leave the namespace, allow the devices in the device cgroup. If a step fails, all earlier steps are undone.
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
pub use driver_mounts::Inputs;
use driver_mounts::{DriverMountError, DriverMounts};
use layout::Layout;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum ConfigureError {
    #[error("container error: cannot {action} the container's process")]
    Process { action: &'static str, source: io::Error },
    #[error("container error")]
    Root(#[source] BeneathError),
    #[error("container error: invalid rootfs directory: {} is this process's own root", .0.display())]
    OwnRoot(PathBuf),
    #[error("mount error")]
    DriverMounts(#[from] DriverMountError),
    #[error("mount error")]
    Change(#[from] ChangeError),
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
            ConfigureError::DriverMounts(DriverMountError::Node { .. }) => {
                "create it: --load-kmods before the command, or nvidia-modprobe"
            }
            ConfigureError::DriverMounts(DriverMountError::Channel(_)) => {
                "load the driver on a machine with IMEX, or ask for none"
            }
            ConfigureError::Change(ChangeError::Shared(_)) => {
                "give the container that volume without shared or rshared"
            }
            ConfigureError::Change(ChangeError::Beneath(error)) if error.is_missing() => {
                "mount a proc file system at proc in the container's root first"
            }
            ConfigureError::Change(ChangeError::Beneath(error)) if error.is_denied() => {
                "give the container a root that can be written while it is set up: an overlay or a tmpfs over the image"
            }
            ConfigureError::Cgroup(_) => {
                "--no-cgroups leaves the device cgroup alone; then the runtime has to allow the devices"
            }
            _ => return None,
        })
    }
}

pub fn configure(inputs: &Inputs<'_>, log: &Log) -> Result<(), ConfigureError> {
    let arguments = inputs.arguments;
    let failed = |action| move |source| ConfigureError::Process { action, source };
    let process = Process::of(arguments.pid).map_err(failed("find"))?;
    let own = Process::of(None).and_then(|own| own.mount_namespace()).map_err(failed("find"))?;
    let container = process.mount_namespace().map_err(failed("find the mount namespace of"))?;
    let cgroup = match arguments.no_cgroups || in_user_namespace() {
        true => None,
        false => Some(DeviceCgroup::of(&process).map_err(ConfigureError::Cgroup)?),
    };
    // The path is in the container and need not exist here. A magic link is refused before the namespace changes.
    if let Err(error @ BeneathError::MagicLink { .. }) = Root::open(&arguments.rootfs) {
        return Err(ConfigureError::Root(error));
    }
    let mut mounts = DriverMounts::open(inputs, log)?;
    // Always the host's program, with or without an @: the image's own is never run.
    let path = arguments.ldconfig.as_deref().unwrap_or("@/sbin/ldconfig");
    let sealed = ldconfig::seal(path.as_ref()).map_err(ConfigureError::Cache)?;
    let ldconfig = if inputs.no_pivot { sealed.without_pivot() } else { sealed };
    let devices = std::mem::take(&mut mounts.devices);

    // Without --pid, this process is already in the container's mount namespace, so the host's mounts are unknown.
    let peers = match arguments.pid {
        Some(_) => Process::of(None).and_then(|own| own.read("mountinfo")).map(|mounts| PeerGroups::of(&mounts)),
        None => Ok(PeerGroups::default()),
    };
    let peers = peers.map_err(failed("list the mounts beside"))?;
    let enter = |namespace: &Namespace| if arguments.pid.is_some() { namespace.enter() } else { Ok(()) };
    enter(&container).map_err(failed("enter the mount namespace of"))?;
    let root = Root::open(&arguments.rootfs).map_err(ConfigureError::Root)?;
    if root.is_process_root().map_err(ConfigureError::Root)? {
        return Err(ConfigureError::OwnRoot(arguments.rootfs.clone()));
    }
    let mut changes = Changes::new(&root, &process, peers, log);
    let done = mount_driver(mounts, inputs, &ldconfig, &mut changes, log)
        .and_then(|()| enter(&own).map_err(failed("come back from")))
        .and_then(|()| match &cgroup {
            None => Ok(()),
            Some(cgroup) => {
                log.write_line(format_args!("opening {} for {} devices", cgroup.path().display(), devices.len()));
                let hidden = cgroup.allow(&devices).map_err(ConfigureError::Cgroup)?;
                if hidden > 0 {
                    log.write_line(format_args!(
                        "{hidden} device programs are hidden from us, and may go on forbidding"
                    ));
                }
                Ok(())
            }
        });
    if done.is_err() {
        log.write_line(format_args!("undoing"));
        match enter(&container) {
            Ok(()) => changes.undo(),
            Err(error) => log.write_line(format_args!("cannot undo: {error}")),
        }
    }
    done
}

/// The part that runs in the container's mount namespace.
fn mount_driver(
    mounts: DriverMounts,
    inputs: &Inputs<'_>,
    ldconfig: &SealedLdconfig,
    changes: &mut Changes<'_>,
    log: &Log,
) -> Result<(), ConfigureError> {
    let root = changes.root();
    let layout = Layout::of(root).map_err(ConfigureError::Image)?;
    let arguments = inputs.arguments;
    // Before the driver's libraries are mounted, so that only the image's own libraries are found.
    let compat = match arguments.capabilities().has(Capability::Compute) && !arguments.no_cntlibs {
        true => layout::compat(root, arguments.cuda_compat_mode, &inputs.driver.version),
        false => Ok(Vec::new()),
    };
    let compat = compat.map_err(ConfigureError::Image)?;
    mounts.mount_all(changes, &layout, log)?;
    let mut folders = vec![layout.libraries.clone(), layout.libraries32.clone()];
    match arguments.cuda_compat_mode {
        CompatMode::Mount => driver_mounts::mount_compat(compat, changes, &layout)?,
        CompatMode::Ldconfig if !compat.is_empty() => folders.insert(0, layout::COMPAT.into()),
        CompatMode::Ldconfig | CompatMode::Disabled => {}
    }
    let folders: Vec<_> = folders.iter().map(|folder| folder.to_string_lossy()).collect();
    log.write_line(format_args!("library cache for {}", folders.join(", ")));
    ldconfig.run(root, &folders).map_err(ConfigureError::Cache)
}
