//! Versions of CDI's schema, and the lowest version that a spec needs.
//!
//! Source: CDI specification 1.1.0, its table of releases, and the reference's `specs-go/version.go`.

use crate::edits::{ContainerEdits, Spec};
use serde_json::Value;

pub const VERSIONS: [&str; 10] =
    ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];

type UsesFeature = fn(&Spec) -> bool;

/// The version that introduced each feature, newest first.
const NEEDS: [(&str, UsesFeature); 5] = [
    ("1.1.0", |spec| edits(spec).any(|edits| !edits.net_devices.is_empty() || new_rdt(edits))),
    ("0.7.0", |spec| edits(spec).any(|edits| edits.intel_rdt.is_some() || !edits.additional_gids.is_empty())),
    ("0.6.0", |spec| {
        let notes = !spec.annotations.is_empty() || spec.devices.iter().any(|device| !device.annotations.is_empty());
        notes || spec.kind.split_once('/').is_some_and(|(_, class)| class.contains('.'))
    }),
    ("0.5.0", |spec| {
        let digit = |name: &str| name.starts_with(|first: char| first.is_ascii_digit());
        spec.devices.iter().any(|device| digit(&device.name))
            || edits(spec).any(|edits| edits.device_nodes.iter().any(|node| node.host_path.is_some()))
    }),
    ("0.4.0", |spec| edits(spec).any(|edits| edits.mounts.iter().any(|mount| mount.kind.is_some()))),
];

/// The lowest version with all features of the spec, at least 0.3.0: engines read no older one.
pub fn lowest(spec: &Spec) -> &'static str {
    NEEDS.iter().find(|(_, needs)| needs(spec)).map_or("0.3.0", |(version, _)| version)
}

/// A version's position in [`VERSIONS`]. A leading `v` is allowed, as in the reference.
pub fn position(version: &str) -> Option<usize> {
    let version = version.strip_prefix('v').unwrap_or(version);
    VERSIONS.iter().position(|known| *known == version)
}

fn edits(spec: &Spec) -> impl Iterator<Item = &ContainerEdits> {
    spec.devices.iter().map(|device| &device.container_edits).chain([&spec.container_edits])
}

fn new_rdt(edits: &ContainerEdits) -> bool {
    let Some(rdt) = &edits.intel_rdt else { return false };
    rdt.get("schemata").is_some_and(|schemata| !schemata.is_null())
        || rdt.get("enableMonitoring") == Some(&Value::Bool(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lowest_of(json: &str) -> &'static str {
        lowest(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn feature_requires_its_version() {
        let with = |edits: &str| {
            lowest_of(&format!(
                r#"{{"cdiVersion":"1.1.0","kind":"a/b","devices":[{{"name":"x","containerEdits":{edits}}}]}}"#
            ))
        };
        assert_eq!(with(r#"{"env":["A=1"]}"#), "0.3.0");
        assert_eq!(with(r#"{"mounts":[{"hostPath":"/a","containerPath":"/b","type":"bind"}]}"#), "0.4.0");
        assert_eq!(with(r#"{"deviceNodes":[{"path":"/dev/a","hostPath":"/x/dev/a"}]}"#), "0.5.0");
        assert_eq!(with(r#"{"additionalGids":[1]}"#), "0.7.0");
        assert_eq!(with(r#"{"intelRdt":{"closID":"a"}}"#), "0.7.0");
        assert_eq!(with(r#"{"intelRdt":{"enableMonitoring":true}}"#), "1.1.0");
        assert_eq!(with(r#"{"netDevices":[{"hostInterfaceName":"a","name":"b"}]}"#), "1.1.0");
        assert_eq!(
            lowest_of(r#"{"cdiVersion":"","kind":"a/b","devices":[{"name":"0","containerEdits":{}}]}"#),
            "0.5.0"
        );
        assert_eq!(lowest_of(r#"{"cdiVersion":"","kind":"a/b.c","devices":[]}"#), "0.6.0");
        assert_eq!(lowest_of(r#"{"cdiVersion":"","kind":"a/b","annotations":{"a":"b"},"devices":[]}"#), "0.6.0");
    }

    #[test]
    fn leading_v_is_allowed() {
        assert_eq!(position("v0.5.0"), position("0.5.0"));
        assert_eq!(position("1.2.0"), None);
        assert_eq!(position(""), None);
    }
}
