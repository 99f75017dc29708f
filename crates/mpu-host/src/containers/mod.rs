//! Which container a process is in: its id, its runtime, its names, and its pod.
//!
//! Owns the reading of cgroup paths ([`path`]) and of what runtimes leave on disk ([`state`]). Asks no daemon, enters no namespace,
//! and never fails: what cannot be read is not known. Knows nothing of GPUs.
//!
//! The creator of a cgroup chooses its name. Where a user may make cgroups (below `user@UID.service`), a user may also name one
//! like another user's container: [`Container::user`] says so, and what root's runtimes left is not taken for such a one. A container may
//! name those in it as it likes: [`Container::outer`] keeps what encloses what.

mod names;
pub mod path;
mod state;

pub use names::{Container, Pod, Runtime};

use crate::host::Host;
use mpu_core::HostPid;
use path::Layer;
use state::State;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// The innermost container that a process is in; none if it is in none, or has ended.
pub fn of(host: &Host, pid: HostPid) -> Option<Container> {
    Look::new(host).in_cgroups(&cgroups_of(host, pid)?)
}

/// The text of a process's cgroup file; none if it has ended. Two processes with the same text are in the same container.
pub fn cgroups_of(host: &Host, pid: HostPid) -> Option<String> {
    cgroups_at(host, &format!("/proc/{}", pid.get()))
}

/// The same of a process or thread by its folder.
pub fn cgroups_at(host: &Host, folder: &str) -> Option<String> {
    let bytes = host.bounded(format!("{folder}/cgroup"), path::LIMIT)?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a cgroup file's text says nothing: version 1 shows every process there that has ended, wherever it was.
pub fn is_at_the_root(text: &str) -> bool {
    path::paths(text).all(|path| path == "/")
}

/// Looks at many processes together: what a runtime left about a container is read once for all of them, and not without end.
#[derive(Debug)]
pub struct Look<'a> {
    host: &'a Host,
    homes: bool,
    left: Cell<usize>,
    known: RefCell<BTreeMap<Layer, State>>,
}

/// Bytes of runtimes' files that are read together. A host full of containers has some 10 MB.
const MOST_BYTES: usize = 32 << 20;

impl<'a> Look<'a> {
    /// Reads what root's runtimes left. A user's file system may be a program of the user's, which never answers.
    pub fn new(host: &'a Host) -> Look<'a> {
        Look { host, homes: false, left: Cell::new(MOST_BYTES), known: RefCell::default() }
    }

    /// Reads what rootless runtimes left in their users' homes, too: for a person who can break it off.
    pub fn with_homes(host: &'a Host) -> Look<'a> {
        Look { homes: true, ..Look::new(host) }
    }

    /// The innermost container of a cgroup file's text.
    pub fn in_cgroups(&self, text: &str) -> Option<Container> {
        let mut found: Option<Container> = None;
        let mut layers = path::layers(text);
        if layers.is_empty() {
            layers.extend(state::started_by_hand(self.host, text));
        }
        for layer in layers {
            found = Some(self.named(layer, found));
        }
        found
    }

    fn named(&self, layer: Layer, outer: Option<Container>) -> Container {
        // What an inner runtime left lies inside the outer container, out of reach.
        let state = if outer.is_none() { self.state(&layer) } else { State::default() };
        let pod = match (layer.pod, state.pod) {
            // Kubernetes is root's.
            _ if layer.user.is_some() => None,
            (None, pod) => pod,
            (Some(uid), None) => Some(Pod { uid: Some(uid), name: None, namespace: None }),
            (Some(uid), Some(pod)) => Some(Pod { uid: Some(uid), ..pod }),
        };
        let runtime = state.runtime.unwrap_or(layer.runtime);
        Container { id: layer.id, runtime, user: layer.user, name: state.name, pod, outer: outer.map(Box::new) }
    }

    fn state(&self, layer: &Layer) -> State {
        if let Some(state) = self.known.borrow().get(layer) {
            return state.clone();
        }
        let state = state::look(self.host, layer, self.homes, &self.left);
        self.known.borrow_mut().insert(layer.clone(), state.clone());
        state
    }
}

#[cfg(test)]
mod tests;
