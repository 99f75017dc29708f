//! Utilisation samples: slots of one record per engine, each naming the process that used the engine in that interval.

use crate::bytes::{get_u32, put_u32, zero};
use crate::pid::{HostPid, PidMap};
use crate::reason::Outcome;
use mpu_abi::ioctl::GPUMON_PID_INVALID;
use mpu_abi::Samples;

const TIMESTAMP_BYTES: usize = 8;
const UTIL: usize = 0;
const PROC_ID: usize = 8;
const SUB_PROCESS: usize = 12;
const SUB_PROCESS_BYTES: usize = 4 + 100;

/// Puts the PIDs of all slots into the caller's view. A record of a process that the caller may not see becomes an idle
/// record; kernel addresses are cleared in every record.
pub(crate) fn rewrite_samples(slots: &mut [u8], samples: &Samples, map: &impl PidMap) -> Outcome {
    let stride = usize::from(samples.stride.max(1));
    let engine_stride = usize::from(samples.engine_stride.max(1));
    let (mut kept, mut hidden) = (0u32, 0u32);
    for slot in slots.chunks_exact_mut(stride).take(usize::from(samples.capacity)) {
        let engines = slot.get_mut(TIMESTAMP_BYTES..).unwrap_or_default();
        for engine in engines.chunks_exact_mut(engine_stride).take(usize::from(samples.engines)) {
            if let Some(pointer) = samples.kernel_pointer {
                zero(engine, usize::from(pointer), 8);
            }
            match get_u32(engine, PROC_ID) {
                None | Some(0 | GPUMON_PID_INVALID) => {}
                Some(number) => match HostPid::new(number).and_then(|pid| map.view_of(pid)) {
                    Some(view) => {
                        put_u32(engine, PROC_ID, view.get());
                        kept = kept.saturating_add(1);
                    }
                    None => {
                        hide(engine);
                        hidden = hidden.saturating_add(1);
                    }
                },
            }
        }
    }
    Outcome::Rewritten { kept, hidden }
}

fn hide(engine: &mut [u8]) {
    put_u32(engine, UTIL, 0);
    put_u32(engine, PROC_ID, GPUMON_PID_INVALID);
    zero(engine, SUB_PROCESS, SUB_PROCESS_BYTES);
    put_u32(engine, SUB_PROCESS, GPUMON_PID_INVALID);
}
