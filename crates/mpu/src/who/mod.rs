//! `mpu who`: lists the processes and modules that hold the driver or one of its GPUs, their owners, and the commands
//! that end them.
//!
//! [`mpu_host::holders`] finds them. NVML is not used, because it opens the driver.

mod end;
mod error;

pub use error::WhoError;

use crate::listing::filter::gpu_matches;
use crate::processes::{Cache, Depth, Gpu, ProcessError, user_of};
use mpu_core::{HostPid, ViewPid};
use mpu_host::cgroup::Job;
use mpu_host::containers::Container;
use mpu_host::driver::Driver;
use mpu_host::holders::modules::{self, Module};
use mpu_host::holders::nodes::DriverGpu;
use mpu_host::holders::{Holder, InFlight, Scan, Scanner, Use};
use mpu_host::host::{CAP_SYS_PTRACE, Host};
use mpu_host::time;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Options of `mpu who`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct WhoOptions {
    /// Only what holds this GPU: by index, UUID or bus address; the beginning or the end of a UUID or address is enough
    #[arg(long, value_name = "GPU")]
    pub gpu: Option<String>,

    /// Wait until nothing holds it, at most this long
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=604_800))]
    pub wait: Option<u64>,
}

/// What holds the driver, or the GPU of `--gpu`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Who {
    /// When it was looked, in seconds since 1970.
    pub at: u64,
    /// The loaded driver's version; null if none is loaded.
    pub driver: Option<String>,
    /// The GPU of `--gpu`; null for the whole driver.
    pub gpu: Option<GpuView>,
    /// Whether it can be unloaded, or the GPU reset or handed over, once the modules that use the driver are unloaded.
    pub free: bool,
    /// The processes that hold it, by PID.
    pub processes: Vec<ProcessView>,
    /// The driver's modules and those that use it, each before what it uses.
    pub modules: Vec<ModuleView>,
    /// Processes at whose sockets descriptors wait to be received. The kernel does not show whether they are the driver's.
    pub in_flight: Vec<InFlight>,
    /// Processes that could not be looked at, or in part only.
    pub not_read: Vec<HostPid>,
    /// What may be missing, and why.
    pub notes: Vec<String>,
    /// Whether the time to wait is over.
    #[serde(skip)]
    pub has_waited: bool,
}

/// A GPU of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GpuView {
    /// Its place in the order of PCI addresses, as nvidia-smi counts.
    pub index: u32,
    /// `GPU-…`; null before the driver has started it.
    pub uuid: Option<String>,
    /// `00000000:65:00.0`
    pub bus_id: String,
}

/// A process that holds the driver.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ProcessView {
    /// The process's number on the host.
    pub pid: HostPid,
    /// Its number in the innermost PID namespace; null for a process of the host's own.
    pub container_pid: Option<ViewPid>,
    /// What NVIDIA's program it is, by its executable's name; null for any other.
    pub role: Option<Role>,
    /// The driver's nodes that it holds.
    pub uses: Vec<Use>,
    /// Its container.
    pub container: Option<Container>,
    /// Its Slurm job.
    pub job: Option<Job>,
    /// The systemd unit of the host that it is in; null if it is in none.
    pub unit: Option<String>,
    /// Its user's number.
    pub uid: Option<u32>,
    /// Its user's name on the host.
    pub user: Option<String>,
    /// The program's name, as the kernel has it.
    pub name: Option<String>,
    /// The command line; null if the process does not let it be read.
    pub command: Option<String>,
    /// When it started, in seconds since 1970.
    pub started: Option<u64>,
    /// The command that ends it, for root; null for the host's process 1.
    pub end: Option<String>,
}

/// A program of NVIDIA's that holds the driver for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// nvidia-persistenced: it keeps GPUs started.
    Persistenced,
    /// nvidia-cuda-mps-control: it starts MPS servers.
    MpsControl,
    /// nvidia-cuda-mps-server: its clients compute through it.
    MpsServer,
}

/// A kernel module that is the driver, or uses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModuleView {
    /// Its name.
    pub name: String,
    /// Its references, each of which keeps it loaded; null on a kernel that unloads no module.
    pub references: Option<u32>,
    /// The modules that use it; each has one of its references.
    pub holders: Vec<String>,
    /// The processes that hold nodes of it.
    pub processes: Vec<HostPid>,
    /// The command that unloads it, once nothing uses it.
    pub end: String,
}

/// The shortest time between two scans of `/proc` while waiting.
const SCAN_INTERVAL: Duration = Duration::from_millis(500);

/// Scans once, or until the driver is free if `--wait` is given. `log` gets a line whenever the summary of holders
/// changes.
///
/// # Errors
/// Without root's rights, outside the host's PID namespace, or if there is no such GPU.
pub fn who(host: &Host, options: &WhoOptions, log: &dyn Fn(&str)) -> Result<Who, WhoError> {
    check_access(host)?;
    let end = options.wait.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let (mut scanner, mut logged) = (Scanner::default(), String::new());
    let gpu = options.gpu.as_deref().map(|requested| find_gpu(host, &mut scanner, requested, end, log)).transpose()?;
    loop {
        let began = Instant::now();
        let observation = Observation::of(host, gpu.as_ref(), &mut scanner)?;
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let Some(left) = left.filter(|left| !observation.is_free && !left.is_zero()) else {
            return Ok(Who { has_waited: end.is_some(), ..observation.report(host, gpu.as_ref()) });
        };
        let line = format!("waiting for {}", observation.summary());
        if line != logged {
            log(&line);
            logged = line;
        }
        // On a host with many processes, a scan takes at most a tenth of the time.
        std::thread::sleep(left.min(SCAN_INTERVAL.max(began.elapsed() * 10)));
    }
}

fn check_access(host: &Host) -> Result<(), WhoError> {
    if !host.has_capability(CAP_SYS_PTRACE) {
        return Err(WhoError::NotRoot);
    }
    if !host.in_init_pid_namespace() {
        return Err(ProcessError::NotOnHost.into());
    }
    match host.at("/proc/1").is_dir() {
        true => Ok(()),
        false => Err(WhoError::Hidden),
    }
}

/// Finds a GPU. Waits until `end` for a driver that is not loaded yet, or has not yet described all of its GPUs.
fn find_gpu(
    host: &Host,
    scanner: &mut Scanner,
    requested: &str,
    end: Option<Instant>,
    log: &dyn Fn(&str),
) -> Result<DriverGpu, WhoError> {
    let as_listed = |gpu: &DriverGpu| Gpu {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        bus_id: Some(bus_id(&gpu.address)),
        ..Gpu::default()
    };
    let mut is_logged = false;
    loop {
        let gpus = scanner.gpus(host);
        if let Some(found) = gpus.iter().find(|gpu| gpu_matches(&as_listed(gpu), requested)) {
            return Ok(found.clone());
        }
        let is_late = gpus.is_empty() || gpus.iter().any(|gpu| gpu.minor.is_none() || gpu.uuid.is_none());
        let left = end.map(|end| end.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero());
        let Some(left) = left.filter(|_| is_late) else {
            let has = gpus.iter().map(|gpu| gpu.index.to_string()).collect::<Vec<_>>().join(", ");
            let has = if has.is_empty() { "none".to_string() } else { has };
            return Err(ProcessError::NoSuchGpu { requested: requested.to_string(), has }.into());
        };
        if !is_logged {
            log(&format!("waiting for the driver to describe GPU {requested}"));
            is_logged = true;
        }
        std::thread::sleep(left.min(SCAN_INTERVAL));
    }
}

/// As NVML writes it: the domain has eight digits.
fn bus_id(address: &str) -> String {
    format!("0000{address}").to_uppercase()
}

/// The result of one scan.
struct Observation {
    driver: Option<String>,
    scan: Scan,
    modules: Vec<Module>,
    is_free: bool,
}

impl Observation {
    fn of(host: &Host, gpu: Option<&DriverGpu>, scanner: &mut Scanner) -> Result<Observation, WhoError> {
        let Some(driver) = Driver::loaded(host) else {
            return Ok(Observation { driver: None, scan: Scan::default(), modules: Vec::new(), is_free: true });
        };
        let mut scan = scanner.scan(host).map_err(|source| WhoError::NoProc { source })?;
        if let Some(gpu) = gpu {
            scan.holders.retain(|holder| may_hold(holder, gpu.index));
        }
        let modules = modules::modules(host);
        let is_clear = scan.holders.is_empty() && scan.not_read.is_empty();
        // The kernel's reference counts also include users that no process shows.
        let is_free = match gpu {
            None => modules::is_free(&modules).unwrap_or(is_clear),
            Some(_) => is_clear,
        };
        Ok(Observation { driver: Some(driver.version), scan, modules, is_free })
    }

    fn summary(&self) -> String {
        let count = |count: usize, one: &str, more: &str| format!("{count} {}", if count == 1 { one } else { more });
        let references: u32 = self.modules.iter().filter_map(Module::used).sum();
        let processes = count(self.scan.holders.len(), "process", "processes");
        format!(
            "{processes}; {}",
            count(references as usize, "reference of the driver's modules", "references of the driver's modules")
        )
    }

    fn report(self, host: &Host, gpu: Option<&DriverGpu>) -> Who {
        let Observation { driver, scan, modules, is_free } = self;
        let mut cache = Cache::new(Depth::WithoutHomes);
        let context = cache.begin(host, BTreeSet::new());
        let mut units: BTreeMap<String, Option<u32>> = BTreeMap::new();
        let processes: Vec<ProcessView> = scan
            .holders
            .iter()
            .filter_map(|holder| {
                let executable = std::fs::read_link(host.at(format!("/proc/{}/exe", holder.pid.get()))).ok();
                // If the process has ended since the scan, its PID may belong to another process.
                let facts = cache.of_started(&context, holder.pid, holder.start_ticks)?;
                let (container, job) = (facts.container, facts.job);
                let own = facts.unit.clone().filter(|unit| {
                    let user = units.entry(unit.clone()).or_insert_with_key(|unit| only_user(host, unit));
                    user.is_some() && *user == facts.uid
                });
                let name = |unit: String| unit.rsplit('/').next().map(str::to_string);
                let (own, unit) = (own.and_then(name), facts.unit.and_then(name));
                Some(ProcessView {
                    pid: holder.pid,
                    container_pid: facts.container_pid,
                    role: executable.as_deref().and_then(|path| path.file_name()?.to_str()).and_then(role),
                    uses: holder.uses.clone(),
                    end: end::end_command(holder.pid, container.as_ref(), job.as_ref(), own.as_deref()),
                    container,
                    job,
                    unit,
                    uid: facts.uid,
                    user: facts.user,
                    name: facts.name,
                    command: facts.command,
                    started: facts.started,
                })
            })
            .collect();
        let notes = notes(&scan, &modules, gpu.is_some(), is_free);
        let modules = modules.into_iter().map(|module| ModuleView::of(module, &scan.holders)).collect();
        let gpu = gpu.map(|gpu| GpuView { index: gpu.index, uuid: gpu.uuid.clone(), bus_id: bus_id(&gpu.address) });
        Who {
            at: time::now(),
            driver,
            gpu,
            free: is_free,
            processes,
            modules,
            in_flight: scan.in_flight,
            not_read: scan.not_read,
            notes,
            has_waited: false,
        }
    }
}

/// The user of all processes in a unit's cgroup. None if there are several users, such as cron's jobs or JupyterHub's
/// notebooks.
fn only_user(host: &Host, unit: &str) -> Option<u32> {
    // Version 2, systemd's hierarchy of version 1, and version 2 beside version 1.
    let lists = ["", "/systemd", "/unified"].map(|mount| format!("/sys/fs/cgroup{mount}{unit}/cgroup.procs"));
    let list = lists.iter().find_map(|list| host.bounded(list, UNIT_PROCS_LIMIT).filter(|list| !list.is_empty()))?;
    let list = String::from_utf8_lossy(&list);
    let mut users = list.lines().filter_map(|pid| user_of(host, HostPid::new(pid.parse().ok()?)?));
    let first = users.next()?;
    users.all(|user| user == first).then_some(first)
}

/// The longest list of a unit's PIDs in bytes: about 8,000 PIDs. A larger unit is not stopped for one process.
const UNIT_PROCS_LIMIT: usize = 64 << 10;

/// Whether a process may hold this GPU: it has the GPU's node, or only nodes that belong to all GPUs.
fn may_hold(holder: &Holder, index: u32) -> bool {
    let mut gpus = holder.uses.iter().filter_map(|used| used.node.gpu).peekable();
    gpus.peek().is_none() || gpus.any(|gpu| gpu == index)
}

fn role(executable: &str) -> Option<Role> {
    // The kernel appends this to the name if an update replaced the program.
    Some(match executable.strip_suffix(" (deleted)").unwrap_or(executable) {
        "nvidia-persistenced" => Role::Persistenced,
        "nvidia-cuda-mps-control" => Role::MpsControl,
        "nvidia-cuda-mps-server" => Role::MpsServer,
        _ => return None,
    })
}

impl Role {
    /// As a table shows it.
    pub fn description(self) -> &'static str {
        match self {
            Role::Persistenced => "persistence daemon",
            Role::MpsControl => "MPS control daemon",
            Role::MpsServer => "MPS server",
        }
    }
}

impl ModuleView {
    fn of(module: Module, holders: &[Holder]) -> ModuleView {
        let has = |holder: &&Holder| holder.uses.iter().any(|used| used.node.module == module.name);
        let processes = holders.iter().filter(has).map(|holder| holder.pid).collect();
        let end = format!("rmmod {}", module.name);
        ModuleView { references: module.references, holders: module.holders, processes, end, name: module.name }
    }
}

fn notes(scan: &Scan, modules: &[Module], of_gpu: bool, is_free: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if !scan.not_read.is_empty() {
        let pids = first_pids(scan.not_read.iter().copied());
        notes.push(format!("processes could not be looked at, or in part only: PID {pids}"));
    }
    let used: Vec<String> = modules
        .iter()
        .filter_map(|module| Some((module, module.used().filter(|used| *used > 0)?)))
        .map(|(module, used)| format!("{} {used}", module.name))
        .collect();
    if scan.holders.is_empty() && !used.is_empty() && !is_free && !of_gpu {
        notes.push(format!(
            "modules are used ({}), and no process in /proc shows it: a descriptor in flight in a socket, one that an io_uring holds, \
            or the kernel itself, such as a console",
            used.join(", ")
        ));
    }
    // The kernel counts references per module, not per GPU.
    if !scan.in_flight.is_empty() && (!is_free || of_gpu) {
        let pids = first_pids(scan.in_flight.iter().map(|one| one.pid));
        notes.push(format!(
            "descriptors wait in sockets of PID {pids}; the kernel does not show whether they are the driver's"
        ));
    }
    notes
}

/// The first PIDs, for a line.
fn first_pids(mut pids: impl Iterator<Item = HostPid>) -> String {
    let first_pids: Vec<String> = pids.by_ref().take(8).map(|pid| pid.get().to_string()).collect();
    first_pids.join(", ") + pids.next().map_or("", |_| ", …")
}

#[cfg(test)]
mod tests;
