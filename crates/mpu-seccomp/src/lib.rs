//! Whether a container's calls of the driver go to MPU's notify engine, and the edit of its specification that sends them
//! there.
//!
//! Owns who gets a listener, and the reasons ([`Without`]) why one does not; the runtime wrapper and the NRI plugin both
//! ask here. Knows the engine by its socket alone: that it takes a connection, with no file `retired` beside it, means that
//! an engine is there and takes containers. A container never fails for the engine's sake: in doubt its specification stays
//! as it is. Refuses to know who put the driver's nodes into a specification, and how one is read and stored.
//!
//! Outside truth: OCI runtime specification 1.2, `linux.seccomp.listenerPath`; what runtimes make of it is in
//! docs/container/notify.md.

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

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::Value;
use thiserror::Error;

pub use policy::{Notify, NotifyPolicy, SOCKET};

/// The variable with which a container decides, where the policy lets it.
const VARIABLE: &str = "MPU_NOTIFY";
/// The driver's own major number (`NV_MAJOR_DEVICE_NUMBER` of its `nv.h`): an alias of a node is known by it.
const DRIVER_MAJOR: u64 = 195;
/// The number of the init PID namespace, the same on every kernel: `PROC_PID_INIT_INO` of `include/linux/proc_ns.h`.
const INIT_PID_NAMESPACE: u64 = 0xefff_fffc;
/// `FUSE_MINOR` of the misc devices (`include/linux/miscdevice.h`).
const FUSE: (Option<u64>, Option<u64>) = (Some(10), Some(229));
/// A filter for all threads at once: seccomp(2), `EINVAL`.
const TSYNC: &str = "SECCOMP_FILTER_FLAG_TSYNC";
/// A file beside the socket of an engine that takes no new container.
pub const RETIRED: &str = "retired";
/// How often an engine is asked whose queue is full, and how long is waited in between: a tenth of a second would be
/// seen in a container's start.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(2);

/// Why a container starts without the engine. Nothing has been changed then.
#[derive(Debug, Error)]
pub enum Without {
    /// The administrator, or the container where it may decide.
    #[error("{0}")]
    Policy(&'static str),
    /// It gets none of the driver's nodes.
    #[error("it gets no device of the driver")]
    NoDevice,
    /// It numbers processes as the host does.
    #[error("it has no PID namespace of its own")]
    HostPids,
    /// Its PID namespace is another's, which is not there.
    #[error("cannot look at its PID namespace {}", .0.display())]
    PidNamespace(PathBuf, #[source] io::Error),
    /// It can have its own programs serve memory that the engine reads, and never answer: nothing ends a process that waits for
    /// that, so a container could keep the engine from being started again. (A privileged one can do worse without us.)
    #[error("it is given /dev/fuse")]
    Fuse,
    #[error("no engine listens at {}", .0.display())]
    NoEngine(PathBuf, #[source] io::Error),
    /// An engine that takes no new container, but still processes that enter containers that it has.
    #[error("the engine at {} takes no new container", .0.display())]
    Retired(PathBuf),
    /// Another program armed it before us: the NRI plugin, where the wrapper follows.
    #[error("it has the engine's listener already")]
    Already,
    /// One filter has one listener.
    #[error("its seccomp profile has a listener of its own")]
    Listener,
    /// And the kernel allows one filter with one.
    #[error("its seccomp profile has a rule SCMP_ACT_NOTIFY of its own")]
    Notifies,
    /// The kernel refuses both at once: either answers by the call's one result.
    #[error("its seccomp profile has the flag {TSYNC}, with which no filter has a listener")]
    Tsync,
    /// Its profile allows some requests, not others.
    #[error("its seccomp profile decides about ioctl by argument")]
    ByArgument,
    /// Rules of its profile contradict each other.
    #[error("its seccomp profile has several rules for ioctl")]
    Contradictory,
    /// Its profile does not let programs call a driver.
    #[error("its seccomp profile answers ioctl with {0}")]
    Refused(String),
    /// We know no profile for this machine.
    #[error("it has no seccomp profile, and none is known for {0}")]
    Architecture(String),
    /// Runtimes will say more about it.
    #[error("{at} of its config.json is not {expected}")]
    Malformed {
        /// Where, as in `linux.seccomp.syscalls`.
        at: String,
        expected: &'static str,
    },
}

impl Without {
    /// Whether that is how a host without an engine, or an administrator, wants it: then it is not reported.
    pub fn is_ordinary(&self) -> bool {
        matches!(
            self,
            Without::Policy(_)
                | Without::NoDevice
                | Without::HostPids
                | Without::NoEngine(..)
                | Without::Retired(_)
                | Without::Already
        )
    }
}

/// Edits the specification of a container that holds the driver's nodes, so that the engine receives its calls.
pub fn listen(tree: &mut Value, config: &Notify) -> Result<(), Without> {
    if !holds_the_drivers_nodes(tree) {
        return Err(Without::NoDevice);
    }
    wanted(tree, config.policy)?;
    own_pids(tree)?;
    if has_fuse(tree) && !is_privileged(tree) {
        return Err(Without::Fuse);
    }
    // A program that is executed in a container needs the socket for as long as the container lives; so it can be open when
    // its engine is on the way out, and says so by a file beside it.
    if config.socket.with_file_name(RETIRED).exists() {
        return Err(Without::Retired(config.socket.clone()));
    }
    takes_connections(&config.socket).map_err(|error| Without::NoEngine(config.socket.clone(), error))?;
    // Its key in config.toml is a text, so the path is one.
    let socket = config.socket.to_string_lossy();
    let linux = tree.get_mut("linux").and_then(Value::as_object_mut);
    let linux = linux.ok_or_else(|| Without::Malformed { at: "linux".into(), expected: "an object" })?;
    let with = match linux.get("seccomp") {
        None | Some(Value::Null) => profile::minimal(std::env::consts::ARCH, &socket)?,
        Some(profile) => profile::edited(profile, &socket)?,
    };
    linux.insert("seccomp".into(), with);
    Ok(())
}

fn wanted(tree: &Value, policy: NotifyPolicy) -> Result<(), Without> {
    let word = || {
        let env = tree.pointer("/process/env")?.as_array()?;
        // Of several with one name the last one counts.
        let mut values = env.iter().rev().filter_map(|entry| entry.as_str()?.strip_prefix(VARIABLE)?.strip_prefix('='));
        values.next()
    };
    match policy {
        NotifyPolicy::Always => Ok(()),
        NotifyPolicy::Off => Err(Without::Policy("mpu.notify of config.toml is off")),
        NotifyPolicy::On if word() == Some("off") => Err(Without::Policy("its environment has MPU_NOTIFY=off")),
        NotifyPolicy::On => Ok(()),
        NotifyPolicy::OptIn if word() == Some("on") => Ok(()),
        NotifyPolicy::OptIn => {
            Err(Without::Policy("mpu.notify of config.toml is opt-in, and its environment has no MPU_NOTIFY=on"))
        }
    }
}

/// Whether anybody gave the container a node of the driver's: an engine by CDI or by name, or we.
fn holds_the_drivers_nodes(tree: &Value) -> bool {
    let path = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).map(PathBuf::from);
    let is_node = |node: &Value| {
        numbers(node).0 == Some(DRIVER_MAJOR) && node.get("type").is_some_and(|kind| kind == "c")
            || path(node, "path").is_some_and(|path| is_the_drivers(&path))
    };
    // Libraries and programs are called nvidia…, too; nodes lie in a folder `dev`, the host's or that of a driver's root.
    let is_mounted = |mount: &Value| {
        path(mount, "source").is_some_and(|source| {
            is_the_drivers(&source) && source.parent().and_then(Path::file_name).is_some_and(|folder| folder == "dev")
        })
    };
    list(tree, "/linux/devices").iter().any(is_node) || list(tree, "/mounts").iter().any(is_mounted)
}

/// The driver's nodes are called nvidia…, wherever a container has them.
fn is_the_drivers(node: &Path) -> bool {
    node.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"nvidia"))
}

/// Device number in a list of a specification. -1 stands for any, as its absence does.
fn numbers(entry: &Value) -> (Option<u64>, Option<u64>) {
    let number = |key: &str| entry.get(key).and_then(Value::as_u64);
    (number("major"), number("minor"))
}

fn list<'a>(tree: &'a Value, at: &str) -> &'a [Value] {
    tree.pointer(at).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Whether it gets the node, or may make it. Every container has rules that let it make nodes which it cannot open.
fn has_fuse(tree: &Value) -> bool {
    list(tree, "/linux/devices").iter().any(|node| numbers(node) == FUSE) || writes(tree).any(|rule| covers(rule, FUSE))
}

/// Whether it may use every device of either type, as privileged containers may.
fn is_privileged(tree: &Value) -> bool {
    let of_all = |rule: &Value| rule.get("type").and_then(Value::as_str).is_none_or(|kind| matches!(kind, "" | "a"));
    writes(tree).any(|rule| of_all(rule) && numbers(rule) == (None, None))
}

/// Whether a rule is about a device, by its number or by any.
fn covers(rule: &Value, device: (Option<u64>, Option<u64>)) -> bool {
    let (major, minor) = numbers(rule);
    major.is_none_or(|major| Some(major) == device.0) && minor.is_none_or(|minor| Some(minor) == device.1)
}

/// Rules that let a container write to character devices.
fn writes(tree: &Value) -> impl Iterator<Item = &Value> {
    let has = |rule: &Value, key: &str, letters: [char; 2]| {
        rule.get(key).and_then(Value::as_str).is_none_or(|word| word.is_empty() || word.contains(letters))
    };
    let allows = move |rule: &&Value| {
        rule.get("allow") == Some(&Value::Bool(true))
            && has(rule, "access", ['w', 'w'])
            && has(rule, "type", ['a', 'c'])
    };
    list(tree, "/linux/resources/devices").iter().filter(allows)
}

/// A new PID namespace is its own, and so is one that it shares with others, unless that is the host's.
fn own_pids(tree: &Value) -> Result<(), Without> {
    let Some(pids) =
        list(tree, "/linux/namespaces").iter().find(|one| one.get("type").is_some_and(|kind| kind == "pid"))
    else {
        return Err(Without::HostPids);
    };
    let path = match pids.get("path") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::String(path)) if path.is_empty() => return Ok(()),
        Some(Value::String(path)) => path,
        Some(_) => return Err(Without::Malformed { at: "linux.namespaces.path".into(), expected: "a text" }),
    };
    match fs::metadata(path) {
        Ok(meta) if meta.ino() == INIT_PID_NAMESPACE => Err(Without::HostPids),
        Ok(_) => Ok(()),
        Err(error) => Err(Without::PidNamespace(path.into(), error)),
    }
}

/// Whether an engine takes a connection. Never waits long: a Unix socket connects at once, or its queue is full.
fn takes_connections(path: &Path) -> io::Result<()> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let mut tries = TRIES;
    loop {
        match connect(&socket, &address) {
            Err(Errno::AGAIN) if tries > 0 => {
                tries -= 1;
                std::thread::sleep(PAUSE);
            }
            done => return Ok(done?),
        }
    }
}
