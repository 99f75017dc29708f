//! Converts a container between NRI's messages and the OCI specification that `mpu_seccomp` edits.
//!
//! A profile is never loosened: one that is unknown, or incomplete, is not replaced. [`NotServed`] lists the reasons besides those
//! of `mpu_seccomp` to leave a container as it is.

use mpu_seccomp::{NoListener, Notify, add_listener};
use prost::Message;
use serde::Deserialize;
use serde_json::{Value, json};

use super::engines::Engine;
use super::proto::{Adjustment, Container, Created, Device, LinuxAdjustment, Seccomp, UNCONFINED};

/// Why a container starts without MPU's engine.
#[derive(Debug, thiserror::Error)]
pub enum NotServed {
    /// The reason of `mpu_seccomp`.
    #[error(transparent)]
    Without(#[from] NoListener),
    #[error("{0} does not let a plugin set a seccomp profile")]
    Unable(String),
    /// The engine does not send the rules of the profile.
    #[error("{0} does not say which rules its seccomp profile has")]
    NoRules(String),
    /// The profile cannot be preserved.
    #[error("its seccomp profile has fields that this mpu does not know")]
    Newer,
}

impl NotServed {
    /// Whether the container would have got the notify engine, had one run that takes containers.
    pub fn lacks_engine(&self) -> bool {
        matches!(self, NotServed::Without(NoListener::NoEngine(..) | NoListener::Retired(_)))
    }

    /// Whether it needs no report.
    pub fn is_ordinary(&self) -> bool {
        matches!(self, NotServed::Without(why) if why.is_ordinary())
    }
}

/// The answer that gives a container's calls to MPU's engine.
pub fn armed(container: &Container, engine: &Engine, notify: &Notify) -> Result<Created, NotServed> {
    let linux = container.linux.as_ref();
    let sent = linux.and_then(|linux| linux.seccomp_policy.as_deref());
    let known = sent.map(|bytes| Seccomp::decode(bytes).ok().filter(|known| known.encoded_len() == bytes.len()));
    let mut tree = tree(container, known.as_ref().and_then(Option::as_ref));
    // Check the container first: an engine's limits are not reported for a container without a GPU.
    add_listener(&mut tree, notify)?;
    let kind = linux.and_then(|linux| linux.seccomp_profile.as_ref()).map(|kind| kind.kind);
    // A named profile without its rules is unknown.
    let is_known = kind == Some(UNCONFINED) || kind.is_none() && engine.sends_rules;
    match known {
        _ if !engine.sets_profile => return Err(NotServed::Unable(engine.name_and_version.clone())),
        Some(None) => return Err(NotServed::Newer),
        None if !is_known => return Err(NotServed::NoRules(engine.name_and_version.clone())),
        Some(Some(_)) | None => {}
    }
    let policy = Seccomp::deserialize(&tree["linux"]["seccomp"]).map_err(|_| NotServed::Newer)?;
    let linux = LinuxAdjustment { seccomp_policy: Some(policy) };
    Ok(Created { adjust: Some(Adjustment { linux: Some(linux) }) })
}

/// The part of an OCI specification that decides about the listener.
fn tree(container: &Container, seccomp: Option<&Seccomp>) -> Value {
    let linux = container.linux.clone().unwrap_or_default();
    let mut devices = linux.devices;
    // A CDI name stands for nodes that the engine adds, before or after it calls us.
    if container.cdi_devices.iter().any(|device| is_nvidias(&device.name)) {
        devices.push(Device { path: "/dev/nvidiactl".into(), kind: "c".into(), major: 195, minor: 255 });
    }
    let rules = linux.resources.map(|resources| resources.devices).unwrap_or_default();
    let mounts = container.mounts.iter().map(|mount| json!({"source": mount.source}));
    json!({
        "process": {"env": container.env},
        "mounts": mounts.collect::<Vec<_>>(),
        "linux": {
            "devices": devices,
            "namespaces": linux.namespaces,
            "resources": {"devices": rules},
            "seccomp": seccomp,
        }
    })
}

/// Whether a CDI name is of one of NVIDIA's vendors: `nvidia.com/gpu=0`, `management.nvidia.com/gpu=all`.
fn is_nvidias(name: &str) -> bool {
    let vendor = name.split('/').next().unwrap_or_default();
    vendor == "nvidia.com" || vendor.ends_with(".nvidia.com")
}

#[cfg(test)]
mod tests {
    use super::super::proto::{Argument, CreateContainer, Errno, Syscall};
    use super::*;
    use proptest::prelude::*;

    /// The rules' crate and the engine's know each other by these paths alone.
    #[test]
    fn engine_listens_where_rules_say() {
        assert_eq!(mpu_seccomp::SOCKET, mpu_notify::LISTENER_SOCKET);
        let beside = std::path::Path::new(mpu_seccomp::SOCKET).with_file_name(mpu_seccomp::RETIRED);
        assert_eq!(beside.to_str(), Some(mpu_notify::RETIRED));
    }

    fn seccomp() -> impl Strategy<Value = Seccomp> {
        let text = || prop::sample::select(vec!["", "SCMP_ACT_ALLOW", "ioctl", "\u{e9}\n"]).prop_map(str::to_owned);
        let texts = move || prop::collection::vec(text(), 0..3);
        let errno = || prop::option::of(any::<u32>().prop_map(|value| Errno { value }));
        let argument = (any::<u32>(), any::<u64>(), any::<u64>(), text())
            .prop_map(|(index, value, value_two, op)| Argument { index, value, value_two, op });
        let rule = (texts(), text(), errno(), prop::collection::vec(argument, 0..3))
            .prop_map(|(names, action, errno, arguments)| Syscall { names, action, errno, arguments });
        (text(), errno(), texts(), texts(), prop::collection::vec(rule, 0..4)).prop_map(
            |(default_action, default_errno, architectures, flags, syscalls)| Seccomp {
                default_action,
                default_errno,
                architectures,
                flags,
                syscalls,
                ..Seccomp::default()
            },
        )
    }

    proptest! {
        #[test]
        fn profile_round_trips(profile in seccomp()) {
            prop_assert_eq!(Seccomp::deserialize(json!(profile)).ok(), Some(profile));
        }

        /// And a container whose description is nonsense is left alone without a word of ours but a reason.
        #[test]
        fn no_description_of_container_is_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..64), sends_rules: bool) {
            let engine = Engine { name_and_version: "an engine".into(), sets_profile: true, sends_rules };
            let container = CreateContainer::decode(&*bytes).ok().and_then(|request| request.container);
            let notify = Notify { socket: "/nowhere".into(), ..Notify::default() };
            prop_assert!(container.is_none_or(|container| armed(&container, &engine, &notify).is_err()));
        }
    }
}
