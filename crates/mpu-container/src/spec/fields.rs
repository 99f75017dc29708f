//! Normalizes the case of a specification's field names, such as `Process`.
//!
//! Go's decoder in runc and NVIDIA's wrapper ignores the case. A reader by exact names would miss such a field, and a writer would add a
//! second one.
//!
//! Source: Go's `encoding/json`, `Unmarshal`. Of a duplicate field, objects are merged, and of other values the later one counts.

use serde_json::Value;

/// Fields whose objects, or lists of objects, have fields that we read or write.
#[rustfmt::skip]
const WITH_FIELDS: &[&str] = &[
    "args", "capabilities", "createContainer", "createRuntime", "devices", "hooks", "linux", "mounts", "namespaces",
    "poststart", "poststop", "prestart", "process", "resources", "root", "seccomp", "startContainer", "syscalls",
    "user",
];

/// The other fields that we read or write. The keys of a map, as of annotations, are no fields.
#[rustfmt::skip]
const FIELDS: &[&str] = &[
    "access", "action", "additionalGids", "allow", "annotations", "architectures", "bounding", "defaultAction", "destination",
    "env", "fileMode", "flags", "gid", "index", "intelRdt", "listenerMetadata", "listenerPath", "major", "minor",
    "names", "netDevices", "ociVersion", "op", "options", "path", "source", "timeout", "type", "uid", "value",
    "valueTwo",
];

/// Gives known fields the specification's own names, wherever they stand.
pub(super) fn rename(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(rename),
        Value::Object(fields) => {
            if fields.keys().any(|key| named(key) != key) {
                for (key, value) in std::mem::take(fields) {
                    merge(fields.entry(named(&key).to_owned()).or_insert(Value::Null), value);
                }
            }
            let deeper = fields.iter_mut().filter(|(key, _)| WITH_FIELDS.contains(&key.as_str()));
            deeper.for_each(|(_, value)| rename(value));
        }
        _ => {}
    }
}

fn named(key: &str) -> &str {
    WITH_FIELDS.iter().chain(FIELDS).find(|name| name.eq_ignore_ascii_case(key)).map_or(key, |name| name)
}

fn merge(to: &mut Value, later: Value) {
    match (to, later) {
        (Value::Object(to), Value::Object(later)) => {
            later.into_iter().for_each(|(key, value)| merge(to.entry(key).or_insert(Value::Null), value));
        }
        (to, later) => *to = later,
    }
}
