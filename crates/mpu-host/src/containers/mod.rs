//! Which container a process is in: its id, its runtime, its names, and its pod.
//!
//! Owns the reading of cgroup paths ([`path`]) and of what runtimes leave on disk ([`state`]). Asks no daemon, enters no namespace,
//! and never fails: what cannot be read is not known. Knows nothing of GPUs.
//!
//! A cgroup's name is given by whoever made it. Where a user may make cgroups (below `user@UID.service`), a user may also name one
//! like somebody else's container; above it, only root can. [`Container::outer`] keeps what encloses what.

mod names;
pub mod path;
mod state;

pub use names::{Container, Pod, Runtime};

use crate::host::Host;
use mpu_core::HostPid;
use path::Layer;

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
