//! What `/proc` says about a process, and its container.
//!
//! Owns the reading of four files, none of them believed to be well-formed. A process may end at any moment: what is not there any more is
//! none.

use mpu_core::{HostPid, ViewPid};
use mpu_host::containers::{self, Container};
use mpu_host::host::Host;
use std::collections::{BTreeSet, HashMap};
use std::os::unix::ffi::OsStrExt;

/// A process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its number in the innermost PID namespace, if that is not the host's.
    pub container_pid: Option<ViewPid>,
    /// Its container.
    pub container: Option<Container>,
    /// Its real user's number.
    pub uid: Option<u32>,
    /// Its user's name on the host.
    pub user: Option<String>,
    /// The program's name, as the kernel has it.
    pub name: Option<String>,
    /// The command line, its words parted by blanks.
    pub command: Option<String>,
    /// When it started, in seconds since 1970.
    pub started: Option<u64>,
    /// When it started, in ticks since the host's boot; none of one that is not there any more.
    pub start_ticks: Option<u64>,
}

/// `/proc` counts start times in hundredths of a second on every architecture that has NVIDIA's driver.
const TICKS: u64 = 100;
/// How much of a command line is kept.
const COMMAND_LIMIT: usize = 4096;
const FILE_LIMIT: usize = 64 * 1024;

impl Facts {
    fn started_at(host: &Host, pid: HostPid, ticks: Option<u64>, shared: &mut Shared) -> Facts {
        let text = |file: &str| {
            let bytes = host.bounded(format!("/proc/{}/{file}", pid.get()), FILE_LIMIT)?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        let status = text("status").unwrap_or_default();
        let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let uid = value("Uid:").and_then(|ids| ids.split_whitespace().next()?.parse().ok());
        Facts {
            container_pid: value("NSpid:").and_then(innermost),
            container: containers::of(host, pid),
            uid,
            user: uid.and_then(|uid| shared.user(host, uid)),
            name: value("Name:").map(str::to_string),
            command: command(host, pid),
            started: ticks.zip(shared.boot(host)).map(|(ticks, boot)| boot + ticks / TICKS),
            start_ticks: ticks,
        }
    }
}

/// What is the same for many processes. `/proc/stat` alone takes a millisecond on a host of many processors.
#[derive(Default)]
struct Shared {
    boot: Option<u64>,
    users: HashMap<u32, Option<String>>,
}

impl Shared {
    fn boot(&mut self, host: &Host) -> Option<u64> {
        self.boot = self.boot.or_else(|| boot_time(host));
        self.boot
    }

    fn user(&mut self, host: &Host, uid: u32) -> Option<String> {
        self.users.entry(uid).or_insert_with(|| host.user_name(uid)).clone()
    }
}

/// What a node of the driver's is called, wherever one looks (nvidia-modprobe makes them so).
const NODES: &str = "/dev/nvidia";

/// Whether a process has a descriptor of the driver's; none where that cannot be seen.
fn has_the_driver(host: &Host, pid: HostPid) -> Option<bool> {
    let mut links = std::fs::read_dir(host.at(format!("/proc/{}/fd", pid.get()))).ok()?.flatten();
    Some(links.any(|link| {
        std::fs::read_link(link.path()).is_ok_and(|path| path.as_os_str().as_bytes().starts_with(NODES.as_bytes()))
    }))
}

/// Of a process that the driver lists and that has ended: who has its descriptors, and with them its memory. Those are processes that
/// have the driver and that the driver does not list.
fn ended(host: &Host, listed: &BTreeSet<HostPid>) -> Option<Facts> {
    let entries = std::fs::read_dir(host.at("/proc")).ok()?.flatten();
    let others = entries.filter_map(|entry| HostPid::new(entry.file_name().to_str()?.parse().ok()?));
    let holders = others.filter(|pid| !listed.contains(pid) && has_the_driver(host, *pid) == Some(true));
    let mut names: Vec<String> = holders
        .map(|pid| {
            let name = host.text(format!("/proc/{}/comm", pid.get())).unwrap_or_default();
            format!("{} ({})", pid.get(), name.trim())
        })
        .collect();
    names.sort();
    (!names.is_empty()).then(|| Facts {
        name: Some("ended".to_string()),
        command: Some(format!("ended, memory still held by {}", names.join(", "))),
        ..Facts::default()
    })
}

/// The last of several numbers; a process of the host's own has one.
fn innermost(numbers: &str) -> Option<ViewPid> {
    let mut numbers = numbers.split_whitespace();
    numbers.next()?;
    numbers.next_back()?.parse().ok().and_then(ViewPid::new)
}

fn command(host: &Host, pid: HostPid) -> Option<String> {
    // Longer than any limit that `bounded` would keep whole: an argument list has up to 2 MiB.
    let mut bytes = host.beginning(format!("/proc/{}/cmdline", pid.get()), COMMAND_LIMIT)?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    let words: Vec<String> = bytes.split(|b| *b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    Some(words.join(" ")).filter(|line| !line.is_empty())
}

/// Field 22 of `stat`; the program's name before it can hold anything.
fn started_ticks(host: &Host, pid: HostPid) -> Option<u64> {
    let bytes = host.bounded(format!("/proc/{}/stat", pid.get()), FILE_LIMIT)?;
    let text = String::from_utf8_lossy(&bytes);
    text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn boot_time(host: &Host) -> Option<u64> {
    let bytes = host.beginning("/proc/stat", 1 << 20)?;
    let text = String::from_utf8_lossy(&bytes);
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Facts that were read before. A process is the same as long as its number and its start are.
#[derive(Default)]
pub struct Cache {
    known: HashMap<HostPid, (u64, Facts)>,
    shared: Shared,
}

impl Cache {
    /// The facts of a process, read when it is new; `listed` are all that the driver lists.
    pub fn of(&mut self, host: &Host, pid: HostPid, listed: &BTreeSet<HostPid>) -> Facts {
        let ticks = started_ticks(host, pid);
        let is_known = matches!((self.known.get(&pid), ticks), (Some((start, _)), Some(ticks)) if *start == ticks);
        // The driver goes on listing a process that has ended for as long as anybody keeps its descriptors. Its number may be somebody
        // else's by now, who never had any.
        if !is_known && (ticks.is_none() || has_the_driver(host, pid) == Some(false)) {
            return ended(host, listed).unwrap_or_default();
        }
        match (self.known.get(&pid), ticks) {
            (Some((start, facts)), Some(ticks)) if *start == ticks => facts.clone(),
            _ => {
                let facts = Facts::started_at(host, pid, ticks, &mut self.shared);
                if let Some(ticks) = ticks {
                    self.known.insert(pid, (ticks, facts.clone()));
                }
                facts
            }
        }
    }

    /// Forgets the others, which have ended or left the GPU.
    pub fn forget_all_but(&mut self, pids: &BTreeSet<HostPid>) {
        self.known.retain(|pid, _| pids.contains(pid));
    }
}
