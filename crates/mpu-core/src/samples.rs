//! Utilisation samples: slots of one record per engine, each with the process that dominated the engine in that interval.
//!
//! Hiding a foreign record must leave the caller's own figures as on the host. NVML's arithmetic decides how
//! (docs/adr/0004-hidden-samples.md has the measurements): from release 535 on it skips a slot whose graphics record is idle, and divides
//! each process's sum by the number of remaining slots. So a foreign graphics record becomes one of an own process with no
//! utilisation: it adds nothing to a sum and keeps the divisor. In other engines a foreign record becomes idle. Releases up to 470
//! divide by all slots and are right either way.

use crate::bytes::{get_u32, get_u64, put_u32, zero};
use crate::pid::{HostPid, PidMap};
use crate::reason::Outcome;
use mpu_abi::Samples;
use mpu_abi::pid::{GPUMON_PID_INVALID, PID_WITHOUT_PROCESS};

const TIMESTAMP_BYTES: usize = 8;
/// The index of the graphics engine in a slot's records: fb, gr, nvenc, nvdec, nvjpg, nvofa.
const GR: usize = 1;
const UTIL: usize = 0;
const PROC_ID: usize = 8;
const SUB_PROCESS: usize = 12;
const SUB_PROCESS_NAME: usize = 16;
const SUB_PROCESS_NAME_BYTES: usize = 100;

/// Translates the PIDs of all slots, hides foreign processes, and clears kernel addresses in every record. Every whole slot counts, also
/// beyond the row's capacity: behind a pointer the caller chooses the size. A partial slot at the end is cleared, and everything if no
/// slot can be found.
pub(crate) fn rewrite_samples(slots: &mut [u8], samples: &Samples, map: &impl PidMap) -> Outcome {
    if samples.engines == 0 {
        slots.fill(0);
        return Outcome::Rewritten { kept: 0, hidden: 1 };
    }
    let stride = usize::from(samples.stride.max(1));
    let engine_stride = usize::from(samples.engine_stride.max(1));
    let (mut kept, mut hidden) = (0u32, 0u32);
    for slot in slots.chunks_exact_mut(stride) {
        let records = slot.get_mut(TIMESTAMP_BYTES..).unwrap_or_default();
        for (engine, record) in records.chunks_exact_mut(engine_stride).take(usize::from(samples.engines)).enumerate() {
            if let Some(pointer) = samples.kernel_pointer {
                zero(record, usize::from(pointer), 8);
            }
            match get_u32(record, PROC_ID) {
                None | Some(0 | GPUMON_PID_INVALID) => {}
                Some(number) => match HostPid::new(number).and_then(|pid| map.view_of(pid)) {
                    Some(view) => {
                        put_u32(record, PROC_ID, view.get());
                        kept = kept.saturating_add(1);
                    }
                    None => {
                        clear(record, if engine == GR { PID_WITHOUT_PROCESS } else { GPUMON_PID_INVALID });
                        hidden = hidden.saturating_add(1);
                    }
                },
            }
        }
    }
    if hidden != 0 {
        give_away(slots, samples);
    }
    slots.chunks_exact_mut(stride).into_remainder().fill(0);
    Outcome::Rewritten { kept, hidden }
}

/// Gives each hidden graphics record, marked [`PID_WITHOUT_PROCESS`], to an own process: that of the same or the nearest newer slot, because
/// NVML's window is "newer than …" and then also has a real record of that process; or else that of the nearest older slot. If the caller
/// has no process in any slot, the record becomes idle: there is no figure to distort.
fn give_away(slots: &mut [u8], samples: &Samples) {
    let stride = usize::from(samples.stride.max(1));
    let count = slots.len() / stride;
    let newest = (0..count).max_by_key(|slot| get_u64(slots, slot * stride).unwrap_or(0)).unwrap_or(0);
    // Slots fill in a ring: before the newest is the next older one.
    let by_age = (0..count).map(|age| if age <= newest { newest - age } else { newest + count - age });
    let mut owner = None;
    let mut newest_owner = None;
    for slot in by_age.clone() {
        let Some(slot) = slots.get_mut(slot * stride..(slot + 1) * stride) else { continue };
        owner = owner_of(slot, samples).or(owner);
        newest_owner = newest_owner.or(owner);
        give(slot, samples, owner);
    }
    for slot in by_age {
        let Some(slot) = slots.get_mut(slot * stride..(slot + 1) * stride) else { continue };
        give(slot, samples, Some(newest_owner.unwrap_or(GPUMON_PID_INVALID)));
    }
}

/// The process of a slot: the graphics engine's, or else any other engine's. None for a slot that NVML skips.
fn owner_of(slot: &[u8], samples: &Samples) -> Option<u32> {
    let pid_of = |engine: usize| {
        get_u32(slot, TIMESTAMP_BYTES + engine * usize::from(samples.engine_stride) + PROC_ID)
            .filter(|pid| !matches!(*pid, 0 | GPUMON_PID_INVALID))
    };
    let graphics = pid_of(GR)?;
    if graphics != PID_WITHOUT_PROCESS {
        return Some(graphics);
    }
    (0..usize::from(samples.engines)).filter(|engine| *engine != GR).find_map(pid_of)
}

fn give(slot: &mut [u8], samples: &Samples, owner: Option<u32>) {
    let at = TIMESTAMP_BYTES + GR * usize::from(samples.engine_stride) + PROC_ID;
    if let (Some(PID_WITHOUT_PROCESS), Some(owner)) = (get_u32(slot, at), owner) {
        put_u32(slot, at, owner);
    }
}

/// Clears a record, except its PID.
fn clear(record: &mut [u8], pid: u32) {
    put_u32(record, UTIL, 0);
    put_u32(record, PROC_ID, pid);
    put_u32(record, SUB_PROCESS, if pid == GPUMON_PID_INVALID { GPUMON_PID_INVALID } else { 0 });
    zero(record, SUB_PROCESS_NAME, SUB_PROCESS_NAME_BYTES);
}
