//! Lists every process on every GPU: its PIDs on the host and in its container, its owner, and its use of the GPU.
//!
//! Joins NVML's rows ([`reading`]) with facts from `/proc` and [`mpu_host::containers`] ([`facts`]). NVML returns PIDs
//! of its caller's PID namespace, so this works only in the initial one and fails elsewhere.

mod error;
mod facts;
mod limits;
pub mod reading;
mod snapshot;
mod sys;

pub use error::ProcessError;
pub(crate) use facts::user_of;
pub use facts::{Cache, Depth, Facts};
pub use mpu_rm::EngineSample;
pub use snapshot::{Gpu, GpuProcess, Kind, Memory, Mig, MigDevice, Snapshot, Utilisation};

use limits::Limits;
use mpu_core::HostPid;
use mpu_host::host::Host;
use mpu_host::time;
use reading::{Nvml, ProcessRow, Reading};
use std::collections::BTreeMap;

/// Reads repeatedly at little cost: NVML stays loaded, and constant facts of a process are read once.
pub struct Monitor {
    nvml: Nvml,
    cache: Cache,
}

impl Monitor {
    /// Loads NVML. Fails without NVML or the driver, or if NVML's numbers would not be the host's.
    pub fn open(host: &Host, depth: Depth) -> Result<Monitor, ProcessError> {
        if !host.in_init_pid_namespace() {
            return Err(ProcessError::NotOnHost);
        }
        Ok(Monitor { nvml: Nvml::load(host)?, cache: Cache::new(depth) })
    }

    /// Reads all GPUs. Utilisation covers the time since the last reading, or at first the last second.
    pub fn snapshot(&mut self, host: &Host) -> Result<Snapshot, ProcessError> {
        let mut reading = self.nvml.read()?;
        if !self.cache.reads_everything() {
            reading.add_samples(host);
        }
        Ok(join(host, reading, time::now(), &mut self.cache))
    }
}

pub fn snapshot(host: &Host, depth: Depth) -> Result<Snapshot, ProcessError> {
    Monitor::open(host, depth)?.snapshot(host)
}

/// One row for each process, GPU and MIG instance, with its facts.
fn join(host: &Host, reading: Reading, at: u64, cache: &mut Cache) -> Snapshot {
    let mut processes = Vec::new();
    let mut limits = cache.reads_everything().then(|| Limits::of(host));
    let mut gpus = Vec::new();
    let context = cache.begin(host, reading.gpus.iter().flat_map(|gpu| gpu.rows.iter().map(|row| row.pid)).collect());
    for gpu in reading.gpus {
        let samples = gpu.samples;
        for ((pid, mig), (kind, memory)) in merged(&gpu.rows) {
            let utilisation = samples.as_ref().and_then(|samples| utilisation_of(pid, samples));
            let facts = cache.of(&context, pid);
            let bus = gpu.gpu.bus_id.as_deref();
            // The PID of an ended process may belong to another process, in another cgroup.
            let limit = limits.as_mut().zip(facts.start_ticks);
            let limit = limit.and_then(|(limits, ticks)| limits.of_process(&context, pid, ticks, bus));
            processes.push(GpuProcess {
                pid,
                gpu: gpu.gpu.index,
                mig,
                kind,
                memory,
                memory_limit: limit,
                utilisation,
                facts,
            });
        }
        gpus.push(gpu.gpu);
    }
    Snapshot { at, gpus, processes }
}

/// The utilisation of a process. A GPU assigns each sample to the busiest process. On an H200 with two computing
/// processes, one has no sample, neither here nor in nvidia-smi's pmon. So a missing sample means zero only if all
/// samples are zero.
fn utilisation_of(pid: HostPid, samples: &BTreeMap<HostPid, Utilisation>) -> Option<Utilisation> {
    let idle = || samples.values().all(|used| *used == Utilisation::default()).then(Utilisation::default);
    samples.get(&pid).copied().or_else(idle)
}

/// Merges rows. NVML lists a process in several lists, and some drivers list it twice in one. Each row has the memory
/// of the whole process.
fn merged(rows: &[ProcessRow]) -> BTreeMap<(HostPid, Option<Mig>), (Kind, Option<u64>)> {
    let mut merged: BTreeMap<_, (Kind, Option<u64>)> = BTreeMap::new();
    for row in rows {
        let entry = merged.entry((row.pid, row.mig)).or_insert((row.kind, row.memory));
        *entry = (entry.0.and(row.kind), entry.1.max(row.memory));
    }
    merged
}

#[cfg(test)]
pub(crate) mod tests;
