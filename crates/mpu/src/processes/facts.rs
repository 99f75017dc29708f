//! Facts of a process from `/proc`, and its container.
//!
//! A process may end at any moment; a missing file gives none. [`maker`] decides whether a PID still belongs to the process that the
//! driver means.

use mpu_core::{HostPid, ViewPid};
use mpu_host::cgroup::{self, Job};
use mpu_host::containers::{self, Container};
use mpu_host::host::Host;
use mpu_host::maker::{self, Has};
use mpu_os::deadline::within;
use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its number in the innermost PID namespace, if that is not the host's.
    pub container_pid: Option<ViewPid>,
    pub container: Option<Container>,
    /// Its Slurm job.
    pub job: Option<Job>,
    /// The cgroup of its systemd unit.
    pub unit: Option<String>,
    pub uid: Option<u32>,
    /// Its user's name on the host.
    pub user: Option<String>,
    /// The program's name, as the kernel has it.
    pub name: Option<String>,
    /// The command line, joined by blanks.
    pub command: Option<String>,
    /// When it started, in seconds since 1970.
    pub started: Option<u64>,
    /// When it started, in ticks since the host's boot; none if it has ended.
    pub start_ticks: Option<u64>,
}

/// `/proc` counts start times in hundredths of a second on each architecture of NVIDIA's driver.
const TICKS: u64 = 100;
/// The most that is kept of a command line.
const COMMAND_LIMIT: usize = 4096;
/// How long all command lines together may keep their reader waiting: each a quarter of what is left.
const MOST_WAITING: Duration = Duration::from_secs(4);
const LEAST_PATIENCE: Duration = Duration::from_millis(10);
/// A `status` with the most groups, 65,536, has 720 kB.
const FILE_LIMIT: usize = 1 << 20;

/// How much is read about a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Depth {
    /// All that a person wants to see.
    #[default]
    Everything,
    /// The same, without the homes of users, which may be file systems that never answer.
    WithoutHomes,
    /// The owner and the start. Reads nothing that the process's user can delay: a command line lies in the process's own memory, and a
    /// home may be a file system of the user.
    Owner,
}

impl Facts {
    /// `folder` is where the process, or a living thread of it, can be read. None if it had ended when all files were read: they may be
    /// the next process's.
    fn started_at(moment: &Moment, pid: HostPid, folder: &str, ticks: u64, shared: &mut Shared) -> Option<Facts> {
        let host = moment.host;
        let status = status_of(host, pid);
        let value = |key: &str| value_in(&status, key);
        let cgroups = containers::cgroups_at(host, folder);
        let command = (moment.depth != Depth::Owner).then(|| shared.command(host, folder)).flatten();
        if !moment.is_still(pid, ticks) {
            return None;
        }
        let facts = Facts {
            container_pid: value("NSpid:").and_then(innermost),
            container: cgroups.as_ref().and_then(|cgroups| moment.containers.in_cgroups(cgroups)),
            job: cgroups.as_deref().and_then(cgroup::job),
            unit: cgroups.as_deref().and_then(cgroup::unit).map(str::to_string),
            uid: user_in(&status),
            start_ticks: Some(ticks),
            ..Facts::default()
        };
        // The cgroup of an ended process at the root is unknown, and so is one whose path the kernel does not give: in a container, a process
        // can make a path of 4096 bytes, which only a kernel that cuts it shows (ENAMETOOLONG in proc_cgroup_show; 6.18 cuts it).
        let is_known = cgroups.is_some_and(|cgroups| !containers::is_at_root(&cgroups) || !has_ended(host, folder));
        if moment.depth == Depth::Owner {
            return is_known.then_some(facts);
        }
        Some(Facts {
            user: facts.uid.and_then(|uid| shared.user(host, uid)),
            name: value("Name:").map(str::to_string),
            command,
            started: shared.boot(host).map(|boot| boot + ticks / TICKS),
            ..facts
        })
    }
}

/// One reading of many processes, with the facts that they share.
pub struct Moment<'a> {
    host: &'a Host,
    depth: Depth,
    /// All processes that the driver lists.
    listed: BTreeSet<HostPid>,
    containers: containers::Look<'a>,
    makers: maker::Look,
    holders: OnceCell<Facts>,
}

impl Moment<'_> {
    /// Whether this PID still belongs to the process that started then.
    fn is_still(&self, pid: HostPid, ticks: u64) -> bool {
        stat_in(self.host, &format!("/proc/{}", pid.get()))
            .is_some_and(|stat| maker::started_ticks(&stat) == Some(ticks))
    }

    /// Where a living process can be read; none if `/proc` has no process with this PID, or not the one that the driver means.
    fn folder_of(&self, pid: HostPid, stat: &str, has: Has) -> Option<String> {
        let folder = format!("/proc/{}", pid.get());
        if has == Has::No {
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

/// Facts that many processes share. `/proc/stat` alone takes a millisecond on a host with many processors.
#[derive(Default)]
struct Shared {
    boot: Option<u64>,
    users: HashMap<u32, Option<String>>,
    waited: Duration,
}

impl Shared {
    fn boot(&mut self, host: &Host) -> Option<u64> {
        self.boot = self.boot.or_else(|| boot_time(host));
        self.boot
    }

    fn user(&mut self, host: &Host, uid: u32) -> Option<String> {
        self.users.entry(uid).or_insert_with(|| host.user_name(uid)).clone()
    }

    /// None of a process that makes its readers wait, which the process can do for ever.
    fn command(&mut self, host: &Host, folder: &str) -> Option<String> {
        let began = Instant::now();
        let patience = MOST_WAITING.saturating_sub(self.waited) / 4;
        if patience < LEAST_PATIENCE {
            return None;
        }
        let (host, file) = (host.clone(), format!("{folder}/cmdline"));
        // An argument list has up to 2 MiB.
        let read = within(patience, move || host.beginning(file, COMMAND_LIMIT));
        if read.is_none() {
            self.waited += began.elapsed();
        }
        let mut bytes = read??;
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        let words: Vec<String> =
            bytes.split(|b| *b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        Some(words.join(" ")).filter(|line| !line.is_empty())
    }
}

/// The most processes that are named as keepers of an ended process's memory.
const MOST_HOLDERS: usize = 16;

/// The facts of an ended process that the driver lists: the processes that keep its descriptors, and so its memory. Those have the
/// driver open, and the driver does not list them.
fn ended(moment: &Moment, makers: &maker::Look) -> Facts {
    let (host, proc) = (moment.host, moment.host.at("/proc"));
    let entries = std::fs::read_dir(&proc).into_iter().flatten().flatten();
    let others = entries.filter_map(|entry| HostPid::new(entry.file_name().to_str()?.parse().ok()?));
    // A process whose first thread has ended counts as a maker, not as a holder: its descriptors cannot be read.
    let has = |pid: &HostPid| {
        let stat = host.text(format!("/proc/{}/stat", pid.get())).unwrap_or_default();
        !maker::has_ended(&stat) && maker::find_driver_fd(&proc, *pid, makers) == Has::Yes
    };
    let mut holders: Vec<HostPid> =
        others.filter(|pid| !moment.listed.contains(pid)).filter(has).take(MOST_HOLDERS).collect();
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

fn value_in<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

fn user_in(status: &str) -> Option<u32> {
    value_in(status, "Uid:")?.split_whitespace().next()?.parse().ok()
}

/// The number of a process's user.
pub(crate) fn user_of(host: &Host, pid: HostPid) -> Option<u32> {
    user_in(&status_of(host, pid))
}

/// The last of several PIDs; a process of the host itself has one.
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

/// Facts that were read before. PID and start time identify a process.
pub struct Cache {
    depth: Depth,
    makers: fn() -> maker::Look,
    known: HashMap<HostPid, (u64, Facts)>,
    shared: Shared,
}

impl Cache {
    pub fn new(depth: Depth) -> Cache {
        Cache { depth, makers: maker::Look::new, known: HashMap::new(), shared: Shared::default() }
    }

    /// Replaces the driver's device by another one.
    #[cfg(test)]
    pub fn with(depth: Depth, makers: fn() -> maker::Look) -> Cache {
        Cache { makers, ..Cache::new(depth) }
    }

    /// Whether all is read. Limits are read from each cgroup above a process, of which its user may make thousands.
    pub fn is_for_people(&self) -> bool {
        self.depth != Depth::Owner
    }

    /// Begins a reading of these processes, all that the driver lists. Others are dropped from the cache.
    pub fn begin<'a>(&mut self, host: &'a Host, listed: BTreeSet<HostPid>) -> Moment<'a> {
        self.known.retain(|pid, _| listed.contains(pid));
        let containers = match self.depth {
            Depth::Everything => containers::Look::with_homes(host),
            Depth::WithoutHomes | Depth::Owner => containers::Look::new(host),
        };
        let makers = (self.makers)();
        Moment { host, depth: self.depth, listed, containers, makers, holders: OnceCell::new() }
    }

    /// The facts of a process, read when it is new.
    pub fn of(&mut self, moment: &Moment, pid: HostPid) -> Facts {
        let host = moment.host;
        let stat = stat_in(host, &format!("/proc/{}", pid.get())).unwrap_or_default();
        let Some(ticks) = maker::started_ticks(&stat) else { return self.ended(moment) };
        if let Some((_, facts)) = self.known.get(&pid).filter(|(start, _)| *start == ticks) {
            return facts.clone();
        }
        // The driver lists an ended process while any process keeps its descriptors. Its PID may belong to another process by now, which never
        // had any. If that cannot be checked, the process counts as the owner: otherwise it could hide behind many descriptors.
        let has = maker::find_driver_fd(&host.at("/proc"), pid, &moment.makers);
        let Some(folder) = moment.folder_of(pid, &stat, has) else { return self.ended(moment) };
        let Some(facts) = Facts::started_at(moment, pid, &folder, ticks, &mut self.shared) else {
            return self.ended(moment);
        };
        if has == Has::Yes {
            self.known.insert(pid, (ticks, facts.clone()));
        }
        facts
    }

    /// The facts of the process that started then, whatever it has open; none if it has ended.
    pub fn of_started(&mut self, moment: &Moment, pid: HostPid, ticks: u64) -> Option<Facts> {
        let stat = stat_in(moment.host, &format!("/proc/{}", pid.get()))?;
        let folder = moment.folder_of(pid, &stat, Has::Yes)?;
        Facts::started_at(moment, pid, &folder, ticks, &mut self.shared)
    }

    fn ended(&self, moment: &Moment) -> Facts {
        match self.depth {
            // The previous reading knows the owner; the present holders are for people.
            Depth::Owner => Facts::default(),
            Depth::Everything | Depth::WithoutHomes => {
                moment.holders.get_or_init(|| ended(moment, &(self.makers)())).clone()
            }
        }
    }
}
