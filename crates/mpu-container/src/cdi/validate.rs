//! Validates CDI specs.
//!
//! Source: CDI specification 1.1.0 and the reference's checks in `pkg/cdi` (`spec.go`, `device.go`,
//! `container-edits.go`).

use super::name::{Kind, NameError, QualifiedName};
use super::version;
use crate::edits::{ContainerEdits, Spec};
use serde_json::{Map, Value};
use std::collections::HashSet;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("cdiVersion '{0}' is unknown; versions up to {newest} are", newest = version::VERSIONS[version::VERSIONS.len() - 1])]
    Version(String),
    #[error("cdiVersion is '{claimed}', but what the file holds needs {needed}")]
    TooOld { claimed: String, needed: &'static str },
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("it describes no device")]
    NoDevices,
    #[error("device '{0}' is described twice")]
    Twice(String),
    #[error("device '{0}' has empty containerEdits")]
    Empty(String),
    #[error("{at}: {what}")]
    Value {
        /// Where, as in `devices[gpu0].hooks`.
        at: String,
        what: String,
    },
}

/// OCI's hook names.
pub const HOOK_NAMES: [&str; 6] =
    ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

pub fn check(spec: &Spec) -> Result<Kind, Invalid> {
    let claimed = version::position(&spec.cdi_version).ok_or_else(|| Invalid::Version(spec.cdi_version.clone()))?;
    let needed = version::lowest(spec);
    if version::position(needed) > Some(claimed) {
        return Err(Invalid::TooOld { claimed: spec.cdi_version.clone(), needed });
    }
    let kind: Kind = spec.kind.parse()?;
    annotations("annotations", &spec.annotations)?;
    edits("containerEdits", &spec.container_edits)?;
    let mut names = HashSet::new();
    for device in &spec.devices {
        QualifiedName::new(kind.clone(), &device.name)?;
        let at = format!("devices[{}]", device.name);
        annotations(&format!("{at}.annotations"), &device.annotations)?;
        if device.container_edits.is_empty() {
            return Err(Invalid::Empty(device.name.clone()));
        }
        edits(&at, &device.container_edits)?;
        if !names.insert(&device.name) {
            return Err(Invalid::Twice(device.name.clone()));
        }
    }
    if names.is_empty() {
        return Err(Invalid::NoDevices);
    }
    Ok(kind)
}

/// Checks edits. `at` is their place in the spec.
pub fn edits(at: &str, edits: &ContainerEdits) -> Result<(), Invalid> {
    let fails = |part: &str, what: String| Err(Invalid::Value { at: format!("{at}.{part}"), what });
    if let Some(bad) = edits.env.iter().find(|line| !is_variable(line)) {
        return fails("env", format!("'{bad}' is not NAME=value"));
    }
    for node in &edits.device_nodes {
        if node.path.is_empty() {
            return fails("deviceNodes", "a path is empty".into());
        }
        if let Some(kind) = node.kind.as_deref().filter(|kind| !["", "b", "c", "u", "p"].contains(kind)) {
            return fails("deviceNodes", format!("'{kind}' is no type of node; c, b, u and p are"));
        }
        // -1 would mean "any" in the device cgroup.
        if node.major.into_iter().chain(node.minor).any(|number| number < 0) {
            return fails("deviceNodes", format!("the major or minor number of '{}' is negative", node.path));
        }
        let letters = |text: &str| text == "none" || text.chars().all(|letter| "rwm".contains(letter));
        if let Some(bad) = node.permissions.as_deref().filter(|text| !letters(text)) {
            return fails("deviceNodes", format!("permissions '{bad}' are not of r, w and m"));
        }
    }
    for mount in &edits.mounts {
        if mount.host_path.is_empty() || mount.container_path.is_empty() {
            return fails("mounts", "a hostPath or containerPath is empty".into());
        }
    }
    for hook in &edits.hooks {
        if !HOOK_NAMES.contains(&hook.hook_name.as_str()) {
            return fails("hooks", format!("'{}' is no hook; {} are", hook.hook_name, HOOK_NAMES.join(", ")));
        }
        if hook.path.is_empty() {
            return fails("hooks", format!("the path of a {} hook is empty", hook.hook_name));
        }
        if let Some(bad) = hook.env.iter().find(|line| !is_variable(line)) {
            return fails("hooks", format!("'{bad}' is not NAME=value"));
        }
    }
    for device in &edits.net_devices {
        let filled = |key| device.get(key).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
        if !filled("hostInterfaceName") || !filled("name") {
            return fails("netDevices", "hostInterfaceName and name must be given".into());
        }
    }
    Ok(())
}

fn annotations(at: &str, annotations: &Map<String, Value>) -> Result<(), Invalid> {
    // The reference accepts any scalar as a string.
    match annotations.iter().find(|(key, value)| key.is_empty() || value.is_array() || value.is_object()) {
        None => Ok(()),
        Some((key, _)) => Err(Invalid::Value { at: at.into(), what: format!("'{key}' must be a name with a string") }),
    }
}

fn is_variable(line: &str) -> bool {
    line.split_once('=').is_some_and(|(name, _)| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(edits: &str) -> String {
        let json =
            format!(r#"{{"cdiVersion":"0.5.0","kind":"a/b","devices":[{{"name":"0","containerEdits":{edits}}}]}}"#);
        check(&serde_json::from_str(&json).unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn broken_rule_is_reported_with_place() {
        assert_eq!(error_of("{}"), "device '0' has empty containerEdits");
        assert_eq!(error_of(r#"{"env":["=x"]}"#), "devices[0].env: '=x' is not NAME=value");
        assert_eq!(error_of(r#"{"deviceNodes":[{"path":""}]}"#), "devices[0].deviceNodes: a path is empty");
        assert!(error_of(r#"{"deviceNodes":[{"path":"/dev/a","type":"d"}]}"#).contains("'d' is no type of node"));
        assert!(error_of(r#"{"deviceNodes":[{"path":"/dev/a","permissions":"rx"}]}"#).contains("'rx'"));
        assert!(error_of(r#"{"deviceNodes":[{"path":"/dev/a","major":-1}]}"#).contains("'/dev/a' is negative"));
        assert!(error_of(r#"{"deviceNodes":[{"path":"/dev/a","minor":-1}]}"#).contains("'/dev/a' is negative"));
        assert!(error_of(r#"{"mounts":[{"hostPath":"/a","containerPath":""}]}"#).contains("mounts"));
        assert!(error_of(r#"{"hooks":[{"hookName":"never","path":"/a"}]}"#).contains("'never' is no hook"));
        assert!(error_of(r#"{"hooks":[{"hookName":"poststop","path":""}]}"#).contains("path of a poststop hook"));
        assert!(error_of(r#"{"additionalGids":[1]}"#).contains("needs 0.7.0"));
    }

    /// Engines are written in Go, where `null` is the same as no field.
    #[test]
    fn null_fields_count_as_absent() {
        use crate::cdi::file::{Format, parse};
        let full = r#"{"cdiVersion":"0.5.0","kind":"a/b","annotations":null,"containerEdits":null,"devices":[
            {"name":"0","annotations":null,"containerEdits":{"env":["A=1"],"deviceNodes":null,"netDevices":null,"hooks":null,
            "mounts":null,"intelRdt":null,"additionalGids":null}},
            {"name":"1","containerEdits":{"hooks":[{"hookName":"poststop","path":"/a","args":null,"env":null,"timeout":null}],
            "mounts":[{"hostPath":"/a","containerPath":"/a","options":null,"type":null}]}}]}"#;
        let yaml = "cdiVersion: 0.5.0\nkind: a/b\ncontainerEdits:\ndevices:\n- name: a\n  containerEdits:\n    env: [A=1]\n    mounts:\n";
        for (text, format) in [(full, Format::Json), (full, Format::Yaml), (yaml, Format::Yaml)] {
            let spec = parse(text.as_bytes(), format).expect(text);
            assert_eq!(check(&spec).expect(text).to_string(), "a/b");
            assert!(spec.container_edits.is_empty());
        }
        let yaml = "cdiVersion: 0.6.0\nkind: a/b\nannotations: {a: 1, b: , c: true, d: x}\ndevices:\n- name: a\n  containerEdits:\n    env: [A=1]\n";
        assert!(check(&parse(yaml.as_bytes(), Format::Yaml).unwrap()).is_ok(), "a word, whatever it looks like");
        let empty = |edits: &str| format!(r#"{{"cdiVersion":"0.5.0","kind":"a/b","devices":[{{"name":"0"{edits}}}]}}"#);
        for edits in ["", r#","containerEdits":null"#, r#","containerEdits":{}"#] {
            let spec = parse(empty(edits).as_bytes(), Format::Json).expect(edits);
            assert_eq!(check(&spec), Err(Invalid::Empty("0".into())), "as the reference has it");
        }
        let none = parse(br#"{"cdiVersion":"0.5.0","kind":"a/b","devices":null}"#, Format::Json).unwrap();
        assert_eq!(check(&none), Err(Invalid::NoDevices));
    }
}
