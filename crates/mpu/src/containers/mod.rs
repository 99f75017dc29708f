//! Which container a process is in: its id, its runtime, its names, and its pod.
//!
//! Owns the reading of cgroup paths ([`path`]) and of what runtimes leave on disk ([`state`]). Asks no daemon, enters no namespace,
//! and never fails: what cannot be read is not known. Knows nothing of GPUs.
//!
//! A cgroup's name is given by whoever made it. Where a user may make cgroups (below `user@UID.service`), a user may also name one
//! like somebody else's container; above it, only root can. [`Container::outer`] keeps what encloses what.

pub mod path;
mod state;

use crate::host::Host;
use mpu_core::HostPid;
use path::Layer;
use schemars::JsonSchema;
use serde::Serialize;

/// Software that runs containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Runtime {
    /// Docker Engine
    Docker,
    /// containerd, by Kubernetes, nerdctl or ctr
    Containerd,
    /// CRI-O
    Crio,
    /// Podman
    Podman,
    /// LXC, Incus and LXD
    Lxc,
    /// systemd-nspawn
    Nspawn,
    /// runc, started by hand
    Runc,
    /// crun, started by hand
    Crun,
    /// A container by its cgroup, of a runtime that the path does not name
    Unknown,
}

impl Runtime {
    /// Its name, as JSON and filters write it.
    pub fn name(self) -> &'static str {
        match self {
            Runtime::Docker => "docker",
            Runtime::Containerd => "containerd",
            Runtime::Crio => "crio",
            Runtime::Podman => "podman",
            Runtime::Lxc => "lxc",
            Runtime::Nspawn => "nspawn",
            Runtime::Runc => "runc",
            Runtime::Crun => "crun",
            Runtime::Unknown => "unknown",
        }
    }
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Container {
    /// As its runtime names it: 64 hexadecimal digits as a rule, for LXC and the like a name.
    pub id: String,
    /// Who runs it.
    pub runtime: Runtime,
    /// The name that a person gave it; none when its runtime's files cannot be read.
    pub name: Option<String>,
    /// The Kubernetes pod that it belongs to.
    pub pod: Option<Pod>,
    /// The container around this one, when a runtime runs inside another's container.
    pub outer: Option<Box<Container>>,
}

/// A Kubernetes pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Pod {
    /// As the cgroup has it; for static pods the hash of their file.
    pub uid: Option<String>,
    /// Its name; none when the runtime's files cannot be read.
    pub name: Option<String>,
    /// Its namespace, likewise.
    pub namespace: Option<String>,
}

impl Container {
    /// The id as people write it: the first twelve digits of a long one, a name whole.
    pub fn short_id(&self) -> &str {
        if path::is_long_id(&self.id) {
            &self.id[..12]
        } else {
            &self.id
        }
    }

    /// The outermost container, this one if it is in no other.
    pub fn outermost(&self) -> &Container {
        self.outer.as_deref().map_or(self, Container::outermost)
    }
}

/// The innermost container that a process is in; none if it is in none, or has ended.
pub fn of(host: &Host, pid: HostPid) -> Option<Container> {
    in_cgroups(host, &cgroups_of(host, pid)?)
}

/// The text of a process's cgroup file; none if it has ended. Two processes with the same text are in the same container.
pub fn cgroups_of(host: &Host, pid: HostPid) -> Option<String> {
    let bytes = host.bounded(format!("/proc/{}/cgroup", pid.get()), path::LIMIT)?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The innermost container of a cgroup file's text.
pub fn in_cgroups(host: &Host, text: &str) -> Option<Container> {
    let mut found: Option<Container> = None;
    let mut layers = path::layers(text);
    if layers.is_empty() {
        layers.extend(state::started_by_hand(host, text));
    }
    for layer in layers {
        found = Some(named(host, layer, found));
    }
    found
}

fn named(host: &Host, layer: Layer, outer: Option<Container>) -> Container {
    // What an inner runtime left lies inside the outer container, out of reach.
    let state = if outer.is_none() { state::look(host, &layer) } else { state::State::default() };
    let pod = match (layer.pod, state.pod) {
        (None, pod) => pod,
        (Some(uid), None) => Some(Pod { uid: Some(uid), name: None, namespace: None }),
        (Some(uid), Some(pod)) => Some(Pod { uid: Some(uid), ..pod }),
    };
    let runtime = state.runtime.unwrap_or(layer.runtime);
    Container { id: layer.id, runtime, name: state.name, pod, outer: outer.map(Box::new) }
}

#[cfg(test)]
mod tests;
