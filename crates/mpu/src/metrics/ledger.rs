//! Memory over time and processes that ended: what one reading cannot tell.
//!
//! Owns the accounts: one per container and GPU (or MIG instance), one per GPU. Knows nothing of where readings come
//! from, has no clock of its own, and keeps no PID longer than until the next reading.
//!
//! From one reading to the next, what the first one found counts: to the processes, to the GPU, by the same rule. So the
//! processes' sums and the residue make up the GPU's sum whatever happened in between, and a new row begins at 0, as
//! Prometheus' `increase` wants it. A process counts a little too long at its end, and that much too short at its
//! beginning. The driver's accounting, which is off unless an administrator switched it on, would correct the ends alone, and
//! sums would come out too small.
//!
//! The driver lists a process that has ended for as long as anybody keeps its memory. `/proc` does not say whose that is
//! any more; the reading before does.

use super::text::Labels;
use super::usage::{Container, Label, Usage, Use, Whose};
use mpu_core::HostPid;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Readings further apart say little of the time between: it counts up to here, and the rest as not observed.
pub const LONGEST_GAP: Duration = Duration::from_secs(300);
/// How long an account stays after its last process: long enough for every scraper to fetch its last figure.
pub const KEPT: Duration = Duration::from_secs(900);
/// How many accounts without processes are kept at most. The user with most of them loses the oldest: a user who starts containers without end
/// pushes out no other user's.
pub const MOST_KEPT: usize = 1000;
/// How many processes are remembered that a full list may lack.
const MOST_UNLISTED: usize = 1000;

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
}

/// What a container or the host used since the exporter began.
#[derive(Debug, Clone, Copy)]
pub struct Account {
    /// Memory over time, in bytes times seconds; none where the driver never said how much memory.
    pub byte_seconds: Option<f64>,
    /// Time in which its processes had the GPU and did nothing with it; none where the driver never said whether they did.
    pub idle_seconds: Option<f64>,
    /// Processes that were there at one reading and not at the next.
    pub ended: u64,
    seen: Instant,
}

/// A GPU's own account, and its last reading.
#[derive(Debug)]
pub struct Device {
    /// Memory in use over time, in bytes times seconds; none where the driver does not say.
    pub byte_seconds: Option<f64>,
    /// How much time is in the sums.
    pub observed: Duration,
    at: Instant,
    used: Option<u64>,
    held: Vec<(Tenant, Held)>,
    there: BTreeMap<Process, Use>,
}

/// What a tenant has of a GPU until the next reading.
#[derive(Debug, Clone, Copy)]
struct Held {
    memory: Option<u64>,
    is_idle: Option<bool>,
}

/// Who can start containers together: a namespace of Kubernetes', or else a runtime's user.
type Party = (String, String);

/// A process on a GPU or MIG instance; its start tells it from a later one with its number.
type Process = (HostPid, u64, String);

impl Ledger {
    /// Books what was found at the reading before up to `now`, and remembers this one. A GPU whose processes could not be
    /// read is left as it was. Rows of processes that `/proc` does not have get their owner, or go: the page is to tell
    /// of the same rows.
    pub fn book(&mut self, now: Instant, usage: &mut Usage) {
        self.own(usage);
        let usage = &*usage;
        let sums = usage.sums(&[]);
        for gpu in usage.gpus.iter().filter(|gpu| gpu.readable) {
            let mine = |row: &&Use| row.gpu == gpu.index && row.uuid == gpu.uuid;
            let mut there: BTreeMap<Process, Use> =
                usage.uses.iter().filter(mine).filter_map(|row| Some((process(row)?, row.clone()))).collect();
            let device = self.devices.entry((gpu.index, gpu.uuid.clone())).or_insert_with(|| Device::new(now));
            let gap = now.saturating_duration_since(device.at).min(LONGEST_GAP);
            device.observed += gap;
            add(&mut device.byte_seconds, device.used, gap);
            for (tenant, held) in &device.held {
                account(&mut self.accounts, tenant, now).add(held, gap);
            }
            let gone = device.there.iter().filter(|(process, _)| !there.contains_key(process));
            if gpu.full {
                // The list may lack a process that is there: it is remembered until a list that has room for all lacks it.
                let unlisted: Vec<_> =
                    gone.take(MOST_UNLISTED).map(|(process, row)| (process.clone(), row.clone())).collect();
                there.extend(unlisted);
            } else {
                for (_, row) in gone {
                    account(&mut self.accounts, &Tenant::of(row), now).ended += 1;
                }
            }
            let idle = idle(usage);
            let held = sums.iter().map(|(whose, sum)| {
                let tenant = Tenant::from(whose);
                let is_idle = idle.get(&tenant).copied().flatten();
                (tenant, Held { memory: sum.amounts.memory, is_idle })
            });
            device.held = held.filter(|(tenant, _)| tenant.gpu == gpu.index && tenant.uuid == gpu.uuid).collect();
            (device.at, device.used, device.there) = (now, gpu.used, there);
            // Every row begins at 0, with the reading that finds it.
            add(&mut device.byte_seconds, device.used, Duration::ZERO);
            for (tenant, held) in &device.held {
                account(&mut self.accounts, tenant, now).add(held, Duration::ZERO);
            }
        }
        self.forget(now);
    }

    /// Gives a row that `/proc` knows nothing of to whom the reading before found there. The owner of another one
    /// is unknown: without the row its memory is in the GPU's residue, and no container nor the host is billed for it.
    fn own(&self, usage: &mut Usage) {
        usage.uses.retain_mut(|row| {
            if row.start_ticks.is_none() {
                let device = self.devices.get(&(row.gpu, row.uuid.clone()));
                let before = device.and_then(|device| {
                    // Of several of one number the latest.
                    device.there.values().rev().find(|before| before.pid == row.pid && before.mig == row.mig)
                });
                let Some(before) = before else { return false };
                row.start_ticks = before.start_ticks;
                row.container.clone_from(&before.container);
                row.container_pid = before.container_pid;
            }
            true
        });
    }

    pub fn accounts(&self, asked: &[Label]) -> impl Iterator<Item = (Labels, Account)> {
        self.accounts.iter().map(|(tenant, account)| (tenant.labels(asked), *account))
    }

    /// By GPU: its index, its UUID, its account.
    pub fn devices(&self) -> impl Iterator<Item = (u32, &str, &Device)> {
        self.devices.iter().map(|((gpu, uuid), device)| (*gpu, uuid.as_str(), device))
    }

    /// Drops accounts that no scrape needs any more: memory stays bounded however many containers come and go.
    fn forget(&mut self, now: Instant) {
        self.devices.retain(|_, device| now.saturating_duration_since(device.at) < KEPT);
        let held: BTreeSet<&Tenant> = self.devices.values().flat_map(|d| d.held.iter().map(|(who, _)| who)).collect();
        let mut gone: BTreeMap<Party, BTreeSet<(Instant, Tenant)>> = BTreeMap::new();
        for (who, account) in self.accounts.iter().filter(|(who, _)| !held.contains(who)) {
            gone.entry(who.party()).or_default().insert((account.seen, who.clone()));
        }
        let mut count: usize = gone.values().map(BTreeSet::len).sum();
        while count > MOST_KEPT {
            let Some((_, who)) = gone.values_mut().max_by_key(|theirs| theirs.len()).and_then(BTreeSet::pop_first)
            else {
                break;
            };
            self.accounts.remove(&who);
            count -= 1;
        }
        for (seen, who) in gone.values().flatten() {
            if now.saturating_duration_since(*seen) >= KEPT {
                self.accounts.remove(who);
            }
        }
    }
}

fn process(row: &Use) -> Option<Process> {
    Some((row.pid, row.start_ticks?, row.mig.clone()))
}

/// The account, opened if need be, of a tenant that is or was there just now.
fn account<'a>(accounts: &'a mut BTreeMap<Tenant, Account>, who: &Tenant, now: Instant) -> &'a mut Account {
    let new = Account { byte_seconds: None, idle_seconds: None, ended: 0, seen: now };
    let account = accounts.entry(who.clone()).or_insert(new);
    account.seen = now;
    account
}

/// Whether the processes of each tenant are idle. One that works makes its tenant busy; one of which the driver does not tell leaves it open.
fn idle(usage: &Usage) -> BTreeMap<Tenant, Option<bool>> {
    let mut idle: BTreeMap<Tenant, Option<bool>> = BTreeMap::new();
    for row in &usage.uses {
        let all = idle.entry(Tenant::of(row)).or_insert(Some(true));
        *all = match (*all, row.amounts.is_idle()) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        };
    }
    idle
}

impl Account {
    fn add(&mut self, held: &Held, time: Duration) {
        add(&mut self.byte_seconds, held.memory, time);
        add(&mut self.idle_seconds, held.is_idle.map(u64::from), time);
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
            held: Vec::new(),
            there: BTreeMap::new(),
        }
    }
}

impl From<&Whose<'_>> for Tenant {
    fn from(whose: &Whose<'_>) -> Tenant {
        let (gpu, uuid, mig, container) = whose.parts();
        Tenant { gpu, uuid: uuid.to_string(), mig: mig.to_string(), container: container.cloned() }
    }
}

impl Tenant {
    fn of(row: &Use) -> Tenant {
        Tenant { gpu: row.gpu, uuid: row.uuid.clone(), mig: row.mig.clone(), container: row.container.clone() }
    }

    fn party(&self) -> Party {
        self.container.as_ref().map(Container::party).unwrap_or_default()
    }

    fn labels(&self, asked: &[Label]) -> Labels {
        Whose::of_container((self.gpu, &self.uuid, &self.mig), self.container.as_ref(), asked)
    }
}
