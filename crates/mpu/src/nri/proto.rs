//! The messages of ttrpc and of NRI, as far as this plugin needs them.
//!
//! Unknown fields are dropped. `Seccomp` is sent back, so it stays bytes until a check shows that decoding loses
//! nothing.
//!
//! Source: `src/ttrpc.proto` of containerd/ttrpc 1.2 and `pkg/api/api.proto` of containerd/nri 0.12.

use serde::{Deserialize, Serialize};

/// A request, from either side.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    #[prost(string, tag = "1")]
    pub service: String,
    #[prost(string, tag = "2")]
    pub method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Response {
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

/// The error; code 0 is success.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterPlugin {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub index: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Configure {
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    #[prost(string, tag = "3")]
    pub runtime_version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Configured {
    /// A bit for each event, the first for event 1.
    #[prost(int32, tag = "2")]
    pub events: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Synchronize {
    #[prost(bool, tag = "3")]
    pub more: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Synchronized {
    #[prost(bool, tag = "2")]
    pub more: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateContainer {
    #[prost(message, optional, tag = "1")]
    pub pod: Option<Pod>,
    #[prost(message, optional, tag = "2")]
    pub container: Option<Container>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Pod {
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub namespace: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Container {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, repeated, tag = "8")]
    pub env: Vec<String>,
    #[prost(message, repeated, tag = "9")]
    pub mounts: Vec<Mount>,
    #[prost(message, optional, tag = "11")]
    pub linux: Option<Linux>,
    #[prost(message, repeated, tag = "20")]
    pub cdi_devices: Vec<CdiDevice>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Mount {
    #[prost(string, tag = "3")]
    pub source: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CdiDevice {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Linux {
    #[prost(message, repeated, tag = "1")]
    pub namespaces: Vec<Namespace>,
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<Device>,
    #[prost(message, optional, tag = "3")]
    pub resources: Option<Resources>,
    #[prost(message, optional, tag = "7")]
    pub seccomp_profile: Option<SecurityProfile>,
    /// A [`Seccomp`].
    #[prost(bytes = "vec", optional, tag = "8")]
    pub seccomp_policy: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct Namespace {
    #[prost(string, tag = "1")]
    #[serde(rename = "type")]
    pub kind: String,
    #[prost(string, tag = "2")]
    pub path: String,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct Device {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(string, tag = "2")]
    #[serde(rename = "type")]
    pub kind: String,
    #[prost(int64, tag = "3")]
    pub major: i64,
    #[prost(int64, tag = "4")]
    pub minor: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Resources {
    #[prost(message, repeated, tag = "7")]
    pub devices: Vec<DeviceRule>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct DeviceRule {
    #[prost(bool, tag = "1")]
    pub allow: bool,
    #[prost(string, tag = "2")]
    #[serde(rename = "type")]
    pub kind: String,
    #[prost(message, optional, tag = "3")]
    pub major: Option<Number>,
    #[prost(message, optional, tag = "4")]
    pub minor: Option<Number>,
    #[prost(string, tag = "5")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub access: String,
}

/// An optional number.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(transparent)]
pub struct Number {
    #[prost(int64, tag = "1")]
    pub value: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct SecurityProfile {
    #[prost(int32, tag = "1")]
    pub kind: i32,
}

/// [`SecurityProfile::kind`] of a container without a profile.
pub const UNCONFINED: i32 = 1;

/// As in an OCI specification, where NRI writes an empty string for an absent value.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Seccomp {
    #[prost(string, tag = "1")]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub default_action: String,
    #[prost(message, optional, tag = "2")]
    #[serde(rename = "defaultErrnoRet", default, skip_serializing_if = "Option::is_none")]
    pub default_errno: Option<Errno>,
    #[prost(string, repeated, tag = "3")]
    #[serde(default)]
    pub architectures: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    #[serde(default)]
    pub flags: Vec<String>,
    #[prost(string, tag = "5")]
    #[serde(default)]
    pub listener_path: String,
    #[prost(string, tag = "6")]
    #[serde(default)]
    pub listener_metadata: String,
    #[prost(message, repeated, tag = "7")]
    pub syscalls: Vec<Syscall>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
pub struct Syscall {
    #[prost(string, repeated, tag = "1")]
    #[serde(default)]
    pub names: Vec<String>,
    #[prost(string, tag = "2")]
    #[serde(default)]
    pub action: String,
    #[prost(message, optional, tag = "3")]
    #[serde(rename = "errnoRet", default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<Errno>,
    #[prost(message, repeated, tag = "4")]
    #[serde(rename = "args", default)]
    pub arguments: Vec<Argument>,
}

/// An optional error number.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Errno {
    #[prost(uint32, tag = "1")]
    pub value: u32,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Argument {
    #[prost(uint32, tag = "1")]
    pub index: u32,
    #[prost(uint64, tag = "2")]
    pub value: u64,
    #[prost(uint64, tag = "3")]
    #[serde(default)]
    pub value_two: u64,
    #[prost(string, tag = "4")]
    #[serde(default)]
    pub op: String,
}

/// The changes to a container; none by default.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Created {
    #[prost(message, optional, tag = "1")]
    pub adjust: Option<Adjustment>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Adjustment {
    #[prost(message, optional, tag = "6")]
    pub linux: Option<LinuxAdjustment>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct LinuxAdjustment {
    #[prost(message, optional, tag = "6")]
    pub seccomp_policy: Option<Seccomp>,
}
