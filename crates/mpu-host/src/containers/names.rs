//! The names of containers, of their runtimes and of their pods.

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Serialize;
use strum::IntoStaticStr;

/// Software that runs containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema, ValueEnum, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
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
        self.into()
    }
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Container {
    /// Its runtime's id for it: 64 hexadecimal digits as a rule, for LXC and the like a name.
    pub id: String,
    /// The software that runs it.
    pub runtime: Runtime,
    /// The user whose service manager runs it; none for one that root started. A user chooses the id of such a container, which may be
    /// another container's.
    pub user: Option<u32>,
    /// Its name; none if its runtime's files cannot be read.
    pub name: Option<String>,
    /// Its Kubernetes pod.
    pub pod: Option<Pod>,
    /// The container around this one, if a runtime runs inside a container.
    pub outer: Option<Box<Container>>,
}

/// A Kubernetes pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Pod {
    /// The uid in the cgroup's name; for static pods the hash of their file.
    pub uid: Option<String>,
    /// Its name; none if the runtime's files cannot be read.
    pub name: Option<String>,
    /// Its namespace, likewise.
    pub namespace: Option<String>,
}

impl Container {
    /// The short id: the first twelve digits of a long one, or a whole name.
    pub fn short_id(&self) -> &str {
        if is_long_id(&self.id) { &self.id[..12] } else { &self.id }
    }

    /// Its runtime's name, with the user's number for a user's container: `docker@1000`.
    pub fn runtime_name(&self) -> String {
        self.of_user(self.runtime.name())
    }

    /// Its id, with the user's number for a user's container: unique on the host.
    pub fn whole_id(&self) -> String {
        self.of_user(&self.id)
    }

    fn of_user(&self, text: &str) -> String {
        self.user.map_or_else(|| text.to_string(), |user| format!("{text}@{user}"))
    }

    /// The outermost container; this one if it is in no other.
    pub fn outermost(&self) -> &Container {
        self.outer.as_deref().map_or(self, Container::outermost)
    }
}

/// Whether this is an id of 64 hexadecimal digits.
pub fn is_long_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}
