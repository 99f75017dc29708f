//! Derives faults from the probe's answers. `compare` adds the driver's release and the engine.

use super::Evidence;
use mpu_host::driver::Numbering;
use schemars::JsonSchema;
use serde::Serialize;

/// A wrong answer that a container would get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema, strum::VariantArray)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The caller's own process is not in the list.
    ListMisses,
    /// The list has numbers of other processes.
    ListForeign,
    /// The list holds a thread's number.
    ListThread,
    /// The list names a process twice.
    ListRepeats,
    /// No details under the caller's own number.
    DetailsMiss,
    /// Details under a number that the caller's namespace does not have.
    DetailsForeign,
    /// Utilisation samples name processes that the caller may not see.
    SamplesForeign,
    /// Utilisation samples hold kernel addresses.
    SamplesPointer,
    /// The host's own list misses the process.
    HostMisses,
}

impl Fault {
    pub fn explanation(self) -> &'static str {
        match self {
            Fault::ListMisses => "its own process is missing from the process list",
            Fault::ListForeign => "the process list shows processes of the host or of other containers",
            Fault::ListThread => "the process list shows a thread's id in place of its process",
            Fault::ListRepeats => "the process list repeats a process",
            Fault::DetailsMiss => "memory use is not found under the process's own number",
            Fault::DetailsForeign => "memory use is reported for a PID outside the container",
            Fault::SamplesForeign => "utilisation samples show processes of the host or of other containers",
            Fault::SamplesPointer => "utilisation samples show kernel addresses",
            Fault::HostMisses => "the host's own process list misses the container's process",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The numbering of the list, if the process is in it.
    pub list: Option<Numbering>,
    /// The numbering that the details take, if they were measured and found.
    pub details: Option<Numbering>,
    pub faults: Vec<Fault>,
}

pub fn evaluate(evidence: &Evidence) -> Verdict {
    let seen = &evidence.child;
    let has = |pid| seen.list.contains(&pid);
    let ours = |pid: &u32| [seen.own_pid, seen.thread_id].contains(pid);
    let list = first_true([
        (has(seen.outer_pid) && !ours(&seen.outer_pid), Numbering::Host),
        (has(seen.thread_id), Numbering::Thread),
        (has(seen.own_pid), Numbering::Own),
    ]);
    let details = seen.details.and_then(|found| {
        first_true([
            (found.outer, Numbering::Host),
            (found.thread && !found.own, Numbering::Thread),
            (found.own, Numbering::Own),
        ])
    });
    let repeats = || seen.list.iter().enumerate().any(|(i, pid)| ours(pid) && seen.list[..i].contains(pid));
    let samples = seen.samples.as_ref();
    let checks = [
        (!has(seen.own_pid), Fault::ListMisses),
        (!seen.list.iter().all(ours), Fault::ListForeign),
        (has(seen.thread_id), Fault::ListThread),
        (repeats(), Fault::ListRepeats),
        (seen.details.is_some_and(|found| !found.own), Fault::DetailsMiss),
        (seen.details.is_some_and(|found| found.outer), Fault::DetailsForeign),
        (samples.is_some_and(|s| !s.pids.iter().all(ours)), Fault::SamplesForeign),
        (samples.is_some_and(|s| s.kernel_pointers > 0), Fault::SamplesPointer),
        (evidence.host_list.as_ref().is_some_and(|host| !host.contains(&seen.outer_pid)), Fault::HostMisses),
    ];
    let faults = checks.into_iter().filter(|(wrong, _)| *wrong).map(|(_, fault)| fault).collect();
    Verdict { list, details, faults }
}

fn first_true<const N: usize>(choices: [(bool, Numbering); N]) -> Option<Numbering> {
    choices.into_iter().find(|(holds, _)| *holds).map(|(_, numbering)| numbering)
}

#[cfg(test)]
pub(crate) mod fake {
    //! The answers of each era's driver to a child with PID 1 (5123 on the host) and a thread 2, beside host process
    //! 415.

    use super::super::Evidence;
    use super::super::child::{ChildObservation, Details};
    use mpu_rm::Samples;

    /// The evidence of an era's faults, by sources and measurements.
    pub fn era(era: u8) -> Evidence {
        let (list, [own, thread, outer], samples) = match era {
            0 => (vec![415, 5123], [false, false, true], (vec![415, 5123], 0)),
            1 => (vec![1, 1, 2], [false, false, true], (vec![415, 5123], 0)),
            2 => (vec![1, 1, 2], [false, true, false], (vec![415, 5123], 0)),
            3 => (vec![1, 1, 2], [false, true, false], (vec![1, 2, 415], 4)),
            _ => (vec![1, 1, 1], [true, false, false], (vec![1, 415], 4)),
        };
        evidence(list, Details { own, thread, outer }, Samples { pids: samples.0, kernel_pointers: samples.1 })
    }

    /// The evidence with MPU.
    pub fn right() -> Evidence {
        let found = Details { own: true, thread: false, outer: false };
        evidence(vec![1], found, Samples { pids: vec![1], kernel_pointers: 0 })
    }

    fn evidence(list: Vec<u32>, details: Details, samples: Samples) -> Evidence {
        let child = ChildObservation {
            own_pid: 1,
            outer_pid: 5123,
            thread_id: 2,
            list,
            details: Some(details),
            details_error: None,
            samples: Some(samples),
        };
        Evidence { child, host_list: Some(vec![415, 5123]), in_init_namespace: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::driver::Native;

    #[test]
    fn every_era_is_recognised_by_its_numbering() {
        for row in (0..=4).map(Native::of) {
            let verdict = evaluate(&fake::era(row.era));
            assert_eq!((verdict.list, verdict.details), (Some(row.pids), Some(row.pid_info)), "era {}", row.era);
        }
    }

    #[test]
    fn every_era_has_its_own_faults() {
        use Fault::*;
        let faults = |era| evaluate(&fake::era(era)).faults;
        assert_eq!(faults(0), [ListMisses, ListForeign, DetailsMiss, DetailsForeign, SamplesForeign]);
        assert_eq!(faults(1), [ListThread, ListRepeats, DetailsMiss, DetailsForeign, SamplesForeign]);
        assert_eq!(faults(2), [ListThread, ListRepeats, DetailsMiss, SamplesForeign]);
        assert_eq!(faults(3), [ListThread, ListRepeats, DetailsMiss, SamplesForeign, SamplesPointer]);
        assert_eq!(faults(4), [ListRepeats, SamplesForeign, SamplesPointer]);
    }

    #[test]
    fn right_answer_has_no_fault() {
        assert_eq!(evaluate(&fake::right()).faults, []);
        let mut unmeasured = fake::right();
        unmeasured.child.details = None;
        unmeasured.child.samples = None;
        let verdict = evaluate(&unmeasured);
        assert_eq!((verdict.faults, verdict.details), (vec![], None));
    }

    #[test]
    fn empty_list_is_wrong() {
        let mut evidence = fake::right();
        evidence.child.list.clear();
        let verdict = evaluate(&evidence);
        assert_eq!((verdict.list, verdict.faults), (None, vec![Fault::ListMisses]));
    }

    #[test]
    fn host_list_must_contain_child() {
        let mut evidence = fake::right();
        evidence.host_list = Some(vec![415, 1]);
        assert_eq!(evaluate(&evidence).faults, [Fault::HostMisses]);
    }

    #[test]
    fn details_by_own_pid_and_thread_are_own() {
        let mut evidence = fake::right();
        evidence.child.details = Some(crate::probe::child::Details { own: true, thread: true, outer: false });
        assert_eq!(evaluate(&evidence).details, Some(Numbering::Own));
    }

    #[test]
    fn every_fault_can_be_found() {
        let mut found: Vec<Fault> = (0..5).flat_map(|era| evaluate(&fake::era(era)).faults).collect();
        found.push(Fault::HostMisses); // host_list_must_contain_child
        for &fault in <Fault as strum::VariantArray>::VARIANTS {
            assert!(found.contains(&fault), "{fault:?} never fires");
        }
    }
}
