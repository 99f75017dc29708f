//! Every process on every GPU, as the host sees it: its number here and in its container, whose it is, and what it uses.
//!
//! Owns the joining of what NVML says of a process ([`reading`]) with what `/proc` and [`crate::containers`] say ([`facts`]). Shows
//! nothing and filters nothing: that is the commands'. NVML numbers processes by its caller's PID namespace, so this works in the
//! initial one only, and refuses elsewhere.

mod error;
mod facts;
pub mod reading;
mod sys;

pub use error::ProcessError;
pub use facts::Facts;

use crate::containers::Container;
use crate::host::Host;
use facts::Cache;
use mpu_core::{HostPid, ViewPid};
use reading::{Nvml, Reading, Row};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// All GPUs and their processes at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snapshot {
    /// When, in seconds since 1970.
    pub at: u64,
    /// The GPUs, by index.
    pub gpus: Vec<Gpu>,
    /// The processes, by GPU and then number: one row for each process, GPU and MIG instance.
    pub processes: Vec<GpuProcess>,
}

/// A GPU. What it does not tell is none.
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
    /// Why its processes are not known, if they are not.
    pub unreadable: Option<String>,
}

/// Video memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// In use, without what the driver keeps for itself.
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
    /// Its number on the host.
    #[serde(serialize_with = "host_pid")]
    #[schemars(with = "u32")]
    pub pid: HostPid,
    /// The GPU's index.
    pub gpu: u32,
    /// The MIG instance on it.
    pub mig: Option<Mig>,
    /// What it does there.
    pub kind: Kind,
    /// Bytes of video memory.
    pub memory: Option<u64>,
    /// What it used of late; none where the GPU does not say, as of all but the busiest of several.
    pub utilisation: Option<Utilisation>,
    /// Its number in the innermost PID namespace; none for a process of the host's own.
    #[serde(serialize_with = "view_pid")]
    #[schemars(with = "Option<u32>")]
    pub container_pid: Option<ViewPid>,
    /// Its container.
    pub container: Option<Container>,
    /// Its user's number; none if it has ended meanwhile.
    pub uid: Option<u32>,
    /// Its user's name on the host.
    pub user: Option<String>,
    /// The program's name, as the kernel has it.
    pub name: Option<String>,
    /// The whole command line; of one that has ended, who holds its memory.
    pub command: Option<String>,
    /// When it started, in seconds since 1970.
    pub started: Option<u64>,
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

    fn and(self, other: Kind) -> Kind {
        match (self, other) {
            (Kind::Mps, _) | (_, Kind::Mps) => Kind::Mps,
            (one, two) if one == two => one,
            _ => Kind::ComputeAndGraphics,
        }
    }
}

/// Shares of a GPU's engines, in percent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
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

/// Looks again and again at little cost: NVML stays loaded, and what does not change about a process is read once.
pub struct Monitor {
    nvml: Nvml,
    cache: Cache,
}

impl Monitor {
    /// Loads NVML. Fails where its numbers would not be the host's, or where it or the driver is not there.
    pub fn open(host: &Host) -> Result<Monitor, ProcessError> {
        if !host.in_init_pid_namespace() {
            return Err(ProcessError::NotOnHost);
        }
        Ok(Monitor { nvml: Nvml::load(host)?, cache: Cache::default() })
    }

    /// Looks. Utilisation is that since the last look, or of the last second at the first.
    pub fn snapshot(&mut self, host: &Host) -> Result<Snapshot, ProcessError> {
        let reading = self.nvml.read()?;
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Ok(join(host, reading, at, &mut self.cache))
    }
}

/// Looks once.
pub fn snapshot(host: &Host) -> Result<Snapshot, ProcessError> {
    Monitor::open(host)?.snapshot(host)
}

/// One row for each process, GPU and MIG instance, with its facts.
fn join(host: &Host, reading: Reading, at: u64, cache: &mut Cache) -> Snapshot {
    let mut processes = Vec::new();
    let mut gpus = Vec::new();
    let listed = reading.gpus.iter().flat_map(|gpu| gpu.rows.iter().map(|row| row.pid)).collect();
    for gpu in reading.gpus {
        let samples = gpu.samples;
        for ((pid, mig), (kind, memory)) in merged(&gpu.rows) {
            let utilisation = samples.as_ref().and_then(|samples| share_of(pid, samples));
            let facts = cache.of(host, pid, &listed);
            processes.push(GpuProcess {
                pid,
                gpu: gpu.gpu.index,
                mig,
                kind,
                memory,
                utilisation,
                container_pid: facts.container_pid,
                container: facts.container,
                uid: facts.uid,
                user: facts.user,
                name: facts.name,
                command: facts.command,
                started: facts.started,
            });
        }
        gpus.push(gpu.gpu);
    }
    cache.forget_all_but(&processes.iter().map(|p| p.pid).collect());
    Snapshot { at, gpus, processes }
}

/// What a process used. A GPU lays each sample to the one process that used most (seen on an H200: of two that compute, one is in no sample,
/// neither here nor in nvidia-smi's pmon). So a process without a sample used nothing only where nobody used anything.
fn share_of(pid: HostPid, samples: &BTreeMap<HostPid, Utilisation>) -> Option<Utilisation> {
    let idle = || samples.values().all(|used| *used == Utilisation::default()).then(Utilisation::default);
    samples.get(&pid).copied().or_else(idle)
}

/// NVML lists a process in several lists, and some drivers list it twice in one. Each row has the whole process's memory.
fn merged(rows: &[Row]) -> BTreeMap<(HostPid, Option<Mig>), (Kind, Option<u64>)> {
    let mut merged: BTreeMap<_, (Kind, Option<u64>)> = BTreeMap::new();
    for row in rows {
        let entry = merged.entry((row.pid, row.mig)).or_insert((row.kind, row.memory));
        *entry = (entry.0.and(row.kind), entry.1.max(row.memory));
    }
    merged
}

fn host_pid<S: Serializer>(pid: &HostPid, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(pid.get())
}

fn view_pid<S: Serializer>(pid: &Option<ViewPid>, serializer: S) -> Result<S::Ok, S::Error> {
    pid.map(ViewPid::get).serialize(serializer)
}

#[cfg(test)]
pub(crate) mod tests;
