//! Normalizes the case of a specification's field names, such as `Process`.
//!
//! Go's decoder in runc and NVIDIA's wrapper ignores the case. Otherwise we would miss such a field, or add a second one.
//!
//! Source: Go's `encoding/json`, `Unmarshal`. It merges objects of duplicate fields. Of other duplicates, the last one counts.

use serde_json::Value;

/// Fields with objects, or lists of objects, whose fields we read or write.
#[rustfmt::skip]
const WITH_FIELDS: &[&str] = &[
    "args", "capabilities", "createContainer", "createRuntime", "devices", "hooks", "linux", "mounts", "namespaces",
    "poststart", "poststop", "prestart", "process", "resources", "root", "seccomp", "startContainer", "syscalls",
    "user",
];

/// Other fields that we read or write. Keys of maps, such as annotations, are not fields.
#[rustfmt::skip]
const FIELDS: &[&str] = &[
    "access", "action", "additionalGids", "allow", "annotations", "architectures", "bounding", "defaultAction", "destination",
    "env", "fileMode", "flags", "gid", "index", "intelRdt", "listenerMetadata", "listenerPath", "major", "minor",
    "names", "netDevices", "ociVersion", "op", "options", "path", "source", "timeout", "type", "uid", "value",
    "valueTwo",
];

/// Gives these fields the specification's names, at any depth.
pub(super) fn normalize_names(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(normalize_names),
        Value::Object(fields) => {
            if fields.keys().any(|key| canonical_name(key) != key) {
                for (key, value) in std::mem::take(fields) {
                    merge(fields.entry(canonical_name(&key).to_owned()).or_insert(Value::Null), value);
                }
            }
            let nested = fields.iter_mut().filter(|(key, _)| WITH_FIELDS.contains(&key.as_str()));
            nested.for_each(|(_, value)| normalize_names(value));
        }
        _ => {}
    }
}

fn canonical_name(key: &str) -> &str {
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
