//! This host's facts, for the exporter.
//!
//! Owns the way from `processes`' snapshot to rows; what a container's name or a PID is, it takes from there.

use super::collect::{Sources, Trouble};
use super::page::HostFacts;
use super::usage::{Amounts, Container, Gpu, Known, Usage, Use};
use crate::driver::Driver;
use crate::engine::observe;
use crate::explain::Explain;
use crate::host::Host;
use crate::processes::{self, GpuProcess, Snapshot};

/// The facts of this host.
pub fn sources(host: &Host) -> Sources {
    let (here, gpus) = (host.clone(), host.clone());
    Sources {
        host: Box::new(move || {
            let engines = observe::all(&here).map_err(|error| trouble(&error))?;
            Ok(HostFacts { engines, driver: Driver::loaded(&here) })
        }),
        usage: Box::new(move || usage(&gpus)),
    }
}

fn usage(host: &Host) -> Result<Usage, Trouble> {
    // Asking NVML would load the driver again: root's NVML does that by itself.
    if Driver::loaded(host).is_none() {
        return Err(Trouble::Failed("no NVIDIA driver is loaded".to_string()));
    }
    // Opened and closed again: an open file of the driver would keep it from being unloaded.
    processes::snapshot(host).map(|snapshot| rows(&snapshot)).map_err(|error| trouble(&error))
}

fn trouble(error: &dyn Explain) -> Trouble {
    let causes = std::iter::successors(error.source(), |e| e.source());
    let causes: String = causes.map(|e| format!(": {e}")).collect();
    Trouble::Failed(format!("{error}{causes}; fix: {}", error.fix()))
}

/// The rows of a snapshot, without what is nobody's business: users and commands stay behind.
pub fn rows(snapshot: &Snapshot) -> Usage {
    let gpu = |gpu: &processes::Gpu| Gpu {
        index: gpu.index,
        uuid: gpu.uuid.clone().unwrap_or_default(),
        name: gpu.name.clone().unwrap_or_default(),
        memory: gpu.memory.map(|memory| memory.total),
        readable: gpu.unreadable.is_none(),
    };
    let gpus: Vec<Gpu> = snapshot.gpus.iter().map(gpu).collect();
    let uses = snapshot.processes.iter().map(|process| row(process, &gpus)).collect();
    Usage { gpus, uses }
}

fn row(process: &GpuProcess, gpus: &[Gpu]) -> Use {
    let uuid = gpus.iter().find(|gpu| gpu.index == process.gpu).map(|gpu| gpu.uuid.clone()).unwrap_or_default();
    let mig = process.mig.map(|mig| match mig.compute_instance {
        Some(compute) => format!("{}/{compute}", mig.gpu_instance),
        None => mig.gpu_instance.to_string(),
    });
    let container = process.container.as_ref().and_then(|container| {
        let pod = container.pod.as_ref();
        Container::new(Known {
            id: &container.id,
            name: container.name.as_deref().unwrap_or_default(),
            pod: pod.and_then(|pod| pod.name.as_deref().or(pod.uid.as_deref())).unwrap_or_default(),
            namespace: pod.and_then(|pod| pod.namespace.as_deref()).unwrap_or_default(),
            runtime: container.runtime.name(),
        })
    });
    Use {
        gpu: process.gpu,
        uuid,
        mig: mig.unwrap_or_default(),
        container,
        pid: process.pid,
        container_pid: process.container_pid,
        amounts: Amounts {
            memory: process.memory,
            sm: process.utilisation.map(|u| u.gpu),
            transfer: process.utilisation.map(|u| u.memory),
            encoder: process.utilisation.map(|u| u.encoder),
            decoder: process.utilisation.map(|u| u.decoder),
        },
    }
}
