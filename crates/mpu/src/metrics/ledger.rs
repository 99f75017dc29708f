//! Sums memory and work over time, and counts ended processes. There is one account per container or job on each GPU or
//! MIG instance, and one per GPU.
//!
//! The time between two readings counts with the values of the first, for processes and GPUs alike. So the processes'
//! sums and the residue always add up to the GPU's sum, and a new row begins at 0, as Prometheus' `increase` expects. A
//! process counts slightly too short at its beginning and too long at its end. The driver's accounting, off by default,
//! would correct only the ends, so that sums would become too small.
//!
//! The driver lists an ended process while another process holds its memory. `/proc` no longer shows the owner, but the
//! previous reading has it. A PID is kept only until the next reading.

use super::text::Labels;
use super::usage::{Container, Gpu, Job, Label, Usage, Use, owner_labels};
use crate::processes::EngineSample;
use mpu_core::HostPid;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The longest time between two readings that counts. The rest is not observed.
pub const LONGEST_GAP: Duration = Duration::from_secs(300);
/// How long an account stays after its last process, so that each scraper fetches the last value.
pub const RETENTION: Duration = Duration::from_secs(900);
/// The most accounts without processes. Above that, the owner with the most accounts loses the oldest, so an owner that
/// starts many containers evicts no other owner's accounts.
pub const RETAINED_LIMIT: usize = 1000;
/// The longest time between two of the driver's samples. After a longer gap, sampling had stopped.
const MAX_SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// The most processes that are kept although a full list lacks them.
const UNLISTED_LIMIT: usize = 1000;

/// The accounts since the exporter began.
#[derive(Debug, Default)]
pub struct Ledger {
    accounts: BTreeMap<Tenant, Account>,
    devices: BTreeMap<(u32, String), Device>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tenant {
    gpu: u32,
    uuid: String,
    mig: String,
    container: Option<Container>,
    job: Job,
}

/// What a container or the host used since the exporter began.
#[derive(Debug, Clone, Copy)]
pub struct Account {
    /// Memory over time, in bytes times seconds; none if the driver never reported memory.
    pub byte_seconds: Option<f64>,
    /// Time in which its processes held the GPU and did no work on it; none if the driver never reported their work.
    pub idle_seconds: Option<f64>,
    /// Time in which its processes kept the multiprocessors busy; none if the driver never reported samples.
    pub sm_seconds: Option<f64>,
    /// The number of processes that were in one reading and not in the next.
    pub ended: u64,
    /// The user of a job without a container.
    user: Option<u32>,
    seen: Instant,
}

/// A GPU's account, and its last reading.
#[derive(Debug)]
pub struct Device {
    /// Memory in use over time, in bytes times seconds; none if the driver does not report it.
    pub byte_seconds: Option<f64>,
    /// The time that the sums cover.
    pub observed: Duration,
    at: Instant,
    used: Option<u64>,
    /// The time of the newest counted sample.
    sampled: Option<u64>,
    amounts: Vec<(Tenant, TenantAmounts)>,
    processes: BTreeMap<Process, Use>,
}

/// A tenant's amounts on a GPU until the next reading.
#[derive(Debug, Clone, Copy)]
struct TenantAmounts {
    memory: Option<u64>,
    is_idle: Option<bool>,
    is_sampled: bool,
    user: Option<u32>,
}

/// The owner of containers: a Kubernetes namespace, or else a runtime's user. The owner of jobs: their user.
type Owner = (String, String);

/// A process on a GPU or MIG instance. Its start time distinguishes it from a later process with the same PID.
type Process = (HostPid, u64, String);

impl Ledger {
    /// Counts the values of the previous reading up to `now`, and stores this reading. If a GPU's processes could not
    /// be read, the GPU does not change. Rows of processes that `/proc` does not show get their owner from the previous
    /// reading. Without one they are removed from `usage`.
    pub fn book(&mut self, now: Instant, usage: &mut Usage) {
        self.restore_owners(usage);
        let usage = &*usage;
        for gpu in usage.gpus.iter().filter(|gpu| gpu.readable) {
            let is_on_gpu = |row: &&Use| row.gpu == gpu.index && row.uuid == gpu.uuid;
            let mut processes: BTreeMap<Process, Use> =
                usage.uses.iter().filter(is_on_gpu).filter_map(|row| Some((process(row)?, row.clone()))).collect();
            let device = self.devices.entry((gpu.index, gpu.uuid.clone())).or_insert_with(|| Device::new(now));
            let gap = now.saturating_duration_since(device.at).min(LONGEST_GAP);
            device.observed += gap;
            add(&mut device.byte_seconds, device.used, gap);
            for (tenant, amounts) in &device.amounts {
                account(&mut self.accounts, tenant, now).add(amounts, gap);
            }
            if let Some(samples) = &gpu.samples {
                for (pid, seconds) in busy_time(samples, device.sampled, gap) {
                    let mut rows = processes.values().chain(device.processes.values());
                    if let Some(row) = rows.find(|row| row.pid == pid && row.mig.is_empty()) {
                        let account = account(&mut self.accounts, &Tenant::of(row), now);
                        account.sm_seconds = Some(account.sm_seconds.unwrap_or_default() + seconds);
                    }
                }
                device.sampled = samples.last().map(|sample| sample.time).or(device.sampled);
            }
            let gone = device.processes.iter().filter(|(process, _)| !processes.contains_key(process));
            if gpu.full {
                // A full list may lack a process. The process counts as ended once a list with room lacks it.
                let unlisted: Vec<_> =
                    gone.take(UNLISTED_LIMIT).map(|(process, row)| (process.clone(), row.clone())).collect();
                processes.extend(unlisted);
            } else {
                for (_, row) in gone {
                    account(&mut self.accounts, &Tenant::of(row), now).ended += 1;
                }
            }
            device.amounts = amounts(usage.uses.iter().filter(is_on_gpu), gpu).into_iter().collect();
            (device.at, device.used, device.processes) = (now, gpu.used, processes);
            // Each account begins at 0 with its first reading.
            add(&mut device.byte_seconds, device.used, Duration::ZERO);
            for (tenant, amounts) in &device.amounts {
                account(&mut self.accounts, tenant, now).add(amounts, Duration::ZERO);
            }
        }
        self.prune(now);
    }

    /// Sets the owner of rows that `/proc` does not show, from the previous reading. Without one the row is removed.
    /// Its memory is then in the GPU's residue, and neither a container nor the host is charged.
    fn restore_owners(&self, usage: &mut Usage) {
        usage.uses.retain_mut(|row| {
            if row.start_ticks.is_none() {
                let device = self.devices.get(&(row.gpu, row.uuid.clone()));
                let before = device.and_then(|device| {
                    // If several had this PID, the latest.
                    device.processes.values().rev().find(|before| before.pid == row.pid && before.mig == row.mig)
                });
                let Some(before) = before else { return false };
                row.start_ticks = before.start_ticks;
                row.container.clone_from(&before.container);
                row.container_pid = before.container_pid;
                row.job.clone_from(&before.job);
                row.uid = before.uid;
            }
            true
        });
    }

    pub fn accounts(&self, extra_labels: &[Label]) -> impl Iterator<Item = (Labels, Account)> {
        self.accounts.iter().map(|(tenant, account)| (tenant.labels(extra_labels), *account))
    }

    /// By GPU: its index, its UUID, its account.
    pub fn devices(&self) -> impl Iterator<Item = (u32, &str, &Device)> {
        self.devices.iter().map(|((gpu, uuid), device)| (*gpu, uuid.as_str(), device))
    }

    /// Removes accounts that no scrape needs any more. This bounds the memory.
    fn prune(&mut self, now: Instant) {
        self.devices.retain(|_, device| now.saturating_duration_since(device.at) < RETENTION);
        let present: BTreeSet<&Tenant> =
            self.devices.values().flat_map(|d| d.amounts.iter().map(|(tenant, _)| tenant)).collect();
        let mut gone: BTreeMap<Owner, BTreeSet<(Instant, Tenant)>> = BTreeMap::new();
        for (tenant, account) in self.accounts.iter().filter(|(tenant, _)| !present.contains(tenant)) {
            gone.entry(tenant.owner(account.user)).or_default().insert((account.seen, tenant.clone()));
        }
        let mut count: usize = gone.values().map(BTreeSet::len).sum();
        while count > RETAINED_LIMIT {
            let Some((_, tenant)) =
                gone.values_mut().max_by_key(|accounts_of_owner| accounts_of_owner.len()).and_then(BTreeSet::pop_first)
            else {
                break;
            };
            self.accounts.remove(&tenant);
            count -= 1;
        }
        for (seen, tenant) in gone.values().flatten() {
            if now.saturating_duration_since(*seen) >= RETENTION {
                self.accounts.remove(tenant);
            }
        }
    }
}

fn process(row: &Use) -> Option<Process> {
    Some((row.pid, row.start_ticks?, row.mig.clone()))
}

/// The account of a tenant, created if there is none.
fn account<'a>(accounts: &'a mut BTreeMap<Tenant, Account>, tenant: &Tenant, now: Instant) -> &'a mut Account {
    let new = Account { byte_seconds: None, idle_seconds: None, sm_seconds: None, ended: 0, user: None, seen: now };
    let account = accounts.entry(tenant.clone()).or_insert(new);
    account.seen = now;
    account
}

/// The amounts of each tenant on a GPU. A tenant is busy if one of its processes is. Otherwise, if the driver does not
/// report one of them, it is unknown whether the tenant is busy.
fn amounts<'a>(uses: impl Iterator<Item = &'a Use>, gpu: &Gpu) -> BTreeMap<Tenant, TenantAmounts> {
    let mut amounts: BTreeMap<Tenant, TenantAmounts> = BTreeMap::new();
    for row in uses {
        let is_sampled = gpu.samples.is_some() && row.mig.is_empty();
        let new = TenantAmounts { memory: None, is_idle: Some(true), is_sampled, user: None };
        let all = amounts.entry(Tenant::of(row)).or_insert(new);
        if let Some(memory) = row.memory {
            all.memory = Some(all.memory.unwrap_or_default().saturating_add(memory));
        }
        all.is_idle = match (all.is_idle, row.is_idle()) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        };
        // Root's processes are Slurm's own.
        all.user = row.uid.filter(|uid| *uid != 0).or(all.user);
    }
    amounts
}

/// How long each process kept the multiprocessors busy, in seconds, by the samples after the last counted one. If the
/// driver's buffer lost samples in between, the remaining ones are scaled to the whole time.
fn busy_time(samples: &[EngineSample], last: Option<u64>, gap: Duration) -> BTreeMap<HostPid, f64> {
    let mut busy: BTreeMap<HostPid, f64> = BTreeMap::new();
    // If the driver was reloaded, its clock may have restarted.
    let newest = samples.last().map_or(0, |sample| sample.time);
    let Some(last) = last.filter(|last| *last <= newest) else { return busy };
    let longest = MAX_SAMPLE_INTERVAL.as_nanos() as u64;
    let lost = samples.first().is_some_and(|oldest| oldest.time > last.saturating_add(longest));
    // If samples were lost, the start of the oldest remaining one is unknown.
    let begin = if lost { samples.first().map_or(last, |oldest| oldest.time) } else { last };
    let (mut before, mut covered) = (begin, 0.0);
    for sample in samples.iter().filter(|sample| sample.time > begin) {
        let seconds = (sample.time - before).min(longest) as f64 / 1e9;
        (before, covered) = (sample.time, covered + seconds);
        if let Some(pid) = sample.pid.and_then(HostPid::new) {
            *busy.entry(pid).or_default() += seconds * f64::from(sample.busy) / 1e4;
        }
    }
    let scale = if lost && covered > 0.0 { (gap.as_secs_f64() / covered).max(1.0) } else { 1.0 };
    busy.values_mut().for_each(|seconds| *seconds *= scale);
    busy
}

impl Account {
    fn add(&mut self, amounts: &TenantAmounts, time: Duration) {
        add(&mut self.byte_seconds, amounts.memory, time);
        add(&mut self.idle_seconds, amounts.is_idle.map(u64::from), time);
        add(&mut self.sm_seconds, amounts.is_sampled.then_some(0), time);
        self.user = amounts.user.or(self.user);
    }
}

fn add(sum: &mut Option<f64>, amount: Option<u64>, time: Duration) {
    if let Some(amount) = amount {
        *sum = Some(sum.unwrap_or_default() + amount as f64 * time.as_secs_f64());
    }
}

impl Device {
    fn new(now: Instant) -> Device {
        Device {
            byte_seconds: None,
            observed: Duration::ZERO,
            at: now,
            used: None,
            sampled: None,
            amounts: Vec::new(),
            processes: BTreeMap::new(),
        }
    }
}

impl Tenant {
    fn of(row: &Use) -> Tenant {
        let (uuid, mig) = (row.uuid.clone(), row.mig.clone());
        Tenant { gpu: row.gpu, uuid, mig, container: row.container.clone(), job: row.job.clone() }
    }

    fn owner(&self, user: Option<u32>) -> Owner {
        match (&self.container, user) {
            (Some(container), _) => container.owner(),
            (None, Some(user)) if !self.job.is_none() => (String::new(), user.to_string()),
            _ => Owner::default(),
        }
    }

    fn labels(&self, extra_labels: &[Label]) -> Labels {
        owner_labels((self.gpu, &self.uuid, &self.mig), self.container.as_ref(), &self.job, extra_labels)
    }
}
