//! Reads NVML: the GPUs, and the rows of their process lists. Uses the newest functions of the installed release. A GPU that fails is
//! reported and does not hide the others.

use super::error::ProcessError;
use super::snapshot::{Gpu, Kind, Memory, Mig, MigDevice, Utilisation};
use super::sys;
use mpu_core::HostPid;
use mpu_host::driver::Driver;
use mpu_host::host::Host;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The GPUs and their processes at one moment.
#[derive(Debug, Default)]
pub struct Reading {
    pub gpus: Vec<GpuReading>,
}

impl Reading {
    /// Adds the driver's raw samples. NVML returns only means, from driver 535 on without the idle samples. The driver
    /// creates the objects only because NVML has each GPU's node open.
    pub fn add_samples(&mut self, host: &Host) {
        let control = File::options().read(true).write(true).open(host.at("/dev/nvidiactl")).ok();
        let release = Driver::loaded(host).and_then(|driver| driver.release);
        let Some((control, release)) = control.zip(release) else { return };
        let mut samples = mpu_rm::Client::samples_of_gpus(control, release).unwrap_or_default();
        for gpu in &mut self.gpus {
            gpu.gpu.samples = gpu.gpu.uuid.as_ref().and_then(|uuid| samples.remove(uuid));
        }
    }
}

#[derive(Debug, Default)]
pub struct GpuReading {
    pub gpu: Gpu,
    /// The rows of its process lists.
    pub rows: Vec<ProcessRow>,
    /// Utilisation of the processes that used something; none if this GPU does not report it.
    pub samples: Option<BTreeMap<HostPid, Utilisation>>,
}

/// A row of a process list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessRow {
    pub pid: HostPid,
    pub kind: Kind,
    pub memory: Option<u64>,
    pub mig: Option<Mig>,
}

/// The name that the dynamic linker looks up.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Folders outside the linker's paths: Debian and Ubuntu, Red Hat and SUSE, NVIDIA's operator, Google's nodes, NixOS.
const LIBRARY_FOLDERS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
];

/// The shortest window for utilisation: GPUs take samples up to a second apart.
const MIN_WINDOW: Duration = Duration::from_secs(1);
/// The longest window for utilisation.
const MAX_WINDOW: Duration = Duration::from_secs(15);

pub struct Nvml {
    library: nvml_wrapper::Nvml,
    last: Option<SystemTime>,
}

impl Nvml {
    /// Loads NVML, which becomes a client of the driver.
    pub fn load(host: &Host) -> Result<Nvml, ProcessError> {
        let mut missing = None;
        let folders = LIBRARY_FOLDERS.iter().map(|dir| host.at(dir).join(LIBRARY)).filter(|path| path.exists());
        for path in std::iter::once(LIBRARY.into()).chain(folders) {
            match nvml_wrapper::Nvml::builder().lib_path(OsStr::new(&path)).init() {
                Ok(library) => return Ok(Nvml { library, last: None }),
                // Report the first failure: it is about the library that the host's programs would load. The text
                // contains the loader's message.
                Err(NvmlError::LibloadingError(error)) => missing = missing.or(Some(loader_message(&error))),
                Err(error) => return Err(ProcessError::from_nvml("nvmlInit", error)),
            }
        }
        Err(ProcessError::NoLibrary { why: missing.unwrap_or_else(|| format!("no {LIBRARY}")) })
    }

    pub fn read(&mut self) -> Result<Reading, ProcessError> {
        let now = SystemTime::now();
        let elapsed = self.last.and_then(|last| now.duration_since(last).ok()).unwrap_or(MIN_WINDOW);
        let since = now - elapsed.clamp(MIN_WINDOW, MAX_WINDOW);
        self.last = Some(now);
        let since = since.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
        let count = self.library.device_count().map_err(|e| ProcessError::from_nvml("nvmlDeviceGetCount", e))?;
        Ok(Reading { gpus: (0..count).map(|index| self.gpu(index, since)).collect() })
    }

    fn gpu(&self, index: u32, since: u64) -> GpuReading {
        let device = match self.library.device_by_index(index) {
            Ok(device) => device,
            Err(error) => {
                let gpu = Gpu { index, unreadable: Some(error.to_string()), ..Gpu::default() };
                return GpuReading { gpu, ..GpuReading::default() };
            }
        };
        let mig_devices = mig_devices(&self.library, &device);
        let mut gpu = read_gpu(index, &self.library, &device);
        gpu.mig = mig_devices.iter().map(|(instance, mig)| mig_device(*instance, &self.library, mig)).collect();
        let list = |device: &Device, mig| process_lists(&self.library, device, mig);
        let lists = match list(&device, None) {
            // NVML lists the processes of a whole MIG GPU for root only. Each MIG device has its own list.
            ProcessLists { error: Some(NvmlError::NoPermission), .. } if !mig_devices.is_empty() => mig_devices
                .iter()
                .map(|(instance, mig)| list(mig, Some(*instance)))
                .fold(ProcessLists::default(), ProcessLists::and),
            lists => lists,
        };
        gpu.unreadable = lists.error.map(|error| error.to_string());
        gpu.full = lists.full;
        let rows = lists.rows;
        GpuReading { gpu, rows, samples: samples(&device, since) }
    }
}

fn loader_message(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| source.to_string())
}

fn read_gpu(index: u32, library: &nvml_wrapper::Nvml, device: &Device) -> Gpu {
    let utilisation = device.utilization_rates().ok();
    Gpu {
        index,
        uuid: device.uuid().ok(),
        name: device.name().ok(),
        bus_id: device.pci_info().ok().map(|pci| pci.bus_id),
        memory: memory(library, device),
        utilisation: utilisation.as_ref().map(|u| u.gpu),
        memory_utilisation: utilisation.as_ref().map(|u| u.memory),
        temperature: device.temperature(TemperatureSensor::Gpu).ok(),
        power: device.power_usage().ok(),
        power_limit: device.enforced_power_limit().ok(),
        mig: Vec::new(),
        unreadable: None,
        full: false,
        samples: None,
    }
}

/// From R510 on NVML separates the driver's own memory from the users'; before, it counts both as used.
fn memory(library: &nvml_wrapper::Nvml, device: &Device) -> Option<Memory> {
    match device.memory_info() {
        Ok(info) => Some(Memory { total: info.total, used: info.used }),
        Err(_) => sys::memory_v1(library, device).ok().map(|(total, used)| Memory { total, used }),
    }
}

/// The MIG devices of a GPU; none where MIG is off or unknown.
fn mig_devices<'a>(library: &'a nvml_wrapper::Nvml, device: &Device<'a>) -> Vec<(Mig, Device<'a>)> {
    if !device.mig_mode().is_ok_and(|mode| mode.current != 0) {
        return Vec::new();
    }
    let count = device.mig_device_count().unwrap_or(0);
    let mig = |at| {
        let mig = device.mig_device_by_index(at).ok()?;
        Some((sys::instance(library, &mig).ok()?, mig))
    };
    (0..count).filter_map(mig).collect()
}

fn mig_device(instance: Mig, library: &nvml_wrapper::Nvml, mig: &Device) -> MigDevice {
    MigDevice { instance, uuid: mig.uuid().ok(), memory: memory(library, mig) }
}

/// The most processes that the driver lists (`NV2080_CTRL_GPU_GET_PIDS_MAX_COUNT`).
const DRIVER_LIST_LIMIT: usize = 950;

#[derive(Debug, Default)]
struct ProcessLists {
    rows: Vec<ProcessRow>,
    /// The first error, after which processes are missing.
    error: Option<NvmlError>,
    full: bool,
}

impl ProcessLists {
    /// Adds a list. `within` is the MIG device of the list, if any.
    fn with(mut self, kind: Kind, list: Result<Vec<ProcessInfo>, NvmlError>, within: Option<Mig>) -> ProcessLists {
        match list {
            Ok(list) => {
                self.full |= list.len() >= DRIVER_LIST_LIMIT;
                self.rows.extend(list.into_iter().filter_map(|info| row(kind, info, within)));
            }
            // Some products and releases lack some lists; all have the list of compute processes.
            Err(NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_))
                if kind != Kind::Compute => {}
            Err(error) => self.error = self.error.or(Some(error)),
        }
        self
    }

    fn and(mut self, other: ProcessLists) -> ProcessLists {
        self.rows.extend(other.rows);
        ProcessLists { rows: self.rows, error: self.error.or(other.error), full: self.full || other.full }
    }
}

/// Reads all process lists of a GPU or MIG device.
fn process_lists(library: &nvml_wrapper::Nvml, device: &Device, within: Option<Mig>) -> ProcessLists {
    let compute = newest(
        || device.running_compute_processes(),
        || device.running_compute_processes_v2(),
        || sys::processes_v1(library, device, sys::List::Compute),
    );
    let graphics = newest(
        || device.running_graphics_processes(),
        || device.running_graphics_processes_v2(),
        || sys::processes_v1(library, device, sys::List::Graphics),
    );
    let mps = newest(
        || device.mps_running_compute_processes(),
        || sys::processes_v1(library, device, sys::List::Mps),
        || Ok(Vec::new()),
    );
    [(Kind::Compute, compute), (Kind::Graphics, graphics), (Kind::Mps, mps)]
        .into_iter()
        .fold(ProcessLists::default(), |lists, (kind, list)| lists.with(kind, list, within))
}

fn row(kind: Kind, info: ProcessInfo, within: Option<Mig>) -> Option<ProcessRow> {
    let memory = match info.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    let of_row =
        info.gpu_instance_id.map(|gpu_instance| Mig { gpu_instance, compute_instance: info.compute_instance_id });
    Some(ProcessRow { pid: HostPid::new(info.pid)?, kind, memory, mig: of_row.or(within) })
}

/// Calls the newest version of a function that the library has. Retries if a list grew between two calls.
fn newest<T>(
    third: impl Fn() -> Result<T, NvmlError>,
    second: impl Fn() -> Result<T, NvmlError>,
    first: impl Fn() -> Result<T, NvmlError>,
) -> Result<T, NvmlError> {
    let with_retries = |call: &dyn Fn() -> Result<T, NvmlError>| {
        let mut result = call();
        for _ in 0..4 {
            match result {
                Err(NvmlError::InsufficientSize(_)) => result = call(),
                other => return other,
            }
        }
        result
    };
    match with_retries(&third) {
        Err(NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound) => {}
        other => return other,
    }
    match with_retries(&second) {
        Err(NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound) => with_retries(&first),
        other => other,
    }
}

/// The latest sample of each process. Some releases return slots that were never filled: they have no process, or more than 100 %.
fn samples(device: &Device, since: u64) -> Option<BTreeMap<HostPid, Utilisation>> {
    let mut samples = match device.process_utilization_stats(since) {
        Ok(samples) => samples,
        // No process has a sample.
        Err(NvmlError::NotFound) => Vec::new(),
        Err(_) => return None,
    };
    samples.sort_by_key(|sample| sample.timestamp);
    let valid = samples.iter().filter(|s| [s.sm_util, s.mem_util, s.enc_util, s.dec_util].iter().all(|u| *u <= 100));
    let of = valid.filter_map(|s| {
        let utilisation = Utilisation { gpu: s.sm_util, memory: s.mem_util, encoder: s.enc_util, decoder: s.dec_util };
        Some((HostPid::new(s.pid)?, utilisation))
    });
    Some(of.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(count: u32) -> Result<Vec<ProcessInfo>, NvmlError> {
        let info = |pid| ProcessInfo {
            pid,
            used_gpu_memory: UsedGpuMemory::Used(1),
            gpu_instance_id: None,
            compute_instance_id: None,
        };
        Ok((1..=count).map(info).collect())
    }

    #[test]
    fn failed_process_list_marks_answer_incomplete() {
        let both =
            |other| ProcessLists::default().with(Kind::Compute, listed(2), None).with(Kind::Graphics, Err(other), None);
        for lacking in [NvmlError::NotSupported, NvmlError::FunctionNotFound] {
            let lists = both(lacking);
            assert!(lists.error.is_none() && lists.rows.len() == 2, "{lists:?}");
        }
        for failing in [NvmlError::Unknown, NvmlError::GpuLost, NvmlError::InsufficientSize(None)] {
            let lists = both(failing);
            assert!(lists.error.is_some() && lists.rows.len() == 2, "{lists:?}");
        }
        let none = ProcessLists::default().with(Kind::Compute, Err(NvmlError::NotSupported), None);
        assert!(none.error.is_some(), "every GPU has that list");
    }

    #[test]
    fn failed_mig_part_marks_answer_incomplete() {
        let mig = |list| ProcessLists::default().with(Kind::Compute, list, None);
        let lists = mig(listed(1)).and(mig(Err(NvmlError::NoPermission))).and(mig(listed(1)));
        assert!(matches!(lists.error, Some(NvmlError::NoPermission)) && lists.rows.len() == 2, "{lists:?}");
    }

    #[test]
    fn full_length_list_counts_as_incomplete() {
        assert!(!ProcessLists::default().with(Kind::Compute, listed(949), None).full);
        let full = ProcessLists::default().with(Kind::Compute, listed(950), None);
        assert!(full.full && ProcessLists::default().and(full).full);
    }
}
