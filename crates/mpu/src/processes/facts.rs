//! Reads the facts of a process from `/proc`, and finds its container.
//!
//! A process may end at any moment, so a missing file gives none. [`maker`] checks whether a PID still belongs to the
//! process that opened the driver.

use mpu_core::{HostPid, ViewPid};
use mpu_host::cgroup::{self, Job};
use mpu_host::containers::{self, Container};
use mpu_host::folder::field;
use mpu_host::host::Host;
use mpu_host::maker::{self, Has};
use mpu_os::deadline::within;
use schemars::JsonSchema;
use serde::Serialize;
use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// The facts of a process that do not come from the GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Facts {
    /// Its number in the innermost PID namespace; none for a process of the host itself.
    pub container_pid: Option<ViewPid>,
    /// Its container.
    pub container: Option<Container>,
    /// Its Slurm job.
    pub job: Option<Job>,
    /// The cgroup of its systemd unit.
    #[serde(skip)]
    pub unit: Option<String>,
    /// Its user's number; none if it has ended.
    pub uid: Option<u32>,
    /// Its user's name on the host.
    pub user: Option<String>,
    /// The program's name, as the kernel has it.
    pub name: Option<String>,
    /// The command line, at most 4096 bytes; null if the process does not let it be read. Of an ended process, the processes that keep its
    /// memory.
    pub command: Option<String>,
    /// When it started, in seconds since 1970.
    pub started: Option<u64>,
    /// When it started, in ticks since the host's boot: independent of clock changes. None if `/proc` does not have the process.
    #[serde(skip)]
    pub start_ticks: Option<u64>,
}

/// `/proc` counts start times in hundredths of a second on each architecture of NVIDIA's driver.
const TICKS_PER_SECOND: u64 = 100;
/// A command line is kept up to this many bytes.
const COMMAND_LIMIT: usize = 4096;
/// How long the reads of all command lines together may block. Each may take a quarter of the remaining time.
const TOTAL_WAIT: Duration = Duration::from_secs(4);
const MIN_WAIT: Duration = Duration::from_millis(10);
/// A `status` with the most groups, 65,536, has 720 kB.
const FILE_LIMIT: usize = 1 << 20;

/// How much is read about a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Depth {
    /// All facts.
    #[default]
    Everything,
    /// The same, without reading home directories, whose file systems may never answer.
    WithoutHomes,
    /// The owner and the start time only. Reads nothing that the process's user can delay: a command line lies in the
    /// process's own memory, and a home directory may be a file system of the user.
    Owner,
}

impl Facts {
    /// Reads the process that started at `ticks`. `folder` is its folder, or that of a living thread. None if the
    /// process has ended by the end of the read, because the files may belong to the next process with this PID.
    fn read_started(
        context: &ScanContext,
        pid: HostPid,
        folder: &str,
        ticks: u64,
        shared: &mut SharedFacts,
    ) -> Option<Facts> {
        let host = context.host;
        let status = status_of(host, pid);
        let cgroups = containers::cgroups_at(host, folder);
        let command = (context.depth != Depth::Owner).then(|| shared.command(host, folder)).flatten();
        if !context.is_same_process(pid, ticks) {
            return None;
        }
        let facts = Facts {
            container_pid: field(&status, "NSpid").and_then(innermost),
            container: cgroups.as_ref().and_then(|cgroups| context.containers.in_cgroups(cgroups)),
            job: cgroups.as_deref().and_then(cgroup::job),
            unit: cgroups.as_deref().and_then(cgroup::unit).map(str::to_string),
            uid: user_in(&status),
            start_ticks: Some(ticks),
            ..Facts::default()
        };
        // If an ended process is in the root cgroup, its cgroup is unknown. It is also unknown if the kernel shows no
        // path: a process in a container can create a path of 4096 bytes (ENAMETOOLONG in proc_cgroup_show; Linux 6.18
        // truncates it instead).
        let is_known = cgroups.is_some_and(|cgroups| !containers::is_at_root(&cgroups) || !has_ended(host, folder));
        if context.depth == Depth::Owner {
            return is_known.then_some(facts);
        }
        Some(Facts {
            user: facts.uid.and_then(|uid| shared.user(host, uid)),
            name: field(&status, "Name").map(str::to_string),
            command,
            started: shared.boot(host).map(|boot| boot + ticks / TICKS_PER_SECOND),
            ..facts
        })
    }
}

/// One scan of many processes, with the facts that they share.
pub struct ScanContext<'a> {
    pub(super) host: &'a Host,
    depth: Depth,
    /// All processes that the driver lists.
    listed: BTreeSet<HostPid>,
    containers: containers::Look<'a>,
    makers: maker::Look,
    holders: OnceCell<Facts>,
}

impl ScanContext<'_> {
    /// Whether this PID still belongs to the process that started then.
    pub(super) fn is_same_process(&self, pid: HostPid, ticks: u64) -> bool {
        stat_in(self.host, &format!("/proc/{}", pid.get()))
            .is_some_and(|stat| maker::started_ticks(&stat) == Some(ticks))
    }

    /// The folder in which the process can be read. None if it has ended, or if the PID belongs to a process without
    /// the driver.
    fn folder_of(&self, pid: HostPid, stat: &str, has_driver: Has) -> Option<String> {
        let folder = format!("/proc/{}", pid.get());
        if has_driver == Has::No {
            return None;
        }
        if !maker::has_ended(stat) {
            return Some(folder);
        }
        if let Some(thread) = maker::find_live_thread(&self.host.at("/proc"), pid, &self.makers) {
            return Some(format!("{folder}/{thread}"));
        }
        // For an ended process, cgroup version 1 shows no path.
        let cgroups = containers::cgroups_at(self.host, &folder)?;
        (!containers::is_at_root(&cgroups)).then_some(folder)
    }
}

/// Facts that many processes share, read once: `/proc/stat` takes a millisecond on a host with many processors.
#[derive(Default)]
struct SharedFacts {
    boot: Option<u64>,
    users: HashMap<u32, Option<String>>,
    waited: Duration,
}

impl SharedFacts {
    fn boot(&mut self, host: &Host) -> Option<u64> {
        self.boot = self.boot.or_else(|| boot_time(host));
        self.boot
    }

    fn user(&mut self, host: &Host, uid: u32) -> Option<String> {
        self.users.entry(uid).or_insert_with(|| host.user_name(uid)).clone()
    }

    /// The command line. None if the process blocks its readers, which it can do without limit.
    fn command(&mut self, host: &Host, folder: &str) -> Option<String> {
        let began = Instant::now();
        let timeout = TOTAL_WAIT.saturating_sub(self.waited) / 4;
        if timeout < MIN_WAIT {
            return None;
        }
        let (host, file) = (host.clone(), format!("{folder}/cmdline"));
        // By default, an argument list may have 2 MiB (execve(2)).
        let read = within(timeout, move || host.beginning(file, COMMAND_LIMIT));
        if read.is_none() {
            self.waited += began.elapsed();
        }
        let mut bytes = read??;
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        let arguments: Vec<String> =
            bytes.split(|b| *b == 0).map(|argument| String::from_utf8_lossy(argument).into_owned()).collect();
        Some(arguments.join(" ")).filter(|line| !line.is_empty())
    }
}

/// The most processes that are listed as holders of an ended process's memory.
const HOLDER_LIMIT: usize = 16;

/// The facts of an ended process that the driver still lists: `command` names the processes that hold its descriptors,
/// and so its memory. A holder has the driver open, and the driver does not list it.
fn holders_as_facts(context: &ScanContext, makers: &maker::Look) -> Facts {
    let (host, proc) = (context.host, context.host.at("/proc"));
    let entries = std::fs::read_dir(&proc).into_iter().flatten().flatten();
    let others = entries.filter_map(|entry| HostPid::new(entry.file_name().to_str()?.parse().ok()?));
    // A process whose first thread has ended is no holder: its descriptors cannot be read there.
    let has_driver = |pid: &HostPid| {
        let stat = host.text(format!("/proc/{}/stat", pid.get())).unwrap_or_default();
        !maker::has_ended(&stat) && maker::find_driver_fd(&proc, *pid, makers) == Has::Yes
    };
    let mut holders: Vec<HostPid> =
        others.filter(|pid| !context.listed.contains(pid)).filter(has_driver).take(HOLDER_LIMIT).collect();
    holders.sort();
    let names = holders.iter().map(|pid| {
        let name = host.text(format!("/proc/{}/comm", pid.get())).unwrap_or_default();
        format!("{} ({})", pid.get(), name.trim())
    });
    let names: Vec<String> = names.collect();
    if names.is_empty() {
        return Facts::default();
    }
    Facts {
        name: Some("ended".to_string()),
        command: Some(format!("ended, memory still held by {}", names.join(", "))),
        ..Facts::default()
    }
}

fn status_of(host: &Host, pid: HostPid) -> String {
    let status = host.bounded(format!("/proc/{}/status", pid.get()), FILE_LIMIT).unwrap_or_default();
    String::from_utf8_lossy(&status).into_owned()
}

fn user_in(status: &str) -> Option<u32> {
    field(status, "Uid")?.split_whitespace().next()?.parse().ok()
}

/// The number of a process's user.
pub(crate) fn user_of(host: &Host, pid: HostPid) -> Option<u32> {
    user_in(&status_of(host, pid))
}

/// The last of several PIDs. None for a process of the host, which has only one.
fn innermost(numbers: &str) -> Option<ViewPid> {
    let mut numbers = numbers.split_whitespace();
    numbers.next()?;
    numbers.next_back()?.parse().ok().and_then(ViewPid::new)
}

fn stat_in(host: &Host, folder: &str) -> Option<String> {
    let bytes = host.bounded(format!("{folder}/stat"), FILE_LIMIT)?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether the process or thread in this folder has ended by now.
fn has_ended(host: &Host, folder: &str) -> bool {
    stat_in(host, folder).is_none_or(|stat| maker::has_ended(&stat))
}

fn boot_time(host: &Host) -> Option<u64> {
    let bytes = host.beginning("/proc/stat", 1 << 20)?;
    let text = String::from_utf8_lossy(&bytes);
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Caches facts. PID and start time identify a process.
pub struct Cache {
    depth: Depth,
    makers: fn() -> maker::Look,
    facts_by_pid: HashMap<HostPid, (u64, Facts)>,
    shared: SharedFacts,
}

impl Cache {
    pub fn new(depth: Depth) -> Cache {
        Cache { depth, makers: maker::Look::default, facts_by_pid: HashMap::new(), shared: SharedFacts::default() }
    }

    /// For tests: with another device in place of the driver's.
    #[cfg(test)]
    pub fn with(depth: Depth, makers: fn() -> maker::Look) -> Cache {
        Cache { makers, ..Cache::new(depth) }
    }

    /// Whether all facts are read. The exporter does not read memory limits: they take a read for each cgroup above a
    /// process, and a user can create thousands of cgroups.
    pub fn reads_everything(&self) -> bool {
        self.depth != Depth::Owner
    }

    /// Begins a scan of all processes that the driver lists. Drops other processes from the cache.
    pub fn begin<'a>(&mut self, host: &'a Host, listed: BTreeSet<HostPid>) -> ScanContext<'a> {
        self.facts_by_pid.retain(|pid, _| listed.contains(pid));
        let containers = match self.depth {
            Depth::Everything => containers::Look::with_homes(host),
            Depth::WithoutHomes | Depth::Owner => containers::Look::new(host),
        };
        let makers = (self.makers)();
        ScanContext { host, depth: self.depth, listed, containers, makers, holders: OnceCell::new() }
    }

    /// The facts of a process, from the cache if it was read before.
    pub fn of(&mut self, context: &ScanContext, pid: HostPid) -> Facts {
        let host = context.host;
        let stat = stat_in(host, &format!("/proc/{}", pid.get())).unwrap_or_default();
        let Some(ticks) = maker::started_ticks(&stat) else { return self.ended_facts(context) };
        if let Some((_, facts)) = self.facts_by_pid.get(&pid).filter(|(start, _)| *start == ticks) {
            return facts.clone();
        }
        // The driver lists an ended process while any process holds its descriptors. Its PID may belong to another
        // process by now. If that cannot be checked, the process counts as the owner: otherwise it could hide behind
        // many descriptors.
        let has_driver = maker::find_driver_fd(&host.at("/proc"), pid, &context.makers);
        let Some(folder) = context.folder_of(pid, &stat, has_driver) else { return self.ended_facts(context) };
        let Some(facts) = Facts::read_started(context, pid, &folder, ticks, &mut self.shared) else {
            return self.ended_facts(context);
        };
        if has_driver == Has::Yes {
            self.facts_by_pid.insert(pid, (ticks, facts.clone()));
        }
        facts
    }

    /// The facts of the process that started at `ticks`, even if it does not have the driver open. None if it has
    /// ended.
    pub fn of_started(&mut self, context: &ScanContext, pid: HostPid, ticks: u64) -> Option<Facts> {
        let stat = stat_in(context.host, &format!("/proc/{}", pid.get()))?;
        let folder = context.folder_of(pid, &stat, Has::Yes)?;
        Facts::read_started(context, pid, &folder, ticks, &mut self.shared)
    }

    fn ended_facts(&self, context: &ScanContext) -> Facts {
        match self.depth {
            // The exporter's ledger has the owner from the previous scan, and does not need the holders.
            Depth::Owner => Facts::default(),
            Depth::Everything | Depth::WithoutHomes => {
                context.holders.get_or_init(|| holders_as_facts(context, &(self.makers)())).clone()
            }
        }
    }
}
