//! Reads a container's names and pod from its runtime's files.
//!
//! Files are regular and bounded, and their contents untrusted: a rootless runtime's files are its user's. Source: Docker's
//! `config.v2.json`, containers/storage's `containers.json`, containerd's and CRI-O's annotations in the OCI bundle.

use super::names::{Pod, Runtime};
use super::path::{self, Layer, is_name};
use crate::host::Host;
use serde_json::Value;
use std::cell::Cell;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// The software that runs it, if the path did not name it.
    pub runtime: Option<Runtime>,
    pub name: Option<String>,
    pub pod: Option<Pod>,
}

/// Docker's data directories: of its packages, of its snap, and below a rootless user's home.
const DOCKER: &[&str] = &["/var/lib/docker", "/var/snap/docker/common/var-lib-docker"];
const DOCKER_AT_HOME: &[&str] = &[".local/share/docker"];

/// containerd's state directories: its own, those of k3s and RKE2, MicroK8s, k0s.
const CONTAINERD: &[&str] =
    &["/run/containerd", "/run/k3s/containerd", "/var/snap/microk8s/common/run/containerd", "/run/k0s/containerd"];
/// Its task plugin, and its namespaces whose ids have no name of their own: Kubernetes', nerdctl's and ctr's.
const TASKS: &str = "io.containerd.runtime.v2.task";
const CONTAINERD_NAMESPACES: &[&str] = &["k8s.io", "default"];

/// containers/storage, for CRI-O and Podman: running bundles, stored ones, and below a rootless user's home.
const STORAGE: &[&str] = &["/run/containers/storage", "/var/lib/containers/storage", "/var/run/containers/storage"];
const STORAGE_AT_HOME: &[&str] = &[".local/share/containers/storage"];
/// Storage drivers; the directory of containers has one's name.
const DRIVERS: &[&str] = &["overlay", "vfs", "btrfs", "zfs"];

/// Annotations and labels with names: of the container, its pod, the pod's namespace, and the pod's uid.
const KEYS: &[[&str; 4]] = &[
    [
        "io.kubernetes.cri.container-name",
        "io.kubernetes.cri.sandbox-name",
        "io.kubernetes.cri.sandbox-namespace",
        "io.kubernetes.cri.sandbox-uid",
    ],
    ["io.kubernetes.container.name", "io.kubernetes.pod.name", "io.kubernetes.pod.namespace", "io.kubernetes.pod.uid"],
];
/// nerdctl passes its labels on as annotations.
const NERDCTL_NAME: &str = "nerdctl/name";

/// The size limit of a file. A bundle has some 20 kB; the list of all containers some 1 kB for each.
const LIMIT: usize = 4 << 20;

/// The most path components to look up among containers that were started by hand: a user's path may have thousands.
const MAX_PARTS: usize = 128;

/// Reads the files about a container, at most `remaining` bytes. For a user's container, reads only files in that user's home, and only
/// if `homes` is set.
pub fn read(host: &Host, layer: &Layer, homes: bool, remaining: &Cell<usize>) -> State {
    let files = Files { host, remaining };
    let home = layer.user.filter(|_| homes).and_then(|uid| host.home_of(uid));
    let at = |roots: &[&str], at_home: &[&str]| -> Vec<String> {
        match layer.user {
            None => roots.iter().map(|root| root.to_string()).collect(),
            Some(_) => home.iter().flat_map(|home| at_home.iter().map(move |dir| format!("{home}/{dir}"))).collect(),
        }
    };
    let id = &layer.id;
    let docker = || docker(&files, &at(DOCKER, DOCKER_AT_HOME), id);
    let containerd = || containerd(&files, &at(CONTAINERD, &[]), id);
    let crio = || {
        read_storage_bundle(&files, &at(STORAGE, STORAGE_AT_HOME), id).map(|state| with_runtime(Runtime::Crio, state))
    };
    match layer.runtime {
        Runtime::Docker => docker(),
        Runtime::Containerd => containerd(),
        Runtime::Crio => crio(),
        Runtime::Podman => podman(&files, &at(STORAGE, STORAGE_AT_HOME), id),
        // The path has only an id: the runtime with files about it runs it.
        Runtime::Unknown => docker().or_else(containerd).or_else(crio),
        Runtime::Lxc | Runtime::Nspawn => Some(State { name: Some(id.clone()), ..State::default() }),
        Runtime::Runc | Runtime::Crun => None,
    }
    .unwrap_or_default()
}

fn with_runtime(runtime: Runtime, state: State) -> State {
    State { runtime: Some(runtime), ..state }
}

fn docker(files: &Files, roots: &[String], id: &str) -> Option<State> {
    let config = roots.iter().find_map(|root| files.json(&format!("{root}/containers/{id}/config.v2.json")))?;
    let name =
        short_string(config.get("Name")).map(|name| name.trim_start_matches('/').to_string()).filter(|n| !n.is_empty());
    // Under Kubernetes the container's own name is a label; Docker's name combines several names. Images have labels, too, so labels
    // count only with such a Docker name.
    let is_of_kubernetes = name.as_ref().is_some_and(|name| name.starts_with("k8s_"));
    let labelled = state_from_annotations(config.pointer("/Config/Labels").filter(|_| is_of_kubernetes));
    Some(with_runtime(Runtime::Docker, State { name: labelled.name.or(name), ..labelled }))
}

fn containerd(files: &Files, roots: &[String], id: &str) -> Option<State> {
    let places = roots.iter().flat_map(|root| CONTAINERD_NAMESPACES.iter().map(move |ns| (root, ns)));
    let bundle = places.filter_map(|(root, ns)| files.json(&format!("{root}/{TASKS}/{ns}/{id}/config.json"))).next()?;
    Some(with_runtime(Runtime::Containerd, state_from_annotations(bundle.get("annotations"))))
}

fn read_storage_bundle(files: &Files, roots: &[String], id: &str) -> Option<State> {
    let bundle = storage_paths(roots, &format!("{id}/userdata/config.json")).find_map(|path| files.json(&path))?;
    Some(state_from_annotations(bundle.get("annotations")))
}

fn podman(files: &Files, roots: &[String], id: &str) -> Option<State> {
    let lists = storage_paths(roots, "containers.json").chain(storage_paths(roots, "volatile-containers.json"));
    let found = lists.filter_map(|path| files.json(&path)).find_map(|list| {
        let row = list.as_array()?.iter().find(|row| row.get("id").and_then(Value::as_str) == Some(id))?;
        short_string(row.pointer("/names/0"))
    })?;
    Some(State { name: Some(found), ..State::default() })
}

fn storage_paths<'a>(roots: &'a [String], file: &str) -> impl Iterator<Item = String> + 'a {
    let file = file.to_string();
    roots.iter().flat_map(move |root| {
        let file = file.clone();
        DRIVERS.iter().map(move |driver| format!("{root}/{driver}-containers/{file}"))
    })
}

fn state_from_annotations(map: Option<&Value>) -> State {
    let get = |key: &str| map.and_then(|map| short_string(map.get(key)));
    let first = |at: usize| KEYS.iter().find_map(|keys| get(keys[at]));
    let (pod, namespace, uid) = (first(1), first(2), first(3));
    let pod = (pod.is_some() || uid.is_some()).then_some(Pod { uid, name: pod, namespace });
    State { runtime: None, name: first(0).or_else(|| get(NERDCTL_NAME)), pod }
}

/// A container that a person started with runc or crun may have any directory; their state lists them.
pub fn find_bare_oci_container(host: &Host, cgroups: &str) -> Option<Layer> {
    let of_path = |path| {
        let mut user = None;
        str::split(path, '/').map(move |segment| {
            user = path::user_of(segment).or(user);
            (segment, user)
        })
    };
    let candidates = path::paths(cgroups).flat_map(of_path).filter(|(segment, _)| is_name(segment));
    for (segment, user) in candidates.take(MAX_PARTS) {
        let found = [("/run/runc", "state.json", Runtime::Runc), ("/run/crun", "status", Runtime::Crun)]
            .into_iter()
            .find(|(root, file, _)| host.at(format!("{root}/{segment}/{file}")).is_file());
        if let Some((.., runtime)) = found {
            return Some(Layer { id: segment.to_string(), runtime, pod: None, user });
        }
    }
    None
}

/// A host's files, with a limit for reading.
struct Files<'a> {
    host: &'a Host,
    remaining: &'a Cell<usize>,
}

impl Files<'_> {
    fn json(&self, path: &str) -> Option<Value> {
        let most = LIMIT.min(self.remaining.get());
        // A file beyond the limit counts as read too.
        let bytes = self.host.beginning(path, most + 1)?;
        self.remaining.set(self.remaining.get().saturating_sub(bytes.len()));
        serde_json::from_slice(&bytes).ok().filter(|_| bytes.len() <= most)
    }
}

/// A non-empty string that is short enough for a table.
fn short_string(value: Option<&Value>) -> Option<String> {
    value?.as_str().filter(|text| !text.is_empty() && text.len() <= 512).map(str::to_string)
}
