//! What keeps the NVIDIA driver, or one of its GPUs, from being unloaded, reset or handed over: processes and kernel modules.
//!
//! A process counts if it has one of the driver's nodes open or mapped, in the table of any of its threads. What it calls the node does
//! not matter ([`nodes`]). Processes are hostile: each may make its readers wait for ever. Whose a process is, `mpu` finds out.

pub mod modules;
pub mod nodes;

use crate::folder::Folder;
use crate::host::Host;
use crate::maker;
use crate::sys::share_descriptors;
use mpu_core::HostPid;
use nodes::{DriverGpu, Node, Nodes};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Descriptors of one process that are looked at, in the tables of all its threads. A look at each takes some 2 µs.
const MOST_DESCRIPTORS: usize = 1 << 20;

/// Tables of a process that its other threads are compared with.
const MOST_TABLES: usize = 8;

/// How often `/proc` is listed, for processes that started or changed meanwhile.
const MOST_PASSES: usize = 3;

/// The most that is kept of a line of `maps`. A path can be longer than the 4,096 bytes that a system call takes.
const LONGEST_LINE: u64 = 8 << 10;

/// A process that holds the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub pid: HostPid,
    /// When it started, in ticks since boot: another process may get its number.
    pub start_ticks: u64,
    pub uses: Vec<Use>,
}

/// A node that a process holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    pub node: Node,
    /// How many descriptors it has of it.
    pub descriptors: u32,
    /// How many of its mappings are of it.
    pub mappings: u32,
}

/// A process at whose sockets descriptors wait to be received. The kernel does not show their files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    pub pid: HostPid,
    pub start_ticks: u64,
    pub descriptors: u32,
}

/// What was found in `/proc`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    /// By PID.
    pub holders: Vec<Holder>,
    pub in_flight: Vec<InFlight>,
    /// Processes that could not be looked at, or in part only.
    pub not_read: Vec<HostPid>,
}

/// Looks at all processes, on threads of its own: a process can make each read of its mappings, or of a file that it has open, last for
/// ever. Remembers the processes that did not answer.
#[derive(Default)]
pub struct Scanner {
    patience: Patience,
    /// As the driver described them last.
    gpus: Vec<DriverGpu>,
    /// Threads that still wait for a process, and what they found before.
    stuck: BTreeMap<HostPid, (Seen, JoinHandle<()>)>,
}

/// How long one process may take. Processes that take long get less and less time, so that all of them together end some day.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// Enough for [`MOST_DESCRIPTORS`].
    first: Duration,
    /// Once the processes that took longer than `later` have taken this together.
    until: Duration,
    later: Duration,
    /// No process is looked at any more.
    end: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        let [first, until, end] = [10, 30, 60].map(Duration::from_secs);
        Patience { first, until, later: Duration::from_millis(100), end }
    }
}

impl Patience {
    fn after(self, lost: Duration) -> Option<Duration> {
        match lost {
            lost if lost < self.until => Some(self.first),
            lost => (lost < self.end).then_some(self.later),
        }
    }
}

/// What was seen of one process.
#[derive(Debug, Clone, Default)]
struct Seen {
    holder: Option<Holder>,
    in_flight: Option<InFlight>,
    /// Some of it was refused, came too late or was too much.
    is_partial: bool,
    /// It changed while it was looked at.
    has_changed: bool,
}

impl Scanner {
    /// Looks at every process of the host.
    ///
    /// # Errors
    /// `/proc` cannot be listed.
    pub fn scan(&mut self, host: &Host) -> io::Result<Scan> {
        self.stuck.retain(|_, (_, thread)| !thread.is_finished());
        let mut all: BTreeMap<HostPid, Seen> = self.stuck.iter().map(|(pid, (seen, _))| (*pid, seen.clone())).collect();
        let mut lost = Duration::ZERO;
        for _ in 0..MOST_PASSES {
            let entries = std::fs::read_dir(host.at("/proc"))?.flatten();
            let listed: BTreeSet<HostPid> =
                entries.filter_map(|entry| HostPid::new(entry.file_name().to_str()?.parse().ok()?)).collect();
            // A process that has ended meanwhile holds nothing.
            all.retain(|pid, _| listed.contains(pid));
            let pids: Vec<HostPid> =
                listed.into_iter().filter(|pid| all.get(pid).is_none_or(|seen| seen.has_changed)).collect();
            if pids.is_empty() {
                break;
            }
            self.look_at(host, &pids, &mut lost, &mut all);
        }
        let mut scan = Scan::default();
        for (pid, seen) in all {
            scan.holders.extend(seen.holder);
            scan.in_flight.extend(seen.in_flight);
            scan.not_read.extend((seen.is_partial || seen.has_changed).then_some(pid));
        }
        Ok(scan)
    }

    fn look_at(&mut self, host: &Host, pids: &[HostPid], lost: &mut Duration, all: &mut BTreeMap<HostPid, Seen>) {
        // A driver that did not answer is not asked again.
        if self.gpus.iter().all(|gpu| gpu.minor.is_some()) {
            self.gpus = nodes::gpus(host);
        }
        let mut left = pids.iter();
        while let (Some(patience), false) = (self.patience.after(*lost), left.as_slice().is_empty()) {
            let (sender, receiver) = mpsc::channel();
            let (host, gpus, pids) = (host.clone(), self.gpus.clone(), left.as_slice().to_vec());
            let worker = thread::Builder::new().spawn(move || answer(&host, gpus, &pids, patience, &sender));
            let Ok(worker) = worker else { break };
            for pid in left.by_ref() {
                let began = Instant::now();
                // A thread that is still at work notices by itself that its time is over.
                let received = receive(&receiver, patience + patience / 4);
                *lost += Some(began.elapsed()).filter(|took| *took > self.patience.later).unwrap_or_default();
                match received {
                    Ok(Some(seen)) => drop(all.insert(*pid, seen)),
                    Ok(None) => drop(all.remove(pid)),
                    Err(seen) => {
                        all.insert(*pid, seen.clone());
                        self.stuck.insert(*pid, (seen, worker));
                        break;
                    }
                }
                if self.patience.after(*lost) != Some(patience) {
                    break;
                }
            }
        }
        all.extend(left.map(|pid| (*pid, Seen::unread())));
    }
}

/// What a thread sends of a process.
enum Message {
    /// What its descriptors show; its mappings follow.
    Tables(Seen),
    /// All; none if it has ended.
    Done(Option<Seen>),
}

/// What was seen of the next process; none if it has ended. The error is what was seen before the time was over.
fn receive(from: &Receiver<Message>, longest: Duration) -> Result<Option<Seen>, Seen> {
    let end = Instant::now() + longest;
    let mut seen = Seen::unread();
    loop {
        match from.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Message::Tables(tables)) => seen = Seen { is_partial: true, ..tables },
            Ok(Message::Done(done)) => return Ok(done),
            Err(_) => return Err(seen),
        }
    }
}

fn answer(host: &Host, gpus: Vec<DriverGpu>, pids: &[HostPid], patience: Duration, to: &Sender<Message>) {
    let nodes = Nodes::of(host, gpus);
    for pid in pids {
        let done = match Look::at(host, *pid) {
            Ok(look) => Some(look.take(&nodes, Instant::now() + patience, to)),
            Err(error) => (!has_gone(&error)).then(Seen::unread),
        };
        if to.send(Message::Done(done)).is_err() {
            return;
        }
    }
}
/// A look at one process, through its folder: who gets its number next has another.
struct Look<'a> {
    host: &'a Host,
    pid: HostPid,
    folder: Folder,
    start_ticks: u64,
    has_ended: bool,
}

/// What one process was found to have: by node the descriptors, by number, and the mappings.
struct Found {
    uses: BTreeMap<Node, (BTreeSet<String>, u32)>,
    sockets: BTreeMap<Vec<u8>, u32>,
    left: usize,
    end: Instant,
    is_partial: bool,
    has_changed: bool,
}

impl Found {
    fn until(end: Instant) -> Found {
        let (uses, sockets) = (BTreeMap::new(), BTreeMap::new());
        Found { uses, sockets, left: MOST_DESCRIPTORS, end, is_partial: false, has_changed: false }
    }

    fn is_late(&mut self) -> bool {
        let is_late = Instant::now() >= self.end;
        self.is_partial |= is_late;
        is_late
    }
}

impl Seen {
    fn unread() -> Seen {
        Seen { is_partial: true, ..Seen::default() }
    }
}

impl Look<'_> {
    fn at(host: &Host, pid: HostPid) -> io::Result<Look<'_>> {
        let folder = Folder::at(host.at(format!("/proc/{}", pid.get())))?;
        let stat = folder.read("stat")?;
        let start_ticks = maker::started_ticks(&stat).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Look { host, pid, folder, start_ticks, has_ended: maker::has_ended(&stat) })
    }

    fn take(&self, nodes: &Nodes, end: Instant, to: &Sender<Message>) -> Seen {
        // The kernel compares threads of the running host alone.
        let share = if self.host.is_this() { share_descriptors } else { |_, _| None };
        let mut found = Found::until(end);
        self.tables(nodes, share, &mut found);
        let _ = to.send(Message::Tables(self.seen(&found)));
        let mapped = self.mappings(nodes, &mut found);
        found.is_partial |= mapped.is_err_and(|error| !has_gone(&error));
        self.seen(&found)
    }

    fn seen(&self, found: &Found) -> Seen {
        let (pid, start_ticks) = (self.pid, self.start_ticks);
        let waiting = found.sockets.values().sum();
        let of = |(node, (descriptors, mappings)): (&Node, &(BTreeSet<String>, u32))| Use {
            node: node.clone(),
            descriptors: descriptors.len() as u32,
            mappings: *mappings,
        };
        let uses: Vec<Use> = found.uses.iter().map(of).collect();
        Seen {
            holder: (!uses.is_empty()).then_some(Holder { pid, start_ticks, uses }),
            in_flight: (waiting > 0).then_some(InFlight { pid, start_ticks, descriptors: waiting }),
            is_partial: found.is_partial,
            has_changed: found.has_changed,
        }
    }

    /// Looks at the process's table and at those that threads have of their own. A thread whose process's first one has ended has a
    /// table, too.
    fn tables(&self, nodes: &Nodes, share: fn(u32, u32) -> Option<bool>, found: &mut Found) {
        let own = self.pid.get();
        let mut tables = Vec::new();
        if !self.has_ended {
            tables.push(own);
            self.table("fd", "fdinfo", nodes, found);
        }
        let threads = self.folder.names("task", MOST_DESCRIPTORS).unwrap_or_else(|error| {
            found.is_partial |= !has_gone(&error);
            Vec::new()
        });
        let others = threads.iter().filter_map(|name| name.parse::<u32>().ok()).filter(|thread| *thread != own);
        for thread in others {
            if found.is_late() {
                return;
            }
            if tables.iter().any(|table| share(*table, thread) == Some(true)) {
                continue;
            }
            if tables.len() < MOST_TABLES {
                tables.push(thread);
            }
            self.table(&format!("task/{thread}/fd"), &format!("task/{thread}/fdinfo"), nodes, found);
        }
    }

    fn table(&self, table: &str, infos: &str, nodes: &Nodes, found: &mut Found) {
        let names = match self.folder.names(table, found.left) {
            Ok(names) => names,
            Err(error) => return found.is_partial |= !has_gone(&error),
        };
        found.left -= names.len();
        found.is_partial |= found.left == 0;
        for name in names {
            if found.is_late() {
                return;
            }
            let at = format!("{table}/{name}");
            let info = |found: &mut Found| {
                self.folder.read(&format!("{infos}/{name}")).unwrap_or_else(|error| {
                    found.is_partial |= !has_gone(&error);
                    String::new()
                })
            };
            let node = match self.folder.link(&at) {
                Ok(link) if link.starts_with(b"socket:") => {
                    let waiting = field(&info(found), "scm_fds").and_then(|count| count.parse().ok()).unwrap_or(0);
                    found.sockets.insert(link, waiting);
                    None
                }
                Ok(link) if is_dma_buffer(&link) => shared_memory(&info(found)),
                Ok(link) if !link.starts_with(b"/") => None,
                // Also one whose path is too long to be read (ENAMETOOLONG).
                _ if self
                    .folder
                    .is_open_for_anything(&at)
                    .is_ok_and(|anything| anything || !is_only_path(&info(found))) =>
                {
                    self.folder.device(&at).ok().flatten().and_then(|device| nodes.node(device))
                }
                _ => None,
            };
            if let Some(node) = node {
                // The same number in two tables is one descriptor, as a rule, and counts as one.
                found.uses.entry(node).or_default().0.insert(name);
            }
        }
    }

    /// Looks at the process's mappings, which keep a node whose descriptor was closed.
    fn mappings(&self, nodes: &Nodes, found: &mut Found) -> io::Result<()> {
        // A process whose first thread has ended has its memory by the others.
        let living = if self.has_ended {
            let threads = self.folder.names("task", MOST_DESCRIPTORS)?;
            let stat = |thread: &str| self.folder.read(&format!("task/{thread}/stat"));
            let lives = |thread: &&String| !found.is_late() && stat(thread).is_ok_and(|stat| !maker::has_ended(&stat));
            let Some(thread) = threads.iter().find(lives) else { return Ok(()) };
            Some(Folder::at(self.host.at(format!("/proc/{thread}")))?)
        } else {
            None
        };
        let folder = living.as_ref().unwrap_or(&self.folder);
        // Two files can have the same device and inode: file systems of several layers or volumes have one device.
        let (hashes, mut known) = (RandomState::new(), BTreeMap::new());
        let mut lines = BufReader::new(folder.open("maps", OFlags::RDONLY)?);
        let mut line = Vec::new();
        while lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? > 0 && !found.is_late() {
            if !line.ends_with(b"\n") {
                lines.skip_until(b'\n')?;
            }
            if let Some(mapping) = Mapping::parse(&String::from_utf8_lossy(&line)) {
                let file = hashes.hash_one((mapping.device, mapping.inode, mapping.path));
                let node = known.entry(file).or_insert_with(|| node_of_mapping(folder, &mapping, nodes, found));
                if let Some(node) = node {
                    found.uses.entry(node.clone()).or_default().1 += 1;
                }
            }
            line.clear();
        }
        Ok(())
    }
}

fn node_of_mapping(folder: &Folder, mapping: &Mapping, nodes: &Nodes, found: &mut Found) -> Option<Node> {
    if is_dma_buffer(mapping.path.as_bytes()) {
        // What exported it is in the descriptor's information alone, and that may be closed.
        return None;
    }
    match folder.device(&format!("map_files/{}", mapping.file())) {
        Ok(device) => return nodes.node(device?),
        Err(error) if has_gone(&error) => found.has_changed = true,
        // Without CAP_SYS_ADMIN. EACCES is a user's own file system, which has no nodes.
        Err(error) => found.is_partial |= Errno::from_io_error(&error) == Some(Errno::PERM),
    }
    None
}

/// A mapping of a file: a line of `maps` (proc_pid_maps(5)).
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    from: u64,
    to: u64,
    device: &'a str,
    inode: &'a str,
    path: &'a str,
}

impl Mapping<'_> {
    fn parse(line: &str) -> Option<Mapping<'_>> {
        let mut words = line.trim_end_matches('\n').splitn(6, ' ');
        let (from, to) = words.next()?.split_once('-')?;
        let [from, to] = [from, to].map(|address| u64::from_str_radix(address, 16));
        let (_rights, _offset, device, inode) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let path = words.next().unwrap_or_default().trim_start();
        (inode != "0").then_some(Mapping { from: from.ok()?, to: to.ok()?, device, inode, path })
    }

    /// Its name in `map_files`, where numbers have no zeros before them.
    fn file(&self) -> String {
        format!("{:x}-{:x}", self.from, self.to)
    }
}

/// `/dmabuf:NAME` as of Linux 5.3, `anon_inode:dmabuf` before.
fn is_dma_buffer(link: &[u8]) -> bool {
    link.starts_with(b"/dmabuf:") || link == b"anon_inode:dmabuf"
}

/// Memory that the driver shared with other devices; it keeps the module that did so (drivers/dma-buf/dma-buf.c).
fn shared_memory(info: &str) -> Option<Node> {
    let module = match field(info, "exp_name")? {
        "nvidia" => "nvidia",
        "nvidia_drm" => "nvidia_drm",
        "nvidia_uvm" => "nvidia_uvm",
        _ => return None,
    };
    Some(Node { name: "dma-buf".to_string(), gpu: None, module })
}

/// A field of an `fdinfo` file.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Whether a descriptor only names a path (`O_PATH`) and never reached the driver. One with access mode 3 of open(2), for ioctl(2) alone,
/// can be neither read nor written either.
fn is_only_path(info: &str) -> bool {
    let flags = field(info, "flags").and_then(|flags| u32::from_str_radix(flags, 8).ok());
    flags.is_some_and(|flags| flags & OFlags::PATH.bits() != 0)
}

/// Whether a process, or what it had, is no longer there.
fn has_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData)
        || Errno::from_io_error(error) == Some(Errno::SRCH)
}

#[cfg(test)]
mod tests;
