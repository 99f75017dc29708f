//! Reads this host's facts for the exporter: engines, driver and GPU processes.

use super::collect::{ReadError, Sources};
use super::page::HostFacts;
use super::usage::{Container, ContainerNames, Gpu, Job, Usage, Use};
use crate::processes::{self, GpuProcess, Snapshot};
use mpu_engine::observe;
use mpu_host::driver::Driver;
use mpu_host::explain::{Explain, chain};
use mpu_host::host::Host;
use std::error::Error;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The facts of this host.
pub fn sources(host: &Host) -> Sources {
    let (here, gpus) = (host.clone(), host.clone());
    Sources {
        host: Box::new(move || {
            let engines = observe::all(&here).map_err(|error| read_error(&*error))?;
            Ok(HostFacts { engines, driver: Driver::loaded(&here) })
        }),
        usage: Box::new(move || usage(&gpus)),
        clock: Box::new(Instant::now),
    }
}

/// Reads the usage in a child process. NVML leaves /dev/nvidiactl and each GPU's node open, even after `nvmlShutdown`
/// and after the library is unloaded, and opens them again each time (measured with 550). An open node blocks unloading
/// the driver. The child also contains NVML's memory use and crashes.
fn usage(host: &Host) -> Result<Usage, ReadError> {
    // As root, NVML loads a missing driver.
    if Driver::loaded(host).is_none() {
        return Err(ReadError::Failed("no NVIDIA driver is loaded".to_string()));
    }
    if !host.is_this() {
        return read(host).map_err(ReadError::Failed);
    }
    let failed = |what: &str, error: &dyn Error| ReadError::Failed(format!("the child that asks NVML {what}: {error}"));
    // The running program, also after an upgrade replaced its file.
    let mut child = Command::new("/proc/self/exe")
        .arg(CHILD)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed("cannot be started", &error))?;
    let mut answer = Vec::new();
    let read = child.stdout.take().map(|out| out.take(ANSWER_LIMIT).read_to_end(&mut answer)).transpose();
    let ended = child.wait().map_err(|error| failed("is lost", &error))?;
    read.map_err(|error| failed("cannot be read", &error))?;
    let answer: Result<Usage, String> = serde_json::from_slice(&answer)
        .map_err(|error| failed(&format!("gave no valid answer and ended with {ended}"), &error))?;
    answer.map_err(ReadError::Failed)
}

/// The hidden command of the child.
pub const CHILD: &str = "metrics-child";

/// The longest answer of the child in bytes: 16 GPUs full of processes need a quarter of it.
const ANSWER_LIMIT: u64 = 32 << 20;

/// How long the child lives at most, if its exporter has died.
const CHILD_LIFETIME: Duration = Duration::from_secs(30);

/// The child: asks NVML and returns the answer or the error as JSON.
pub fn run_child(host: &Host) -> Vec<u8> {
    // This does not help if the driver hangs in the kernel.
    std::thread::spawn(|| {
        std::thread::sleep(CHILD_LIFETIME);
        std::process::exit(1);
    });
    serde_json::to_vec(&read(host)).unwrap_or_default()
}

fn read(host: &Host) -> Result<Usage, String> {
    processes::snapshot(host, processes::Depth::Owner)
        .map(|snapshot| rows(&snapshot))
        .map_err(|error| error_text(&error))
}

fn read_error(error: &dyn Explain) -> ReadError {
    ReadError::Failed(error_text(error))
}

fn error_text(error: &dyn Explain) -> String {
    format!("{}; fix: {}", chain(error), error.fix())
}

/// The rows of a snapshot, without users and commands.
pub fn rows(snapshot: &Snapshot) -> Usage {
    let gpu = |gpu: &processes::Gpu| Gpu {
        index: gpu.index,
        uuid: gpu.uuid.clone().unwrap_or_default(),
        name: gpu.name.clone().unwrap_or_default(),
        memory: gpu.memory.map(|memory| memory.total),
        used: gpu.memory.map(|memory| memory.used),
        readable: gpu.unreadable.is_none(),
        full: gpu.full,
        samples: gpu.samples.clone(),
    };
    let gpus: Vec<Gpu> = snapshot.gpus.iter().map(gpu).collect();
    // The page has no mark for an incomplete list.
    let is_readable = |process: &&GpuProcess| gpus.iter().any(|gpu| gpu.index == process.gpu && gpu.readable);
    let uses = snapshot.processes.iter().filter(is_readable).map(|process| row(process, &gpus)).collect();
    Usage { gpus, uses }
}

fn row(process: &GpuProcess, gpus: &[Gpu]) -> Use {
    let facts = &process.facts;
    let uuid = gpus.iter().find(|gpu| gpu.index == process.gpu).map(|gpu| gpu.uuid.clone()).unwrap_or_default();
    let mig = process.mig.map(|mig| match mig.compute_instance {
        Some(compute) => format!("{}/{compute}", mig.gpu_instance),
        None => mig.gpu_instance.to_string(),
    });
    // A container may create containers. With the inner names it could hide, or create rows without limit.
    let container = facts.container.as_ref().map(mpu_host::containers::Container::outermost).and_then(|container| {
        let pod = container.pod.as_ref();
        // A user can give a container the name of another user's container.
        let name = container.name.as_deref().filter(|_| container.user.is_none());
        Container::new(ContainerNames {
            id: &container.whole_id(),
            name: name.unwrap_or_default(),
            pod: pod.and_then(|pod| pod.name.as_deref().or(pod.uid.as_deref())).unwrap_or_default(),
            pod_uid: pod.and_then(|pod| pod.uid.as_deref()).unwrap_or_default(),
            namespace: pod.and_then(|pod| pod.namespace.as_deref()).unwrap_or_default(),
            runtime: &container.runtime_name(),
        })
    });
    Use {
        gpu: process.gpu,
        uuid,
        mig: mig.unwrap_or_default(),
        container,
        job: facts.job.as_ref().map(|job| Job::new(&job.id, job.step.as_deref())).unwrap_or_default(),
        uid: facts.uid,
        pid: process.pid,
        container_pid: facts.container_pid,
        start_ticks: facts.start_ticks,
        memory: process.memory,
        utilisation: process.utilisation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::containers;
    use mpu_host::host::fake::FakeHost;

    #[test]
    fn usage_without_driver_skips_nvml() {
        let fake = FakeHost::in_order();
        fake.remove("/sys/module/nvidia");
        assert_eq!(usage(&fake.host()), Err(ReadError::Failed("no NVIDIA driver is loaded".to_string())));
    }

    fn process(container: containers::Container) -> GpuProcess {
        GpuProcess {
            pid: mpu_core::HostPid::new(4711).expect("a PID"),
            gpu: 0,
            mig: None,
            kind: processes::Kind::Compute,
            memory: Some(5),
            memory_limit: None,
            utilisation: None,
            facts: processes::Facts { container: Some(container), start_ticks: Some(1), ..processes::Facts::default() },
        }
    }

    fn container(id: &str, pod: &str) -> containers::Container {
        containers::Container {
            id: id.to_string(),
            runtime: containers::Runtime::Docker,
            user: None,
            name: Some("name".to_string()),
            pod: Some(containers::Pod { uid: None, name: Some(pod.to_string()), namespace: Some("team".to_string()) }),
            outer: None,
        }
    }

    #[test]
    fn nested_container_is_billed_to_outer_one() {
        let inner = containers::Container { outer: Some(Box::new(container("a", "outer"))), ..container("b", "inner") };
        let names =
            ContainerNames { id: "a", name: "name", pod: "outer", pod_uid: "", namespace: "team", runtime: "docker" };
        assert_eq!(row(&process(inner), &[]).container, Container::new(names));
    }

    #[test]
    fn rootless_container_has_no_name() {
        let users = containers::Container { user: Some(1000), pod: None, ..container("a", "") };
        let names = ContainerNames { id: "a@1000", runtime: "docker@1000", ..ContainerNames::default() };
        assert_eq!(row(&process(users), &[]).container, Container::new(names));
    }

    #[test]
    fn partial_process_list_gives_no_rows() {
        let gpu = processes::Gpu { unreadable: Some("half of it".to_string()), ..processes::Gpu::default() };
        let snapshot = Snapshot { at: 1, gpus: vec![gpu], processes: vec![process(container("a", "b"))] };
        let usage = rows(&snapshot);
        assert!(usage.uses.is_empty() && !usage.gpus[0].readable, "{usage:?}");
    }

    #[test]
    fn usage_json_from_child_round_trips() {
        let names = ContainerNames { id: "a", name: "b", pod: "c", pod_uid: "f", namespace: "d", runtime: "e" };
        let row = Use {
            gpu: 1,
            uuid: "GPU-1".to_string(),
            mig: "1/0".to_string(),
            container: Container::new(names),
            job: Job::new("77", Some("0")),
            uid: Some(1000),
            pid: mpu_core::HostPid::new(4711).expect("a PID"),
            container_pid: mpu_core::ViewPid::new(7),
            start_ticks: Some(9),
            memory: Some(5),
            utilisation: Some(processes::Utilisation { gpu: 1, ..processes::Utilisation::default() }),
        };
        let gpu = Gpu {
            index: 1,
            uuid: "GPU-1".to_string(),
            name: String::new(),
            memory: None,
            used: None,
            readable: true,
            full: false,
            samples: Some(vec![processes::EngineSample { time: 1, busy: 2, pid: Some(3) }]),
        };
        let usage: Result<Usage, String> = Ok(Usage { gpus: vec![gpu], uses: vec![row] });
        let answer = serde_json::to_vec(&usage).expect("JSON");
        assert_eq!(serde_json::from_slice::<Result<Usage, String>>(&answer).expect("the same"), usage);
        let no_pid = String::from_utf8(answer).expect("text").replace("4711", "0");
        assert!(serde_json::from_str::<Result<Usage, String>>(&no_pid).is_err(), "0 is no PID");
    }
}
