//! Converts a container between NRI's messages and the OCI specification that `mpu_seccomp` edits.
//!
//! A profile is never loosened: an unknown or incomplete profile is not replaced. [`SkipReason`] has the reasons for
//! which a container does not change, in addition to those of `mpu_seccomp`.

use mpu_seccomp::{NoListener, Notify};
use prost::Message;
use serde::Deserialize;
use serde_json::{Value, json};

use super::engines::Engine;
use super::proto::{Adjustment, Container, Created, Device, LinuxAdjustment, Seccomp, UNCONFINED};

/// Why a container starts without MPU's engine.
#[derive(Debug, thiserror::Error)]
pub enum SkipReason {
    /// A reason of `mpu_seccomp`.
    #[error(transparent)]
    Seccomp(#[from] NoListener),
    #[error("{0} does not let a plugin set a seccomp profile")]
    NoProfiles(String),
    /// The engine does not send the profile's rules.
    #[error("{0} does not say which rules its seccomp profile has")]
    NoRules(String),
    /// The profile has unknown fields, which a replacement would lose.
    #[error("its seccomp profile has fields that this mpu does not know")]
    UnknownFields,
}

impl SkipReason {
    /// Whether the container only lacks a running notify engine that accepts containers.
    pub fn lacks_notify_engine(&self) -> bool {
        matches!(self, SkipReason::Seccomp(NoListener::NoEngine(..) | NoListener::Retired(_)))
    }

    /// Whether it needs no report.
    pub fn is_ordinary(&self) -> bool {
        matches!(self, SkipReason::Seccomp(why) if why.is_ordinary())
    }
}

/// The answer to `CreateContainer` that adds the listener to the container's seccomp profile.
pub fn add_listener(container: &Container, engine: &Engine, notify: &Notify) -> Result<Created, SkipReason> {
    let linux = container.linux.as_ref();
    let sent = linux.and_then(|linux| linux.seccomp_policy.as_deref());
    let profile = sent.map(|bytes| Seccomp::decode(bytes).ok().filter(|profile| profile.encoded_len() == bytes.len()));
    let mut tree = oci_fragment(container, profile.as_ref().and_then(Option::as_ref));
    // Check the container first, so that the engine's limits are not reported for a container without a GPU.
    mpu_seccomp::add_listener(&mut tree, notify)?;
    let kind = linux.and_then(|linux| linux.seccomp_profile.as_ref()).map(|kind| kind.kind);
    // A named profile without its rules is unknown.
    let is_complete = kind == Some(UNCONFINED) || kind.is_none() && engine.sends_rules;
    match profile {
        _ if !engine.sets_profile => return Err(SkipReason::NoProfiles(engine.name_and_version.clone())),
        Some(None) => return Err(SkipReason::UnknownFields),
        None if !is_complete => return Err(SkipReason::NoRules(engine.name_and_version.clone())),
        Some(Some(_)) | None => {}
    }
    let policy = Seccomp::deserialize(&tree["linux"]["seccomp"]).map_err(|_| SkipReason::UnknownFields)?;
    let linux = LinuxAdjustment { seccomp_policy: Some(policy) };
    Ok(Created { adjust: Some(Adjustment { linux: Some(linux) }) })
}

/// The part of an OCI specification that `mpu_seccomp` needs.
fn oci_fragment(container: &Container, seccomp: Option<&Seccomp>) -> Value {
    let linux = container.linux.clone().unwrap_or_default();
    let mut devices = linux.devices;
    // A CDI name stands for device nodes. The engine may add them after it calls the plugin.
    if container.cdi_devices.iter().any(|device| is_nvidia_cdi_name(&device.name)) {
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
fn is_nvidia_cdi_name(name: &str) -> bool {
    let vendor = name.split('/').next().unwrap_or_default();
    vendor == "nvidia.com" || vendor.ends_with(".nvidia.com")
}

#[cfg(test)]
mod tests {
    use super::super::proto::{Argument, CreateContainer, Errno, Syscall};
    use super::*;
    use proptest::prelude::*;

    /// `mpu_seccomp` and `mpu_notify` do not depend on each other, so both have the paths.
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

        /// A container with a nonsensical description does not change.
        #[test]
        fn malformed_container_gets_no_listener(bytes in prop::collection::vec(any::<u8>(), 0..64), sends_rules: bool) {
            let engine = Engine { name_and_version: "an engine".into(), sets_profile: true, sends_rules };
            let container = CreateContainer::decode(&*bytes).ok().and_then(|request| request.container);
            let notify = Notify { socket: "/nowhere".into(), ..Notify::default() };
            prop_assert!(container.is_none_or(|container| add_listener(&container, &engine, &notify).is_err()));
        }
    }
}
