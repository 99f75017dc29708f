//! Container edits of CDI: changes to a container's specification.
//!
//! Source: CDI specification 1.0.0, `specs-go/config.go`; fields that we do not know are kept.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    pub cdi_version: String,
    /// `vendor/class`, as in `nvidia.com/gpu`.
    pub kind: String,
    /// Notes; keys and values are strings.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Map::is_empty")]
    pub annotations: Map<String, Value>,
    #[serde(default, deserialize_with = "given")]
    pub devices: Vec<Device>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "ContainerEdits::is_empty")]
    pub container_edits: ContainerEdits,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// The name behind `vendor/class=`.
    pub name: String,
    /// Notes; keys and values are strings.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Map::is_empty")]
    pub annotations: Map<String, Value>,
    #[serde(default, deserialize_with = "given")]
    pub container_edits: ContainerEdits,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerEdits {
    /// `NAME=value`.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<Value>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Intel's resource director, as it stands in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<Value>,
    #[serde(default, deserialize_with = "given", rename = "additionalGids", skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

/// A device node. What is missing is taken from the node on the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    pub path: String,
    /// Where it is on the host, when that differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// `c`, `b`, `u` or `p`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub major: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// What the device cgroup allows: some of `rwm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    pub host_path: String,
    pub container_path: String,
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// When: `prestart`, `createRuntime`, `createContainer`, `startContainer`, `poststart`, `poststop`.
    pub hook_name: String,
    pub path: String,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Seconds that it may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

/// A field's value. `null` is the same as no field, as for the engines, which are written in Go.
fn given<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl ContainerEdits {
    pub fn is_empty(&self) -> bool {
        *self == ContainerEdits::default()
    }
}
