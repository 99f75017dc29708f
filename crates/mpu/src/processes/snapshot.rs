//! A snapshot of the GPUs of a host and their processes.

use super::facts::Facts;
use mpu_core::HostPid;
use mpu_rm::EngineSample;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// All GPUs and their processes at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snapshot {
    /// When, in seconds since 1970.
    pub at: u64,
    pub gpus: Vec<Gpu>,
    /// The processes, by GPU and then number: one row for each process, GPU and MIG instance.
    pub processes: Vec<GpuProcess>,
}

/// A GPU. Facts that NVML does not report are none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Gpu {
    /// NVML's number for it.
    pub index: u32,
    /// `GPU-…`
    pub uuid: Option<String>,
    /// The product's name.
    pub name: Option<String>,
    /// `00000000:65:00.0`
    pub bus_id: Option<String>,
    /// Its memory.
    pub memory: Option<Memory>,
    /// The share of time in which it worked, in percent.
    pub utilisation: Option<u32>,
    /// The share of time in which its memory was read or written, in percent.
    pub memory_utilisation: Option<u32>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Milliwatts drawn.
    pub power: Option<u32>,
    /// Milliwatts allowed.
    pub power_limit: Option<u32>,
    /// Its MIG devices; empty where MIG is off.
    pub mig: Vec<MigDevice>,
    /// Why its processes, or some of them, are missing; usually null.
    pub unreadable: Option<String>,
    /// Whether the list is as long as the driver's longest: there may be more.
    #[serde(skip)]
    pub full: bool,
    /// The driver's samples of its graphics and compute engine, by time; none unless read, or where the driver has none.
    #[serde(skip)]
    pub samples: Option<Vec<EngineSample>>,
}

/// Video memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Memory {
    /// Bytes in all.
    pub total: u64,
    /// Bytes in use; from driver 510 on without the driver's own memory.
    pub used: u64,
}

/// A part of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MigDevice {
    /// Which part.
    #[serde(flatten)]
    pub instance: Mig,
    /// `MIG-…`
    pub uuid: Option<String>,
    /// Its memory.
    pub memory: Option<Memory>,
}

/// The numbers of a MIG device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
pub struct Mig {
    /// The GPU instance.
    pub gpu_instance: u32,
    /// The compute instance in it.
    pub compute_instance: Option<u32>,
}

/// A process on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct GpuProcess {
    /// The process's number on the host.
    pub pid: HostPid,
    /// The GPU's index.
    pub gpu: u32,
    /// The MIG instance on it.
    pub mig: Option<Mig>,
    /// What it does there.
    pub kind: Kind,
    /// Bytes of video memory.
    pub memory: Option<u64>,
    /// The most bytes of video memory that all processes of its cgroup may use on this GPU; null without a limit.
    pub memory_limit: Option<u64>,
    /// Its use in the last second, in percent; null if the GPU does not report it, as for all but the busiest of several.
    pub utilisation: Option<Utilisation>,
    #[serde(flatten)]
    pub facts: Facts,
}

/// What a process does on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It computes.
    Compute,
    /// It draws.
    Graphics,
    /// Both.
    ComputeAndGraphics,
    /// It computes through the Multi-Process Service.
    Mps,
}

impl Kind {
    /// As nvidia-smi writes it.
    pub fn letters(self) -> &'static str {
        match self {
            Kind::Compute => "C",
            Kind::Graphics => "G",
            Kind::ComputeAndGraphics => "C+G",
            Kind::Mps => "M+C",
        }
    }

    /// Both kinds, for a process in two lists.
    pub(super) fn and(self, other: Kind) -> Kind {
        match (self, other) {
            (Kind::Mps, _) | (_, Kind::Mps) => Kind::Mps,
            (one, two) if one == two => one,
            _ => Kind::ComputeAndGraphics,
        }
    }
}

/// Shares of a GPU's engines, in percent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Utilisation {
    /// Compute and graphics.
    pub gpu: u32,
    /// Reading and writing memory.
    pub memory: u32,
    /// The encoder.
    pub encoder: u32,
    /// The decoder.
    pub decoder: u32,
}
