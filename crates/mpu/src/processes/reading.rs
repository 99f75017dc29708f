//! Reads NVML: the GPUs, and the rows of their process lists. Uses the newest functions of the installed release. A GPU that fails is
//! reported and does not hide the others.

use super::error::ProcessError;
use super::seen::{Gpu, Kind, Memory, Mig, MigDevice, Utilisation};
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

/// All of it at one moment.
#[derive(Debug, Default)]
pub struct Reading {
    pub gpus: Vec<GpuReading>,
}

impl Reading {
    /// Adds the driver's own samples, of which NVML gives means only: from 535 on without the idle ones. NVML has each GPU's node open, without
    /// which the driver makes no object of it.
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

/// Where it lies outside the linker's paths: Debian and Ubuntu, Red Hat and SUSE, NVIDIA's operator, Google's nodes, NixOS.
const PLACES: &[&str] = &[
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

/// The shortest time for utilisation: GPUs take samples up to a second apart.
const WINDOW: Duration = Duration::from_secs(1);
/// The longest time for utilisation.
const LONGEST: Duration = Duration::from_secs(15);

pub struct Nvml {
    library: nvml_wrapper::Nvml,
    last: Option<SystemTime>,
}

impl Nvml {
    /// Loads NVML, which becomes a client of the driver.
    pub fn load(host: &Host) -> Result<Nvml, ProcessError> {
        let mut missing = None;
        let places = PLACES.iter().map(|dir| host.at(dir).join(LIBRARY)).filter(|path| path.exists());
        for path in std::iter::once(LIBRARY.into()).chain(places) {
            match nvml_wrapper::Nvml::builder().lib_path(OsStr::new(&path)).init() {
                Ok(library) => return Ok(Nvml { library, last: None }),
                // Report the first failure: it is about the library that the host's programs would load. Its text has the loader's words, so its
                // source is left out.
                Err(NvmlError::LibloadingError(error)) => missing = missing.or(Some(loaders_words(&error))),
                Err(error) => return Err(ProcessError::sorted("nvmlInit", error)),
            }
        }
        Err(ProcessError::NoLibrary { why: missing.unwrap_or_else(|| format!("no {LIBRARY}")) })
    }

    pub fn read(&mut self) -> Result<Reading, ProcessError> {
        let now = SystemTime::now();
        let elapsed = self.last.and_then(|last| now.duration_since(last).ok()).unwrap_or(WINDOW);
        let since = now - elapsed.clamp(WINDOW, LONGEST);
        self.last = Some(now);
        let since = since.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
        let count = self.library.device_count().map_err(|e| ProcessError::sorted("nvmlDeviceGetCount", e))?;
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
        let parts = parts(&self.library, &device);
        let mut gpu = figures(index, &self.library, &device);
        gpu.mig = parts.iter().map(|(instance, part)| mig_device(*instance, &self.library, part)).collect();
        let list = |device: &Device, mig| lists(&self.library, device, mig);
        let lists = match list(&device, None) {
            // NVML lists a whole divided GPU for root only; each part has its own list.
            Lists { trouble: Some(NvmlError::NoPermission), .. } if !parts.is_empty() => {
                parts.iter().map(|(instance, part)| list(part, Some(*instance))).fold(Lists::default(), Lists::and)
            }
            lists => lists,
        };
        gpu.unreadable = lists.trouble.map(|error| error.to_string());
        gpu.full = lists.full;
        let rows = lists.rows;
        GpuReading { gpu, rows, samples: samples(&device, since) }
    }
}

fn loaders_words(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| source.to_string())
}

fn figures(index: u32, library: &nvml_wrapper::Nvml, device: &Device) -> Gpu {
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
fn parts<'a>(library: &'a nvml_wrapper::Nvml, device: &Device<'a>) -> Vec<(Mig, Device<'a>)> {
    if !device.mig_mode().is_ok_and(|mode| mode.current != 0) {
        return Vec::new();
    }
    let count = device.mig_device_count().unwrap_or(0);
    let part = |at| {
        let part = device.mig_device_by_index(at).ok()?;
        Some((sys::instance(library, &part).ok()?, part))
    };
    (0..count).filter_map(part).collect()
}

fn mig_device(instance: Mig, library: &nvml_wrapper::Nvml, part: &Device) -> MigDevice {
    MigDevice { instance, uuid: part.uuid().ok(), memory: memory(library, part) }
}

/// The most processes that the driver lists (`NV2080_CTRL_GPU_GET_PIDS_MAX_COUNT`).
const MOST_LISTED: usize = 950;

#[derive(Debug, Default)]
struct Lists {
    rows: Vec<ProcessRow>,
    /// The first failure: processes are missing.
    trouble: Option<NvmlError>,
    full: bool,
}

impl Lists {
    /// Adds a list. `within` is the MIG part, if the device is one.
    fn with(mut self, kind: Kind, list: Result<Vec<ProcessInfo>, NvmlError>, within: Option<Mig>) -> Lists {
        match list {
            Ok(list) => {
                self.full |= list.len() >= MOST_LISTED;
                self.rows.extend(list.into_iter().filter_map(|info| row(kind, info, within)));
            }
            // Some products and releases lack some lists; all have the list of compute processes.
            Err(NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_))
                if kind != Kind::Compute => {}
            Err(error) => self.trouble = self.trouble.or(Some(error)),
        }
        self
    }

    fn and(mut self, other: Lists) -> Lists {
        self.rows.extend(other.rows);
        Lists { rows: self.rows, trouble: self.trouble.or(other.trouble), full: self.full || other.full }
    }
}

/// All lists of a GPU, or of a MIG part.
fn lists(library: &nvml_wrapper::Nvml, device: &Device, within: Option<Mig>) -> Lists {
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
        .fold(Lists::default(), |lists, (kind, list)| lists.with(kind, list, within))
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

/// Calls the newest function of this release. Retries if a list grew between two calls.
fn newest<T>(
    third: impl Fn() -> Result<T, NvmlError>,
    second: impl Fn() -> Result<T, NvmlError>,
    first: impl Fn() -> Result<T, NvmlError>,
) -> Result<T, NvmlError> {
    let patiently = |ask: &dyn Fn() -> Result<T, NvmlError>| {
        let mut answer = ask();
        for _ in 0..4 {
            match answer {
                Err(NvmlError::InsufficientSize(_)) => answer = ask(),
                other => return other,
            }
        }
        answer
    };
    match patiently(&third) {
        Err(NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound) => {}
        other => return other,
    }
    match patiently(&second) {
        Err(NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound) => patiently(&first),
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
    let sound = samples.iter().filter(|s| [s.sm_util, s.mem_util, s.enc_util, s.dec_util].iter().all(|u| *u <= 100));
    let of = sound.filter_map(|s| {
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
        let both = |other| Lists::default().with(Kind::Compute, listed(2), None).with(Kind::Graphics, Err(other), None);
        for lacking in [NvmlError::NotSupported, NvmlError::FunctionNotFound] {
            let lists = both(lacking);
            assert!(lists.trouble.is_none() && lists.rows.len() == 2, "{lists:?}");
        }
        for failing in [NvmlError::Unknown, NvmlError::GpuLost, NvmlError::InsufficientSize(None)] {
            let lists = both(failing);
            assert!(lists.trouble.is_some() && lists.rows.len() == 2, "{lists:?}");
        }
        let none = Lists::default().with(Kind::Compute, Err(NvmlError::NotSupported), None);
        assert!(none.trouble.is_some(), "every GPU has that list");
    }

    #[test]
    fn failed_mig_part_marks_answer_incomplete() {
        let part = |list| Lists::default().with(Kind::Compute, list, None);
        let lists = part(listed(1)).and(part(Err(NvmlError::NoPermission))).and(part(listed(1)));
        assert!(matches!(lists.trouble, Some(NvmlError::NoPermission)) && lists.rows.len() == 2, "{lists:?}");
    }

    #[test]
    fn full_length_list_counts_as_incomplete() {
        assert!(!Lists::default().with(Kind::Compute, listed(949), None).full);
        let full = Lists::default().with(Kind::Compute, listed(950), None);
        assert!(full.full && Lists::default().and(full).full);
    }
}
