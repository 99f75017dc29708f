//! The use of GPUs, summed over processes with the same labels. A row has no user, no command, and a PID only on
//! request.

use super::families::USER_LABELS;
use super::text::{self, Labels};
use crate::processes::{EngineSample, Utilisation};
use mpu_core::{HostPid, ViewPid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Labels on request. Those of a process make a row per process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Label {
    /// The process's PID on the host
    Pid,
    /// The process's PID in its container
    ContainerPid,
    /// The uid of the container's Kubernetes pod
    PodUid,
    /// The Slurm job: its number, or its SLUID on nodes of Slurm 26.05 and later
    SlurmJob,
    /// The step of the Slurm job
    SlurmStep,
}

impl Label {
    /// Whether it is a label of a process, not of its owner.
    fn is_of_process(self) -> bool {
        matches!(self, Label::Pid | Label::ContainerPid)
    }

    /// As the page writes it.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    pub index: u32,
    pub uuid: String,
    pub name: String,
    /// Its memory in bytes.
    pub memory: Option<u64>,
    /// The memory in use by all processes.
    pub used: Option<u64>,
    /// Whether all of its processes could be read.
    pub readable: bool,
    /// Whether the list is as long as the driver's longest: processes may be missing.
    pub full: bool,
    /// The recent samples of its graphics and compute engine, by time; none if the driver does not report them.
    pub samples: Option<Vec<EngineSample>>,
}

/// A Slurm job, as clean labels ([`text::clean`]). They are empty unless requested.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Job {
    id: String,
    step: String,
}

impl Job {
    pub fn new(id: &str, step: Option<&str>) -> Job {
        Job { id: text::clean(id), step: text::clean(step.unwrap_or_default()) }
    }

    pub fn is_none(&self) -> bool {
        *self == Job::default()
    }
}

/// The container of a process, as labels. Values are clean ([`text::clean`]), so that containers that differ here also differ
/// on the page: Prometheus refuses a page with a duplicate row.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Container {
    id: String,
    name: String,
    pod: String,
    /// Empty unless requested. Otherwise two rows could differ only by a hidden value.
    pod_uid: String,
    namespace: String,
    runtime: String,
}

/// The known names of a container. An unknown name is empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct ContainerNames<'a> {
    pub id: &'a str,
    pub name: &'a str,
    /// Its pod's name, or else the pod's uid.
    pub pod: &'a str,
    pub pod_uid: &'a str,
    pub namespace: &'a str,
    /// The container runtime.
    pub runtime: &'a str,
}

impl Container {
    /// The container; none without an id.
    pub fn new(known: ContainerNames<'_>) -> Option<Container> {
        let [id, name, pod, pod_uid, namespace, runtime] =
            [known.id, known.name, known.pod, known.pod_uid, known.namespace, known.runtime].map(text::clean);
        (!id.is_empty()).then_some(Container { id, name, pod, pod_uid, namespace, runtime })
    }

    /// The owner: the namespace, and the runtime with its user.
    pub fn owner(&self) -> (String, String) {
        (self.namespace.clone(), self.runtime.clone())
    }
}

/// One process on one GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Use {
    pub gpu: u32,
    pub uuid: String,
    /// The MIG instance, empty when there is none.
    pub mig: String,
    /// Its container; none for a process of the host.
    pub container: Option<Container>,
    pub job: Job,
    /// Its user; no label.
    pub uid: Option<u32>,
    /// Its PID on the host.
    pub pid: HostPid,
    /// Its PID in its container.
    pub container_pid: Option<ViewPid>,
    /// Its start, in ticks since the host's boot: distinguishes it from a later process with its PID, also if the clock was set
    /// meanwhile. None for a process that the driver lists and `/proc` does not have.
    pub start_ticks: Option<u64>,
    /// Memory in bytes; none if the driver does not report it.
    pub memory: Option<u64>,
    /// None if the driver does not report it.
    pub utilisation: Option<Utilisation>,
}

/// All GPUs and their processes at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    pub gpus: Vec<Gpu>,
    pub uses: Vec<Use>,
}

/// The use of a GPU by one or more processes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sum {
    pub processes: u64,
    pub memory: Option<u64>,
    pub utilisation: Option<Utilisation>,
}

impl Usage {
    /// Clears values of labels that are not requested.
    pub fn clear_unrequested(&mut self, extra_labels: &[Label]) {
        let is_requested = |label| extra_labels.contains(&label);
        for row in &mut self.uses {
            if let Some(container) = row.container.as_mut().filter(|_| !is_requested(Label::PodUid)) {
                container.pod_uid.clear();
            }
            if !is_requested(Label::SlurmJob) {
                row.job.id.clear();
            }
            if !is_requested(Label::SlurmStep) {
                row.job.step.clear();
            }
        }
    }

    /// The memory of all processes, by the GPU's index and UUID.
    pub fn memory_of_gpus(&self) -> BTreeMap<(u32, &str), u64> {
        let mut memory_of_gpus = BTreeMap::new();
        for row in &self.uses {
            let sum: &mut u64 = memory_of_gpus.entry((row.gpu, row.uuid.as_str())).or_default();
            *sum = sum.saturating_add(row.memory.unwrap_or_default());
        }
        memory_of_gpus
    }

    /// Sums over the processes with the same labels: at most a row per process and GPU; without `labels`, at most one per
    /// container and GPU or MIG instance, and one for the host's processes. Sorted by the GPU's index.
    pub fn sums(&self, extra_labels: &[Label]) -> BTreeMap<(u32, Labels), Sum> {
        let mut sums: BTreeMap<(u32, Labels), Sum> = BTreeMap::new();
        for row in &self.uses {
            let value = |label: &Label| match label {
                Label::Pid => row.pid.get().to_string(),
                Label::ContainerPid => row.container_pid.map(|pid| pid.get().to_string()).unwrap_or_default(),
                _ => owner_label(*label, row.container.as_ref(), &row.job),
            };
            let extra_labels = extra_labels.iter().map(|label| (label.name(), value(label)));
            let labels = labels((row.gpu, &row.uuid, &row.mig), row.container.as_ref(), extra_labels);
            let sum = sums.entry((row.gpu, labels)).or_default();
            sum.processes += 1;
            sum.memory = add(sum.memory, row.memory, u64::saturating_add);
            sum.utilisation = add(sum.utilisation, row.utilisation, plus);
        }
        sums
    }
}

impl Use {
    /// Whether the engines did no work; none if the driver does not report it.
    pub fn is_idle(&self) -> Option<bool> {
        self.utilisation.map(|used| used.gpu == 0 && used.encoder == 0 && used.decoder == 0)
    }
}

fn owner_label(label: Label, container: Option<&Container>, job: &Job) -> String {
    match label {
        Label::PodUid => container.map(|container| container.pod_uid.clone()).unwrap_or_default(),
        Label::SlurmJob => job.id.clone(),
        Label::SlurmStep => job.step.clone(),
        Label::Pid | Label::ContainerPid => String::new(),
    }
}

/// The labels of a container or job on a GPU, or of the host's processes there. Of the extra labels, those of a process are left out.
pub fn owner_labels(
    place: (u32, &str, &str),
    container: Option<&Container>,
    job: &Job,
    extra_labels: &[Label],
) -> Labels {
    let of_owner = extra_labels.iter().filter(|label| !label.is_of_process());
    labels(place, container, of_owner.map(|label| (label.name(), owner_label(*label, container, job))))
}

/// A row's labels: the usual ones, then the extra ones.
fn labels(
    (gpu, uuid, mig): (u32, &str, &str),
    container: Option<&Container>,
    extra_labels: impl Iterator<Item = (&'static str, String)>,
) -> Labels {
    let gpu = gpu.to_string();
    let none = Container::default();
    let Container { id, name, pod, namespace, runtime, .. } = container.unwrap_or(&none);
    let usual: [&str; USER_LABELS.len()] = [&gpu, uuid, mig, id, name, pod, namespace, runtime];
    let extra_labels: Vec<(&'static str, String)> = extra_labels.collect();
    let extra_labels = extra_labels.iter().map(|(label, value)| (*label, value.as_str()));
    Labels::new(USER_LABELS.iter().copied().zip(usual).chain(extra_labels))
}

/// Adds both. A missing value counts as zero, unless both are missing.
fn add<T>(a: Option<T>, b: Option<T>, plus: impl FnOnce(T, T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(plus(a, b)),
        (a, b) => a.or(b),
    }
}

fn plus(a: Utilisation, b: Utilisation) -> Utilisation {
    Utilisation {
        gpu: a.gpu.saturating_add(b.gpu),
        memory: a.memory.saturating_add(b.memory),
        encoder: a.encoder.saturating_add(b.encoder),
        decoder: a.decoder.saturating_add(b.decoder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(gpu: u32, container: &str, pid: u32, memory: Option<u64>) -> Use {
        Use {
            gpu,
            uuid: format!("GPU-{gpu}"),
            mig: String::new(),
            container: Container::new(ContainerNames { id: container, ..ContainerNames::default() }),
            pid: HostPid::new(pid).expect("a PID"),
            job: Job::default(),
            uid: None,
            container_pid: ViewPid::new(pid % 100),
            start_ticks: None,
            memory,
            utilisation: Some(Utilisation { gpu: 10, ..Utilisation::default() }),
        }
    }

    #[test]
    fn processes_of_container_are_one_row_per_gpu() {
        let uses =
            vec![row(0, "a", 101, Some(5)), row(0, "a", 102, Some(7)), row(1, "a", 101, None), row(0, "", 9, None)];
        let usage = Usage { gpus: vec![], uses };
        let sums = usage.sums(&[]);
        let sums: Vec<_> = sums.values().map(|s| (s.processes, s.memory, s.utilisation.map(|used| used.gpu))).collect();
        assert_eq!(sums, [(1, None, Some(10)), (2, Some(12), Some(20)), (1, None, Some(10))]);
        assert_eq!(usage.sums(&[Label::Pid]).len(), 4);
    }

    #[test]
    fn pid_label_needs_option() {
        let usage = Usage { gpus: vec![], uses: vec![row(0, "a", 4711, None)] };
        let labels = |extra_labels: &[Label]| {
            let sums = usage.sums(extra_labels);
            let ((_, labels), _) = sums.iter().next().expect("a row");
            format!("{labels:?}")
        };
        assert!(!labels(&[]).contains("4711"));
        let extra_labels = labels(&[Label::Pid, Label::ContainerPid]);
        assert!(extra_labels.contains(r#"pid=\"4711\",container_pid=\"11\"}"#), "{extra_labels}");
    }

    #[test]
    fn equally_truncated_names_share_one_row() {
        let long = "x".repeat(text::LONGEST_VALUE);
        let uses = vec![row(0, &format!("{long}a"), 1, Some(1)), row(0, &format!("{long}b"), 2, Some(1))];
        assert_eq!(Usage { gpus: vec![], uses }.sums(&[]).len(), 1);
    }
}
