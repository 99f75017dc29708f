//! Decides whether a container gets the notify engine's listener, and adds it to the container's specification. The runtime
//! wrapper and the NRI plugin both use this.
//!
//! An engine takes containers if its socket accepts a connection and there is no file `retired` beside it. In doubt the
//! specification stays unchanged ([`NoListener`] is the reason): a container never fails because of the engine.
//!
//! Source: OCI runtime specification 1.2, `linux.seccomp.listenerPath`. docs/container/notify.md describes the runtimes.

mod policy;
mod profile;
mod rules;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mpu_os::socket::connect;
use serde_json::Value;
use thiserror::Error;

pub use policy::{Notify, NotifyPolicy, SOCKET};

/// The container's own choice, if the policy allows one.
const VARIABLE: &str = "MPU_NOTIFY";
/// The driver's own major number (`NV_MAJOR_DEVICE_NUMBER` of its `nv.h`). It identifies a node with another name.
const DRIVER_MAJOR: u64 = 195;
/// The inode number of the init PID namespace, the same on every kernel: `PROC_PID_INIT_INO` of `include/linux/proc_ns.h`.
const INIT_PID_NAMESPACE: u64 = 0xefff_fffc;
/// `FUSE_MINOR` of the misc devices (`include/linux/miscdevice.h`).
const FUSE: (Option<u64>, Option<u64>) = (Some(10), Some(229));
/// Installs a filter on all threads at once. It excludes a listener: seccomp(2), `EINVAL`.
const TSYNC: &str = "SECCOMP_FILTER_FLAG_TSYNC";
/// A file beside the socket of an engine that takes no new container.
pub const RETIRED: &str = "retired";
/// Limit of the wait for an engine whose connection queue is full. Users would notice a tenth of a second at a container's start.
const QUEUE_TIMEOUT: Duration = Duration::from_millis(20);

/// Why a container starts without the engine, its specification unchanged.
#[derive(Debug, Error)]
pub enum NoListener {
    /// The administrator's choice, or the container's where the policy allows one.
    #[error("{0}")]
    Policy(&'static str),
    #[error("it gets no device of the driver")]
    NoDevice,
    #[error("it has no PID namespace of its own")]
    HostPidNamespace,
    /// The specification names a PID namespace by a path that cannot be read.
    #[error("cannot look at its PID namespace {}", .0.display())]
    PidNamespace(PathBuf, #[source] io::Error),
    /// A FUSE file system of the container could serve memory that the engine reads, and never answer. No signal ends such a
    /// wait, so the container could keep the engine from restarting. (A privileged container can do worse without the engine.)
    #[error("it is given /dev/fuse")]
    Fuse,
    #[error("no engine listens at {}", .0.display())]
    NoEngine(PathBuf, #[source] io::Error),
    /// The engine still takes processes that enter one of its containers.
    #[error("the engine at {} takes no new container", .0.display())]
    Retired(PathBuf),
    /// Another program added it: the NRI plugin runs before the wrapper.
    #[error("it has the engine's listener already")]
    Already,
    /// A filter can have one listener only.
    #[error("its seccomp profile has a listener of its own")]
    OtherListener,
    /// A process can have one filter with a listener only.
    #[error("its seccomp profile has a rule SCMP_ACT_NOTIFY of its own")]
    NotifyRule,
    /// The kernel refuses both at once: each uses the return value of seccomp(2).
    #[error("its seccomp profile has the flag {TSYNC}, with which no filter has a listener")]
    Tsync,
    #[error("its seccomp profile decides about ioctl by argument")]
    ArgumentRule,
    #[error("its seccomp profile has several rules for ioctl")]
    SeveralRules,
    #[error("its seccomp profile answers ioctl with {0}")]
    Refused(String),
    #[error("it has no seccomp profile, and none is known for {0}")]
    Architecture(String),
    #[error("{at} of its config.json is not {expected}")]
    Malformed {
        /// Where, as in `linux.seccomp.syscalls`.
        at: String,
        expected: &'static str,
    },
}

impl NoListener {
    /// Whether this is normal on a host without an engine, or the administrator's choice. Then it is not reported.
    pub fn is_ordinary(&self) -> bool {
        matches!(
            self,
            NoListener::Policy(_)
                | NoListener::NoDevice
                | NoListener::HostPidNamespace
                | NoListener::NoEngine(..)
                | NoListener::Retired(_)
                | NoListener::Already
        )
    }
}

/// Adds the engine's listener to the specification of a container that has the driver's nodes.
pub fn add_listener(tree: &mut Value, config: &Notify) -> Result<(), NoListener> {
    if !has_driver_nodes(tree) {
        return Err(NoListener::NoDevice);
    }
    check_policy(tree, config.policy)?;
    check_pid_namespace(tree)?;
    if has_fuse(tree) && !is_privileged(tree) {
        return Err(NoListener::Fuse);
    }
    // A retired engine keeps its socket open: an `exec` into one of its containers needs it.
    if config.socket.with_file_name(RETIRED).exists() {
        return Err(NoListener::Retired(config.socket.clone()));
    }
    connect(&config.socket, QUEUE_TIMEOUT).map_err(|error| NoListener::NoEngine(config.socket.clone(), error))?;
    // The path comes from a text in config.toml, so it is UTF-8.
    let socket = config.socket.to_string_lossy();
    let linux = tree.get_mut("linux").and_then(Value::as_object_mut);
    let linux = linux.ok_or_else(|| NoListener::Malformed { at: "linux".into(), expected: "an object" })?;
    let profile = match linux.get("seccomp") {
        None | Some(Value::Null) => profile::allow_all_with_listener(std::env::consts::ARCH, &socket)?,
        Some(profile) => profile::with_listener(profile, &socket)?,
    };
    linux.insert("seccomp".into(), profile);
    Ok(())
}

fn check_policy(tree: &Value, policy: NotifyPolicy) -> Result<(), NoListener> {
    let value = || {
        let env = tree.pointer("/process/env")?.as_array()?;
        // The last of several with one name counts.
        let mut values = env.iter().rev().filter_map(|entry| entry.as_str()?.strip_prefix(VARIABLE)?.strip_prefix('='));
        values.next()
    };
    match policy {
        NotifyPolicy::Always => Ok(()),
        NotifyPolicy::Off => Err(NoListener::Policy("mpu.notify of config.toml is off")),
        NotifyPolicy::On if value() == Some("off") => Err(NoListener::Policy("its environment has MPU_NOTIFY=off")),
        NotifyPolicy::On => Ok(()),
        NotifyPolicy::OptIn if value() == Some("on") => Ok(()),
        NotifyPolicy::OptIn => {
            Err(NoListener::Policy("mpu.notify of config.toml is opt-in, and its environment has no MPU_NOTIFY=on"))
        }
    }
}

/// Whether the container gets a node of the driver, by CDI, by name or from MPU.
fn has_driver_nodes(tree: &Value) -> bool {
    let path = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).map(PathBuf::from);
    let is_node = |node: &Value| {
        numbers(node).0 == Some(DRIVER_MAJOR) && node.get("type").is_some_and(|kind| kind == "c")
            || path(node, "path").is_some_and(|path| is_driver_node(&path))
    };
    // Names of libraries and programs begin with nvidia, too. Nodes lie in a folder `dev` of the host or of a driver root.
    let is_mounted = |mount: &Value| {
        path(mount, "source").is_some_and(|source| {
            is_driver_node(&source) && source.parent().and_then(Path::file_name).is_some_and(|folder| folder == "dev")
        })
    };
    list(tree, "/linux/devices").iter().any(is_node) || list(tree, "/mounts").iter().any(is_mounted)
}

/// In every container the names of the driver's nodes begin with nvidia.
fn is_driver_node(node: &Path) -> bool {
    node.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"nvidia"))
}

/// Device numbers of an entry. A missing or negative number is none, which means any number.
fn numbers(entry: &Value) -> (Option<u64>, Option<u64>) {
    let number = |key: &str| entry.get(key).and_then(Value::as_u64);
    (number("major"), number("minor"))
}

fn list<'a>(tree: &'a Value, at: &str) -> &'a [Value] {
    tree.pointer(at).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Whether the container gets the node, or may create and open it. Every container may create nodes that it cannot open.
fn has_fuse(tree: &Value) -> bool {
    list(tree, "/linux/devices").iter().any(|node| numbers(node) == FUSE)
        || write_rules(tree).any(|rule| covers(rule, FUSE))
}

/// Whether the container may use every device, as privileged containers may.
fn is_privileged(tree: &Value) -> bool {
    let is_any_type =
        |rule: &Value| rule.get("type").and_then(Value::as_str).is_none_or(|kind| matches!(kind, "" | "a"));
    write_rules(tree).any(|rule| is_any_type(rule) && numbers(rule) == (None, None))
}

/// Whether a rule applies to a device.
fn covers(rule: &Value, device: (Option<u64>, Option<u64>)) -> bool {
    let (major, minor) = numbers(rule);
    major.is_none_or(|major| Some(major) == device.0) && minor.is_none_or(|minor| Some(minor) == device.1)
}

/// Rules that let a container write to character devices.
fn write_rules(tree: &Value) -> impl Iterator<Item = &Value> {
    let has = |rule: &Value, key: &str, letters: [char; 2]| {
        rule.get(key).and_then(Value::as_str).is_none_or(|value| value.is_empty() || value.contains(letters))
    };
    let allows = move |rule: &&Value| {
        rule.get("allow") == Some(&Value::Bool(true))
            && has(rule, "access", ['w', 'w'])
            && has(rule, "type", ['a', 'c'])
    };
    list(tree, "/linux/resources/devices").iter().filter(allows)
}

/// Accepts a new PID namespace, and an existing one unless it is the host's.
fn check_pid_namespace(tree: &Value) -> Result<(), NoListener> {
    let Some(pids) =
        list(tree, "/linux/namespaces").iter().find(|one| one.get("type").is_some_and(|kind| kind == "pid"))
    else {
        return Err(NoListener::HostPidNamespace);
    };
    let path = match pids.get("path") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::String(path)) if path.is_empty() => return Ok(()),
        Some(Value::String(path)) => path,
        Some(_) => return Err(NoListener::Malformed { at: "linux.namespaces.path".into(), expected: "a text" }),
    };
    match fs::metadata(path) {
        Ok(meta) if meta.ino() == INIT_PID_NAMESPACE => Err(NoListener::HostPidNamespace),
        Ok(_) => Ok(()),
        Err(error) => Err(NoListener::PidNamespace(path.into(), error)),
    }
}
