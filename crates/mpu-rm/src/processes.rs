//! Processes that the resource manager knows: their list, their memory, and the utilisation samples that name them.
//!
//! Outside truth: `mpu-abi`'s rows.

use crate::bytes::{get, get_wide, set};
use crate::client::Client;
use crate::error::RmError;
use crate::object::{DEVICE, Object, SUBDEVICE, SUBDEVICE_CLASS};
use mpu_abi::ioctl::gpumon;
use mpu_abi::pid::GPUMON_PID_INVALID;
use mpu_abi::{Control, Entry, Layout, ROWS, Release, Row, RowId, Rows, Samples as SampleLayout};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a release has the utilisation control that this client uses. Before 460 another control with a pointer returned the
/// samples; this client does not use it.
pub fn has_samples(release: Release) -> bool {
    mpu_abi::row_of(Control::PerfGpumonUtilV2, release).is_some()
}

/// One entry of GET_PID_INFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PidInfo {
    /// As the driver returned it.
    pub pid: u32,
    pub result: u32,
    /// Its first memory word: private video memory in bytes.
    pub memory: u64,
}

/// Processes in the utilisation samples.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
pub struct Samples {
    /// Each process once; idle slots are left out.
    pub pids: Vec<u32>,
    /// Number of slots with a kernel address.
    pub kernel_pointers: usize,
}

impl Client {
    /// Allocates video memory, so that the driver has a size to report for this process.
    pub fn take_memory(&self, bytes: u64) -> Result<(), RmError> {
        self.make(Object::VideoMemory { bytes }).map(|_| ())
    }

    /// Processes with an object on this GPU. This process is one: it has the subdevice.
    pub fn pids(&self) -> Result<Vec<u32>, RmError> {
        let row = row(list_row(self.release));
        let Layout::List(rows) = row.layout else { unreachable!("tested for every release") };
        let mut params = vec![0u8; row.params_size as usize];
        set(&mut params, 4, SUBDEVICE_CLASS);
        self.control("GPU_GET_PIDS", row.cmd.0, self.process_object(), &mut params)?;
        let count = get(&params, rows.count.into()).min(rows.capacity.into());
        Ok((0..count as usize).map(|i| get(&params, entry(rows, i))).collect())
    }

    /// Details of the first of these processes, up to the capacity of one call.
    pub fn pid_info(&self, pids: &[u32]) -> Result<Vec<PidInfo>, RmError> {
        let id = details_row(self.release);
        let row = row(id);
        let (Layout::Query(rows), Some(details_entry)) = (row.layout, mpu_abi::history(id).entry) else {
            unreachable!("tested for every release")
        };
        let pids = &pids[..pids.len().min(rows.capacity.into())];
        let mut params = vec![0u8; row.params_size as usize];
        set(&mut params, rows.count.into(), pids.len() as u32);
        for (i, pid) in pids.iter().enumerate() {
            set(&mut params, entry(rows, i), *pid);
        }
        self.control("GPU_GET_PID_INFO", row.cmd.0, self.process_object(), &mut params)?;
        Ok((0..pids.len()).map(|i| pid_info(&params, entry(rows, i), details_entry)).collect())
    }

    /// None if the release does not have the control.
    pub fn samples(&self) -> Result<Option<Samples>, RmError> {
        let Some(row) = mpu_abi::row_of(Control::PerfGpumonUtilV2, self.release).map(row) else { return Ok(None) };
        let Layout::Samples(layout) = row.layout else { unreachable!("tested for every release") };
        let mut params = vec![0u8; row.params_size as usize];
        params[gpumon::KIND] = gpumon::PERFORMANCE;
        set(&mut params, gpumon::ROOM, row.params_size - u32::from(layout.first));
        self.control("GPUMON_UTIL_V2", row.cmd.0, SUBDEVICE, &mut params)?;
        Ok(Some(read_samples(&params, layout)))
    }

    /// The object that lists processes: the subdevice, or in old releases the device.
    fn process_object(&self) -> u32 {
        match row(list_row(self.release)).cmd.0 >> 16 {
            0x80 => DEVICE,
            _ => SUBDEVICE,
        }
    }
}

fn list_row(release: Release) -> RowId {
    mpu_abi::row_of(Control::GpuGetPids, release).expect("a row (tested for every release)")
}

fn details_row(release: Release) -> RowId {
    mpu_abi::row_of(Control::GpuGetPidInfo, release).expect("a row (tested for every release)")
}

fn row(id: RowId) -> &'static Row {
    &ROWS[id.index()]
}

fn pid_info(params: &[u8], at: usize, entry: Entry) -> PidInfo {
    PidInfo {
        pid: get(params, at),
        result: get(params, at + usize::from(entry.result)),
        memory: get_wide(params, at + usize::from(entry.amounts)),
    }
}

fn entry(rows: Rows, index: usize) -> usize {
    usize::from(rows.first) + index * usize::from(rows.stride) + usize::from(rows.pid)
}

fn read_samples(params: &[u8], layout: SampleLayout) -> Samples {
    let mut samples = Samples::default();
    for slot in 0..usize::from(layout.capacity) {
        for engine in 0..usize::from(layout.engines) {
            let slot_at = usize::from(layout.first) + slot * usize::from(layout.stride);
            let at = slot_at + 8 + engine * usize::from(layout.engine_stride);
            let pid = get(params, at + 8);
            if pid != GPUMON_PID_INVALID && pid != 0 && !samples.pids.contains(&pid) {
                samples.pids.push(pid);
            }
            if layout.kernel_pointer.is_some_and(|offset| get_wide(params, at + usize::from(offset)) != 0) {
                samples.kernel_pointers += 1;
            }
        }
    }
    samples.pids.sort_unstable();
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_abi::ioctl::alloc_status;

    fn release(version: &str) -> Release {
        version.parse().expect("a release")
    }

    #[test]
    fn each_branch_gets_its_numbers_and_sizes() {
        let check = |version: &str, list: u32, details: u32, samples: Option<u32>, status_at: usize| {
            let release = release(version);
            let (list_id, details_id) = (list_row(release), details_row(release));
            let samples_of = mpu_abi::row_of(Control::PerfGpumonUtilV2, release).map(row);
            let sizes = (row(details_id).params_size, samples_of.map(|s| s.params_size));
            let found = (row(list_id).cmd.0, sizes, alloc_status(release));
            assert_eq!(found, (list, (details, samples), status_at), "{version}");
            assert_eq!(has_samples(release), samples.is_some(), "{version}");
        };
        check("390.157", 0x0080_0202, 8008, None, 24);
        check("418.226", 0x0080_0202, 8008, None, 24);
        check("450.248.02", 0x2080_018d, 9608, None, 24);
        check("470.256.02", 0x2080_018d, 9608, Some(47216), 24);
        check("515.76", 0x2080_018d, 14408, Some(47216), 24);
        check("515.105.01", 0x2080_018d, 14408, Some(34000), 24);
        check("520.61.05", 0x2080_018d, 14408, Some(47216), 24);
        check("525.147.05", 0x2080_018d, 14408, Some(34000), 24);
        check("535.261.03", 0x2080_018d, 14408, Some(34000), 28);
        check("550.163.01", 0x2080_018d, 14408, Some(50704), 28);
        check("580.159.04", 0x2080_018d, 14408, Some(55888), 28);
    }

    #[test]
    fn every_release_has_process_list_layouts() {
        for (major, minor) in (0..1000).flat_map(|major| [0, 76, 86, 999].map(|minor| (major, minor))) {
            let release = Release::new(major, minor, 0);
            let (list, details) = (row(list_row(release)).layout, row(details_row(release)).layout);
            assert!(matches!((list, details), (Layout::List(_), Layout::Query(_))), "{release}");
            assert!(mpu_abi::history(details_row(release)).entry.is_some(), "{release}");
            let samples = mpu_abi::row_of(Control::PerfGpumonUtilV2, release).map(|id| row(id).layout);
            assert!(samples.is_none_or(|layout| matches!(layout, Layout::Samples(_))), "{release}");
        }
    }

    #[test]
    fn samples_name_each_process_once_and_count_pointers() {
        let row = row(mpu_abi::row_of(Control::PerfGpumonUtilV2, release("580.159.04")).expect("samples"));
        let Layout::Samples(layout) = row.layout else { panic!("not samples") };
        let mut params = vec![0u8; row.params_size as usize];
        let mut put = |slot: usize, engine: usize, pid: u32, pointer: u64| {
            let at = 16 + slot * 776 + 8 + engine * 128;
            set(&mut params, at + 8, pid);
            params[at + 120..at + 128].copy_from_slice(&pointer.to_ne_bytes());
        };
        put(0, 0, 415, 0xffff_8881_0000_0000);
        put(71, 5, 415, 0xffff_8881_0000_0000);
        put(3, 2, 2, 0);
        put(4, 1, GPUMON_PID_INVALID, 0);
        assert_eq!(read_samples(&params, layout), Samples { pids: vec![2, 415], kernel_pointers: 2 });
    }
}
