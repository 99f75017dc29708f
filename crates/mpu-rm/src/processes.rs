//! Processes with RM clients: their list, their memory, and their utilisation samples.
//!
//! Source: `mpu-abi`'s rows.

use crate::bytes::{read_u32, read_u64, write_u32};
use crate::client::{Client, MAX_GPUS};
use crate::error::RmError;
use crate::object::{DEVICE, Object, SUBDEVICE, SUBDEVICE_CLASS};
use mpu_abi::ioctl::gpumon;
use mpu_abi::pid::GPUMON_PID_INVALID;
use mpu_abi::{Control, Entry, Layout, ROWS, Release, Row, RowId, Rows, Samples as SampleLayout};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;

/// Whether a release has the utilisation control that this client uses. Before 460 the samples came from another control, with a
/// pointer in its parameters. This client does not use it.
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

/// Use of the graphics and compute engine in one interval between two samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineSample {
    /// The interval's end, in nanoseconds of the driver's clock.
    pub time: u64,
    /// The engine's busy share of the interval, in hundredths of a percent.
    pub busy: u32,
    /// The process on the engine when the sample was taken, by the number that the driver gives the caller.
    pub pid: Option<u32>,
}

impl Client {
    /// Allocates video memory, so that the driver has a size to report for this process.
    pub fn alloc_video_memory(&self, bytes: u64) -> Result<(), RmError> {
        self.alloc(Object::VideoMemory { bytes }).map(|_| ())
    }

    /// Processes with an object on this GPU. This process is among them, because it has the subdevice.
    pub fn pids(&self) -> Result<Vec<u32>, RmError> {
        let row = row(pid_list_row(self.release));
        let Layout::List(rows) = row.layout else { unreachable!("tested for every release") };
        let mut params = vec![0u8; row.params_size as usize];
        write_u32(&mut params, 4, SUBDEVICE_CLASS);
        self.control("GPU_GET_PIDS", row.cmd.0, self.process_object(), &mut params)?;
        let count = read_u32(&params, rows.count.into()).min(rows.capacity.into());
        Ok((0..count as usize).map(|i| read_u32(&params, pid_offset(rows, i))).collect())
    }

    /// Details of the first of these processes, up to the capacity of one call.
    pub fn pid_info(&self, pids: &[u32]) -> Result<Vec<PidInfo>, RmError> {
        let id = pid_info_row(self.release);
        let row = row(id);
        let (Layout::Query(rows), Some(entry_layout)) = (row.layout, mpu_abi::history(id).entry) else {
            unreachable!("tested for every release")
        };
        let pids = &pids[..pids.len().min(rows.capacity.into())];
        let mut params = vec![0u8; row.params_size as usize];
        write_u32(&mut params, rows.count.into(), pids.len() as u32);
        for (i, pid) in pids.iter().enumerate() {
            write_u32(&mut params, pid_offset(rows, i), *pid);
        }
        self.control("GPU_GET_PID_INFO", row.cmd.0, self.process_object(), &mut params)?;
        Ok((0..pids.len()).map(|i| read_pid_info(&params, pid_offset(rows, i), entry_layout)).collect())
    }

    /// None if the release does not have the control.
    pub fn samples(&self) -> Result<Option<Samples>, RmError> {
        Ok(self.fetch_samples()?.map(|(params, layout)| read_samples(&params, layout)))
    }

    /// Utilisation samples by GPU UUID, for GPUs whose nodes this process has open. GPUs without samples are left out. `control` is the
    /// open control node.
    ///
    /// # Errors
    /// If the driver creates no client.
    pub fn samples_of_gpus(control: File, release: Release) -> Result<BTreeMap<String, Vec<EngineSample>>, RmError> {
        let client = Client::new(control, None, release)?;
        let mut all = BTreeMap::new();
        for instance in 0..MAX_GPUS {
            if client.alloc(Object::Device { instance }).is_err() {
                continue;
            }
            let samples = client.alloc(Object::Subdevice).and_then(|_| client.fetch_samples());
            if let (Ok(Some((params, layout))), Some(uuid)) = (samples, client.uuid()) {
                all.insert(uuid, read_engine_samples(&params, layout));
            }
            client.free(client.client, DEVICE);
        }
        Ok(all)
    }

    fn fetch_samples(&self) -> Result<Option<(Vec<u8>, SampleLayout)>, RmError> {
        let Some(row) = mpu_abi::row_of(Control::PerfGpumonUtilV2, self.release).map(row) else { return Ok(None) };
        let Layout::Samples(layout) = row.layout else { unreachable!("tested for every release") };
        let mut params = vec![0u8; row.params_size as usize];
        params[gpumon::KIND] = gpumon::PERFORMANCE;
        write_u32(&mut params, gpumon::ROOM, row.params_size - u32::from(layout.first));
        self.control("GPUMON_UTIL_V2", row.cmd.0, SUBDEVICE, &mut params)?;
        Ok(Some((params, layout)))
    }

    /// The object that lists processes: the subdevice, or in old releases the device.
    fn process_object(&self) -> u32 {
        match row(pid_list_row(self.release)).cmd.0 >> 16 {
            0x80 => DEVICE,
            _ => SUBDEVICE,
        }
    }
}

fn pid_list_row(release: Release) -> RowId {
    mpu_abi::row_of(Control::GpuGetPids, release).expect("a row (tested for every release)")
}

fn pid_info_row(release: Release) -> RowId {
    mpu_abi::row_of(Control::GpuGetPidInfo, release).expect("a row (tested for every release)")
}

fn row(id: RowId) -> &'static Row {
    &ROWS[id.index()]
}

fn read_pid_info(params: &[u8], at: usize, entry: Entry) -> PidInfo {
    PidInfo {
        pid: read_u32(params, at),
        result: read_u32(params, at + usize::from(entry.result)),
        memory: read_u64(params, at + usize::from(entry.amounts)),
    }
}

fn pid_offset(rows: Rows, index: usize) -> usize {
    usize::from(rows.first) + index * usize::from(rows.stride) + usize::from(rows.pid)
}

/// Where the slots begin: a time, then one record for each engine.
fn slot_offsets(layout: SampleLayout) -> impl Iterator<Item = usize> {
    (0..usize::from(layout.capacity)).map(move |slot| usize::from(layout.first) + slot * usize::from(layout.stride))
}

/// The samples of the graphics and compute engine, by time. It is the second engine of a slot; the first is the memory's.
fn read_engine_samples(params: &[u8], layout: SampleLayout) -> Vec<EngineSample> {
    let sample = |slot_at: usize| {
        let at = slot_at + 8 + usize::from(layout.engine_stride);
        let (time, busy, pid) = (read_u64(params, slot_at), read_u32(params, at), read_u32(params, at + 8));
        EngineSample { time, busy, pid: Some(pid).filter(|pid| *pid != GPUMON_PID_INVALID && *pid != 0) }
    };
    // A slot that was never filled has no time, and in some releases more than 100 %.
    let is_filled = |sample: &EngineSample| sample.time != 0 && sample.busy <= 10_000;
    let mut samples: Vec<EngineSample> = slot_offsets(layout).map(sample).filter(is_filled).collect();
    samples.sort_unstable_by_key(|sample| sample.time);
    samples
}

fn read_samples(params: &[u8], layout: SampleLayout) -> Samples {
    let mut samples = Samples::default();
    for slot_at in slot_offsets(layout) {
        for engine in 0..usize::from(layout.engines) {
            let at = slot_at + 8 + engine * usize::from(layout.engine_stride);
            let pid = read_u32(params, at + 8);
            if pid != GPUMON_PID_INVALID && pid != 0 && !samples.pids.contains(&pid) {
                samples.pids.push(pid);
            }
            if layout.kernel_pointer.is_some_and(|offset| read_u64(params, at + usize::from(offset)) != 0) {
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
            let (list_id, details_id) = (pid_list_row(release), pid_info_row(release));
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
            let (list, details) = (row(pid_list_row(release)).layout, row(pid_info_row(release)).layout);
            assert!(matches!((list, details), (Layout::List(_), Layout::Query(_))), "{release}");
            assert!(mpu_abi::history(pid_info_row(release)).entry.is_some(), "{release}");
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
            write_u32(&mut params, at + 8, pid);
            params[at + 120..at + 128].copy_from_slice(&pointer.to_ne_bytes());
        };
        put(0, 0, 415, 0xffff_8881_0000_0000);
        put(71, 5, 415, 0xffff_8881_0000_0000);
        put(3, 2, 2, 0);
        put(4, 1, GPUMON_PID_INVALID, 0);
        assert_eq!(read_samples(&params, layout), Samples { pids: vec![2, 415], kernel_pointers: 2 });
    }

    #[test]
    fn engine_samples_are_filled_and_ascend() {
        let row = row(mpu_abi::row_of(Control::PerfGpumonUtilV2, release("580.159.04")).expect("samples"));
        let Layout::Samples(layout) = row.layout else { panic!("not samples") };
        let mut params = vec![0u8; row.params_size as usize];
        let mut put = |slot: usize, time: u64, busy: u32, pid: u32| {
            let at = 16 + slot * 776;
            params[at..at + 8].copy_from_slice(&time.to_ne_bytes());
            // Memory is busy all the time; the second engine is the one of graphics.
            for (engine, busy) in [(0, 10_000), (1, busy)] {
                write_u32(&mut params, at + 8 + engine * 128, busy);
                write_u32(&mut params, at + 8 + engine * 128 + 8, pid);
            }
        };
        put(0, 3_000, 2_500, 415);
        put(1, 1_000, 0, GPUMON_PID_INVALID);
        put(2, 2_000, 7_000, 2);
        put(3, 0, 100, 7);
        put(4, 4_000, 10_001, 7);
        let sample = |time, busy, pid| EngineSample { time, busy, pid };
        let expected = [sample(1_000, 0, None), sample(2_000, 7_000, Some(2)), sample(3_000, 2_500, Some(415))];
        assert_eq!(read_engine_samples(&params, layout), expected);
    }
}
