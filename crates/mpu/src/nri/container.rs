//! Converts a container between NRI's messages and the OCI specification that `mpu_seccomp` edits.
//!
//! A profile is never loosened: one that is unknown, or incomplete, is not replaced. [`NotServed`] lists the reasons besides those
//! of `mpu_seccomp` to leave a container as it is.

use mpu_seccomp::{Notify, Without, listen};
use prost::Message;
use serde_json::{Map, Value, json};

use super::engines::Engine;
use super::proto::{Adjustment, Argument, Container, Created, Errno, LinuxAdjustment, Seccomp, Syscall, UNCONFINED};

/// Why a container starts without MPU's engine.
#[derive(Debug, thiserror::Error)]
pub enum NotServed {
    /// The reason of `mpu_seccomp`.
    #[error(transparent)]
    Without(#[from] Without),
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
    /// Whether the container would have got the engine, had the container engine supported it.
    pub fn lacks_engine(&self) -> bool {
        matches!(self, NotServed::Without(Without::NoEngine(..) | Without::Retired(_)))
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
    listen(&mut tree, notify)?;
    let kind = linux.and_then(|linux| linux.seccomp_profile.as_ref()).map(|kind| kind.kind);
    // A named profile without its rules is unknown.
    let is_known = kind == Some(UNCONFINED) || kind.is_none() && engine.sends_rules;
    match known {
        _ if !engine.sets_profile => return Err(NotServed::Unable(engine.name_and_version.clone())),
        Some(None) => return Err(NotServed::Newer),
        None if !is_known => return Err(NotServed::NoRules(engine.name_and_version.clone())),
        Some(Some(_)) | None => {}
    }
    let policy = of_oci(&tree["linux"]["seccomp"]).ok_or(NotServed::Newer)?;
    let linux = LinuxAdjustment { seccomp_policy: Some(policy) };
    Ok(Created { adjust: Some(Adjustment { linux: Some(linux) }) })
}

/// The part of an OCI specification that decides about the listener.
fn tree(container: &Container, seccomp: Option<&Seccomp>) -> Value {
    let linux = container.linux.clone().unwrap_or_default();
    let node =
        |path: &str, kind: &str, major, minor| json!({"path": path, "type": kind, "major": major, "minor": minor});
    let mut devices: Vec<Value> =
        linux.devices.iter().map(|found| node(&found.path, &found.kind, found.major, found.minor)).collect();
    // A CDI name stands for nodes that the engine adds, before or after it calls us.
    if container.cdi_devices.iter().any(|device| is_nvidias(&device.name)) {
        devices.push(node("/dev/nvidiactl", "c", 195, 255));
    }
    let namespaces = linux.namespaces.iter().map(|one| json!({"type": one.kind, "path": one.path}));
    let rules = linux.resources.iter().flat_map(|resources| &resources.devices).map(|rule| {
        let number = |number: &Option<super::proto::Number>| number.as_ref().map(|number| number.value);
        json!({"allow": rule.allow, "type": rule.kind, "major": number(&rule.major), "minor": number(&rule.minor),
            "access": Some(&rule.access).filter(|access| !access.is_empty())})
    });
    let mounts = container.mounts.iter().map(|mount| json!({"source": mount.source}));
    json!({
        "process": {"env": container.env},
        "mounts": mounts.collect::<Vec<_>>(),
        "linux": {
            "devices": devices,
            "namespaces": namespaces.collect::<Vec<_>>(),
            "resources": {"devices": rules.collect::<Vec<_>>()},
            "seccomp": seccomp.map(to_oci),
        }
    })
}

/// Whether a CDI name is of one of NVIDIA's vendors: `nvidia.com/gpu=0`, `management.nvidia.com/gpu=all`.
fn is_nvidias(name: &str) -> bool {
    let vendor = name.split('/').next().unwrap_or_default();
    vendor == "nvidia.com" || vendor.ends_with(".nvidia.com")
}

fn to_oci(seccomp: &Seccomp) -> Value {
    let rules = seccomp.syscalls.iter().map(|rule| {
        let arguments = rule.arguments.iter().map(|argument| {
            json!({"index": argument.index, "value": argument.value, "valueTwo": argument.value_two, "op": argument.op})
        });
        let mut oci = Map::new();
        oci.insert("names".into(), json!(rule.names));
        oci.insert("action".into(), json!(rule.action));
        if let Some(errno) = &rule.errno {
            oci.insert("errnoRet".into(), json!(errno.value));
        }
        oci.insert("args".into(), arguments.collect());
        Value::from(oci)
    });
    let mut oci = Map::new();
    // NRI writes an empty string for an absent value.
    if !seccomp.default_action.is_empty() {
        oci.insert("defaultAction".into(), json!(seccomp.default_action));
    }
    if let Some(errno) = &seccomp.default_errno {
        oci.insert("defaultErrnoRet".into(), json!(errno.value));
    }
    oci.insert("architectures".into(), json!(seccomp.architectures));
    oci.insert("flags".into(), json!(seccomp.flags));
    oci.insert("listenerPath".into(), json!(seccomp.listener_path));
    oci.insert("listenerMetadata".into(), json!(seccomp.listener_metadata));
    oci.insert("syscalls".into(), rules.collect());
    oci.into()
}

/// Converts back; none if something is in an unexpected place.
fn of_oci(oci: &Value) -> Option<Seccomp> {
    let text = |of: &Value, key: &str| of.get(key).map_or(Some(String::new()), |text| text.as_str().map(str::to_owned));
    let texts = |of: &Value, key: &str| -> Option<Vec<String>> {
        let Some(list) = of.get(key) else { return Some(Vec::new()) };
        list.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let errno = |of: &Value, key: &str| -> Option<Option<Errno>> {
        let Some(number) = of.get(key) else { return Some(None) };
        Some(Some(Errno { value: number.as_u64()?.try_into().ok()? }))
    };
    let argument = |of: &Value| -> Option<Argument> {
        Some(Argument {
            index: of.get("index")?.as_u64()?.try_into().ok()?,
            value: of.get("value")?.as_u64()?,
            value_two: of.get("valueTwo").map_or(Some(0), Value::as_u64)?,
            op: text(of, "op")?,
        })
    };
    let rule = |of: &Value| -> Option<Syscall> {
        let arguments = of.get("args").map_or(Some(&[][..]), |list| list.as_array().map(Vec::as_slice))?;
        Some(Syscall {
            names: texts(of, "names")?,
            action: text(of, "action")?,
            errno: errno(of, "errnoRet")?,
            arguments: arguments.iter().map(argument).collect::<Option<_>>()?,
        })
    };
    Some(Seccomp {
        default_action: text(oci, "defaultAction")?,
        default_errno: errno(oci, "defaultErrnoRet")?,
        architectures: texts(oci, "architectures")?,
        flags: texts(oci, "flags")?,
        listener_path: text(oci, "listenerPath")?,
        listener_metadata: text(oci, "listenerMetadata")?,
        syscalls: oci.get("syscalls")?.as_array()?.iter().map(rule).collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::proto::CreateContainer;
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
            prop_assert_eq!(of_oci(&to_oci(&profile)), Some(profile));
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
