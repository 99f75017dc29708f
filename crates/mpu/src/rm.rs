//! A small client of NVIDIA's resource manager: enough to be seen by it, and to ask whom it sees.
//!
//! Owns the choice of a row by release, and how objects are made. Refuses to know what an answer means: that is
//! `probe`.
//!
//! Outside truth: NVIDIA's public headers `nvos.h` (argument blocks), `ctrl0000gpu.h`, `cl0040.h`; for the layouts,
//! `mpu-abi`.

use crate::sys;
use mpu_abi::ioctl::{alloc_status, gpumon};
use mpu_abi::pid::GPUMON_PID_INVALID;
use mpu_abi::{Control, Entry, Layout, Row, RowId, Rows, Samples as SampleLayout, ROWS};
use mpu_host::driver::Release;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

/// What can go wrong between us and the driver.
#[derive(Debug, thiserror::Error)]
pub enum RmError {
    /// A device node is missing or shut.
    #[error("cannot open {}", path.display())]
    Open {
        /// The node.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The driver's ioctl returned an error.
    #[error("the driver's ioctl for {what} failed")]
    Ioctl {
        /// What was asked.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The resource manager answered with a status other than 0.
    #[error("the driver answered {what} with status {status:#x}")]
    Status {
        /// What was asked.
        what: &'static str,
        /// RM's status.
        status: u32,
    },
}

/// How one release wants to be spoken to: which of the known rows it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialect {
    list: RowId,
    details: RowId,
    samples: Option<RowId>,
    alloc_status_at: usize,
}

impl Dialect {
    /// The dialect of a release; an unknown one is spoken to like the newest.
    pub fn of(release: Option<Release>) -> Dialect {
        let release = release.unwrap_or(mpu_host::driver::NEWEST_KNOWN);
        let always = |control| mpu_abi::row_of(control, release).expect("a row (tested for every release)");
        Dialect {
            list: always(Control::GpuGetPids),
            details: always(Control::GpuGetPidInfo),
            // Before 460 samples were fetched through a pointer by another control, which this client leaves alone.
            samples: mpu_abi::row_of(Control::PerfGpumonUtilV2, release),
            alloc_status_at: alloc_status(release),
        }
    }

    /// Whether the release has the utilisation control that this client speaks.
    pub fn has_samples(&self) -> bool {
        self.samples.is_some()
    }
}

/// Objects that this client makes. Their parameters hold no pointer (a test reads them back).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Object {
    Client,
    Device { instance: u32 },
    Subdevice,
    VideoMemory { bytes: u64 },
}

impl Object {
    fn class(self) -> u32 {
        match self {
            Object::Client => 0x0,
            Object::Device { .. } => 0x80,
            Object::Subdevice => SUBDEVICE_CLASS,
            Object::VideoMemory { .. } => 0x40,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Object::Client => "a new client",
            Object::Device { .. } => "a device object",
            Object::Subdevice => "a subdevice object",
            Object::VideoMemory { .. } => "a block of video memory",
        }
    }

    /// The parameters, in a block that is long enough for every release: a release copies as much as it knows.
    fn params(self) -> [u8; 128] {
        let mut params = [0u8; 128];
        match self {
            Object::Client | Object::Subdevice => {}
            Object::Device { instance } => set(&mut params, 0, instance),
            Object::VideoMemory { bytes } => {
                // NV_MEMORY_ALLOCATION_PARAMS: owner @0 (RM refuses 0, and takes any other word), size @64, alignment
                // @72. The attributes left at 0 mean video memory.
                set(&mut params, 0, MEMORY);
                params[64..72].copy_from_slice(&bytes.to_ne_bytes());
                params[72..80].copy_from_slice(&4096u64.to_ne_bytes());
            }
        }
        params
    }
}

/// Where the device nodes are.
pub trait Nodes {
    /// Opens the control node.
    fn open_control(&self) -> Result<File, RmError>;
    /// Opens the node of one GPU, any one.
    fn open_gpu(&self) -> Result<File, RmError>;
}

/// One client of the resource manager, with the first GPU's device and subdevice.
pub struct Client {
    control: File,
    // Held open: the first opener of a GPU's node starts the GPU, and a driver without persistence stops it with the
    // last.
    _gpu: Option<File>,
    dialect: Dialect,
    client: u32,
}

/// Handles of our own choice; they need to be unique in one client only.
const DEVICE: u32 = 0x6d70_0080;
const SUBDEVICE: u32 = 0x6d70_2080;
const MEMORY: u32 = 0x6d70_0040;

const SUBDEVICE_CLASS: u32 = 0x2080;
/// `NV0000_CTRL_CMD_GPU_ATTACH_IDS`: 32 ids and the one that failed.
const ATTACH_GPUS: (u32, usize) = (0x215, 132);
const ALL_GPUS: u32 = 0xffff;
/// As many GPUs as one driver has.
const MOST_GPUS: u32 = 32;

/// One row of GET_PID_INFO as far as the probe reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PidInfo {
    /// The number as it came back.
    pub pid: u32,
    /// The row's own status.
    pub result: u32,
    /// Its first memory word: private video memory in bytes.
    pub memory: u64,
}

/// What the engines' samples name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
pub struct Samples {
    /// Every process named, without repetition, idle slots left out.
    pub pids: Vec<u32>,
    /// How many slots carried a kernel address.
    pub kernel_pointers: usize,
}

impl Client {
    /// Opens the driver and becomes one of its clients on the first GPU. RM records the thread that calls this.
    pub fn open(nodes: &dyn Nodes, dialect: Dialect) -> Result<Client, RmError> {
        let gpu = nodes.open_gpu().ok();
        let control = nodes.open_control()?;
        let mut client = Client { control, _gpu: gpu, dialect, client: 0 };
        client.client = client.make(Object::Client, [0, 0, 0])?;
        client.attach_gpus();
        client.make_first_device()?;
        client.make(Object::Subdevice, [client.client, DEVICE, SUBDEVICE])?;
        Ok(client)
    }

    /// Asks for every GPU to be attached. A driver that cannot says so again, and more to the point, when a device is
    /// made.
    fn attach_gpus(&self) {
        let mut params = vec![0u8; ATTACH_GPUS.1];
        set(&mut params, 0, ALL_GPUS);
        set(&mut params, 4, u32::MAX);
        let _ = self.ask("GPU_ATTACH_IDS", ATTACH_GPUS.0, self.client, &mut params);
    }

    /// Makes the device object of the first GPU that answers: instances have gaps where a GPU fell off or belongs to
    /// somebody else.
    fn make_first_device(&self) -> Result<(), RmError> {
        let make = |instance| self.make(Object::Device { instance }, [self.client, self.client, DEVICE]);
        let first = make(0);
        if matches!(first, Err(RmError::Status { .. })) && (1..MOST_GPUS).any(|instance| make(instance).is_ok()) {
            return Ok(());
        }
        first.map(|_| ())
    }

    /// Takes video memory, so that the details of this process are not all zero.
    pub fn take_memory(&self, bytes: u64) -> Result<(), RmError> {
        self.make(Object::VideoMemory { bytes }, [self.client, DEVICE, MEMORY]).map(|_| ())
    }

    /// The processes with an object on this GPU, ours being the subdevice.
    pub fn pids(&self) -> Result<Vec<u32>, RmError> {
        let row = row(self.dialect.list);
        let Layout::List(rows) = row.layout else { unreachable!("chosen by its number") };
        let mut params = vec![0u8; row.params_size as usize];
        set(&mut params, 4, SUBDEVICE_CLASS);
        self.ask("GPU_GET_PIDS", row.cmd.0, self.process_object(), &mut params)?;
        let count = get(&params, rows.count.into()).min(rows.capacity.into());
        Ok((0..count as usize).map(|i| get(&params, entry(rows, i))).collect())
    }

    /// The details of some processes, at most as many as one call takes.
    pub fn pid_info(&self, pids: &[u32]) -> Result<Vec<PidInfo>, RmError> {
        let row = row(self.dialect.details);
        let (Layout::Query(rows), Some(about)) = (row.layout, mpu_abi::history(self.dialect.details).entry) else {
            unreachable!("chosen by its number")
        };
        let pids = &pids[..pids.len().min(rows.capacity.into())];
        let mut params = vec![0u8; row.params_size as usize];
        set(&mut params, rows.count.into(), pids.len() as u32);
        for (i, pid) in pids.iter().enumerate() {
            set(&mut params, entry(rows, i), *pid);
        }
        self.ask("GPU_GET_PID_INFO", row.cmd.0, self.process_object(), &mut params)?;
        Ok((0..pids.len()).map(|i| pid_info(&params, entry(rows, i), about)).collect())
    }

    /// The utilisation samples' processes, where the release has the control.
    pub fn samples(&self) -> Result<Option<Samples>, RmError> {
        let Some(row) = self.dialect.samples.map(row) else { return Ok(None) };
        let Layout::Samples(layout) = row.layout else { unreachable!("chosen by its number") };
        let mut params = vec![0u8; row.params_size as usize];
        params[gpumon::KIND] = gpumon::PERFORMANCE;
        set(&mut params, gpumon::ROOM, row.params_size - u32::from(layout.first));
        self.ask("GPUMON_UTIL_V2", row.cmd.0, SUBDEVICE, &mut params)?;
        Ok(Some(read_samples(&params, layout)))
    }

    /// The object that lists processes: the subdevice, or in old releases the device.
    fn process_object(&self) -> u32 {
        match row(self.dialect.list).cmd.0 >> 16 {
            0x80 => DEVICE,
            _ => SUBDEVICE,
        }
    }

    fn ask(&self, what: &'static str, cmd: u32, object: u32, params: &mut [u8]) -> Result<(), RmError> {
        let status = sys::rm_control(self.control.as_fd(), [self.client, object, cmd], params);
        match status.map_err(|source| RmError::Ioctl { what, source })? {
            0 => Ok(()),
            status => Err(RmError::Status { what, status }),
        }
    }

    fn make(&self, object: Object, [client, parent, handle]: [u32; 3]) -> Result<u32, RmError> {
        let what = object.name();
        let words = [client, parent, handle, object.class()];
        let answer = sys::rm_alloc(self.control.as_fd(), words, &mut object.params(), self.dialect.alloc_status_at);
        match answer.map_err(|source| RmError::Ioctl { what, source })? {
            (0, handle) => Ok(handle),
            (status, _) => Err(RmError::Status { what, status }),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Closing the node frees the client too; asking first means that a later look-up cannot still find it.
        let _ = sys::rm_free(self.control.as_fd(), [self.client, 0, self.client]);
    }
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

fn set(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

fn get(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0u8; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

fn get_wide(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0u8; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialect(version: &str) -> Dialect {
        Dialect::of(Some(version.parse().expect("a release")))
    }

    #[test]
    fn each_branch_gets_its_numbers_and_sizes() {
        let check = |version: &str, list: u32, details: u32, samples: Option<u32>, status_at: usize| {
            let d = dialect(version);
            let samples_of = d.samples.map(row);
            let sizes = (row(d.details).params_size, samples_of.map(|s| s.params_size));
            assert_eq!(
                (row(d.list).cmd.0, sizes, d.alloc_status_at),
                (list, (details, samples), status_at),
                "{version}"
            );
            let layouts = (row(d.list).layout, row(d.details).layout);
            assert!(matches!(layouts, (Layout::List(_), Layout::Query(_))), "{version}");
            assert!(mpu_abi::history(d.details).entry.is_some(), "{version}");
            assert!(samples_of.is_none_or(|s| matches!(s.layout, Layout::Samples(_))), "{version}");
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
        assert_eq!(Dialect::of(None), dialect("595.45.04"));
        for (major, minor) in (0..1000).flat_map(|major| [0, 76, 86, 999].map(|minor| (major, minor))) {
            Dialect::of(Some(Release::new(major, minor, 0)));
        }
    }

    #[test]
    fn samples_name_each_process_once_and_count_pointers() {
        let row = row(dialect("580.159.04").samples.expect("samples"));
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

    #[test]
    fn object_parameters_hold_no_pointer() {
        assert_eq!(Object::Client.params(), [0; 128]);
        assert_eq!(Object::Subdevice.params(), [0; 128]);
        assert_eq!(Object::Device { instance: 3 }.params()[4..], [0; 124]);
        let memory = Object::VideoMemory { bytes: 1 << 20 }.params();
        assert_eq!(get_wide(&memory, 64), 1 << 20);
        assert_eq!(
            (memory[4..64].to_vec(), memory[80..].to_vec()),
            (vec![0; 60], vec![0; 48]),
            "the CPU address stands at 96"
        );
    }
}
