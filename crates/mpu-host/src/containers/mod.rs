//! Finds the container of a process: its id, runtime, names and pod. Unreadable facts are none.
//!
//! Reads cgroup paths ([`path`]) and runtimes' files ([`state`]), without asking a daemon or entering a namespace. The creator of a
//! cgroup chooses its name. Below `user@UID.service` a user may name one like another user's container: [`Container::user`] marks that,
//! and files of root's runtimes are not used for it. A container may name cgroups inside it freely: [`Container::outer`] has the
//! containers around.

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

/// The innermost container of a process; none if it is in none, or has ended.
pub fn of(host: &Host, pid: HostPid) -> Option<Container> {
    Look::new(host).in_cgroups(&cgroups_of(host, pid)?)
}

/// The text of a process's cgroup file; none if it has ended. Processes with equal texts are in the same container.
pub fn cgroups_of(host: &Host, pid: HostPid) -> Option<String> {
    cgroups_at(host, &format!("/proc/{}", pid.get()))
}

/// The same for a process or thread by its folder.
pub fn cgroups_at(host: &Host, folder: &str) -> Option<String> {
    let bytes = host.bounded(format!("{folder}/cgroup"), path::LIMIT)?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a cgroup file's text has no information: version 1 shows every ended process at the root.
pub fn is_at_root(text: &str) -> bool {
    path::paths(text).all(|path| path == "/")
}

/// Reads the containers of many processes: each runtime's file is read once, within a limit.
#[derive(Debug)]
pub struct Look<'a> {
    host: &'a Host,
    homes: bool,
    remaining: Cell<usize>,
    states: RefCell<BTreeMap<Layer, State>>,
}

/// The limit for all runtimes' files together. A host full of containers has some 10 MB.
const MAX_BYTES: usize = 32 << 20;

impl<'a> Look<'a> {
    /// Reads files of root's runtimes only. A user's file system may be a program that never answers.
    pub fn new(host: &'a Host) -> Look<'a> {
        Look { host, homes: false, remaining: Cell::new(MAX_BYTES), states: RefCell::default() }
    }

    /// Also reads files of rootless runtimes in users' homes. Only for commands that a person can interrupt.
    pub fn with_homes(host: &'a Host) -> Look<'a> {
        Look { homes: true, ..Look::new(host) }
    }

    /// The innermost container in a cgroup file's text.
    pub fn in_cgroups(&self, text: &str) -> Option<Container> {
        let mut found: Option<Container> = None;
        let mut layers = path::layers(text);
        if layers.is_empty() {
            layers.extend(state::find_bare_oci_container(self.host, text));
        }
        for layer in layers {
            found = Some(self.describe(layer, found));
        }
        found
    }

    fn describe(&self, layer: Layer, outer: Option<Container>) -> Container {
        // Files of an inner runtime are inside the outer container, out of reach.
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
        if let Some(state) = self.states.borrow().get(layer) {
            return state.clone();
        }
        let state = state::read(self.host, layer, self.homes, &self.remaining);
        self.states.borrow_mut().insert(layer.clone(), state.clone());
        state
    }
}

#[cfg(test)]
mod tests;
