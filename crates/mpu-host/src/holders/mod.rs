//! Finds the processes and kernel modules that use the NVIDIA driver or one of its GPUs. They block its unloading, reset or hand-over.
//!
//! A process counts if it has a node of the driver open or mapped, in the descriptor table of any of its threads. Nodes are identified
//! by device number ([`nodes`]). Processes are hostile: each may block its readers for ever. `mpu` finds the owners of the processes.

pub mod modules;
pub mod nodes;

use crate::folder::{Folder, field};
use crate::host::Host;
use crate::maker;
use crate::sys::share_descriptors;
use mpu_core::HostPid;
use nodes::{DriverGpu, Node, Nodes};
use rustix::fs::OFlags;
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Limit of descriptors to read of one process, in the tables of all its threads. Each takes some 2 µs.
const MAX_DESCRIPTORS: usize = 1 << 20;

/// Limit of descriptor tables of a process to compare its other threads with.
const MAX_TABLES: usize = 8;

/// Limit of passes through `/proc`. A further pass finds processes that started or changed meanwhile.
const MAX_PASSES: usize = 3;

/// Limit of bytes kept of a line of `maps`. A path can be longer than the 4,096 bytes that a system call accepts.
const MAX_LINE: u64 = 8 << 10;

/// A process that uses the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub pid: HostPid,
    /// Its start in ticks since boot, because its PID may be reused.
    pub start_ticks: u64,
    pub uses: Vec<Use>,
}

/// A node that a process holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "UseView")]
pub struct Use {
    #[serde(flatten)]
    pub node: Node,
    /// How many descriptors the process has of it.
    pub descriptors: u32,
    /// How many of its mappings are of it.
    pub mappings: u32,
}

/// A process at whose sockets descriptors wait to be received.
// The kernel does not show the files of these descriptors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "InFlightView")]
pub struct InFlight {
    /// The process's number on the host.
    pub pid: HostPid,
    #[serde(skip)]
    pub start_ticks: u64,
    /// How many.
    pub descriptors: u32,
}

/// The result of a scan of `/proc`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    /// By PID.
    pub holders: Vec<Holder>,
    pub in_flight: Vec<InFlight>,
    /// Processes that could not be read, or only in part.
    pub not_read: Vec<HostPid>,
}

/// Scans all processes, on its own threads: a process can block a read of its mappings, or of a file that it has open, for ever. Keeps a
/// list of processes whose reads have not ended.
#[derive(Default)]
pub struct Scanner {
    limits: TimeLimits,
    /// The driver's last description of its GPUs.
    gpus: Vec<DriverGpu>,
    /// Threads that still wait for the driver to describe a GPU.
    waiting: Vec<JoinHandle<()>>,
    /// Threads that are still blocked at a process, and their results until then.
    stuck: BTreeMap<HostPid, (ProcessScan, JoinHandle<()>)>,
}

/// Time limits for reading a process. After many slow processes the limit is reduced, so that a whole scan ends.
#[derive(Debug, Clone, Copy)]
struct TimeLimits {
    /// For one process at first; enough for [`MAX_DESCRIPTORS`].
    first: Duration,
    /// Once slow processes have taken this time together, the limit is `later`. A process is slow if it takes longer than `later`.
    slow_total: Duration,
    later: Duration,
    /// Once slow processes have taken this time together, no further process is read.
    end: Duration,
}

impl Default for TimeLimits {
    fn default() -> TimeLimits {
        let [first, slow_total, end] = [10, 30, 60].map(Duration::from_secs);
        TimeLimits { first, slow_total, later: Duration::from_millis(100), end }
    }
}

impl TimeLimits {
    /// The limit for the next process after this time of slow ones; none if no further process is read.
    fn for_next(self, slow: Duration) -> Option<Duration> {
        match slow {
            slow if slow < self.slow_total => Some(self.first),
            slow => (slow < self.end).then_some(self.later),
        }
    }
}

/// The result for one process.
#[derive(Debug, Clone, Default)]
struct ProcessScan {
    holder: Option<Holder>,
    in_flight: Option<InFlight>,
    /// A part could not be read: permission denied, time limit, or number limit.
    is_partial: bool,
    /// It changed during the scan.
    has_changed: bool,
}

impl Scanner {
    /// Scans every process of the host.
    ///
    /// # Errors
    /// If `/proc` cannot be listed.
    pub fn scan(&mut self, host: &Host) -> io::Result<Scan> {
        self.stuck.retain(|_, (_, thread)| !thread.is_finished());
        let mut all: BTreeMap<HostPid, ProcessScan> =
            self.stuck.iter().map(|(pid, (seen, _))| (*pid, seen.clone())).collect();
        let mut slow = Duration::ZERO;
        for _ in 0..MAX_PASSES {
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
            self.scan_processes(host, &pids, &mut slow, &mut all);
        }
        let mut scan = Scan::default();
        for (pid, seen) in all {
            scan.holders.extend(seen.holder);
            scan.in_flight.extend(seen.in_flight);
            scan.not_read.extend((seen.is_partial || seen.has_changed).then_some(pid));
        }
        Ok(scan)
    }

    /// The driver's description of its GPUs. While it still owes one, that GPU has only its address and index, and no more threads wait for it.
    pub fn gpus(&mut self, host: &Host) -> &[DriverGpu] {
        self.waiting.retain(|thread| !thread.is_finished());
        if self.waiting.is_empty() {
            (self.gpus, self.waiting) = nodes::describe_gpus(host, nodes::read);
        }
        &self.gpus
    }

    fn scan_processes(
        &mut self,
        host: &Host,
        pids: &[HostPid],
        slow: &mut Duration,
        all: &mut BTreeMap<HostPid, ProcessScan>,
    ) {
        self.gpus(host);
        let mut left = pids.iter();
        while let (Some(limit), false) = (self.limits.for_next(*slow), left.as_slice().is_empty()) {
            let (sender, receiver) = mpsc::channel();
            let (host, gpus, pids) = (host.clone(), self.gpus.clone(), left.as_slice().to_vec());
            let worker = thread::Builder::new().spawn(move || scan_on_thread(&host, gpus, &pids, limit, &sender));
            let Ok(worker) = worker else { break };
            for pid in left.by_ref() {
                let began = Instant::now();
                // A thread that is not blocked stops by itself at its limit.
                let received = receive(&receiver, limit + limit / 4);
                *slow += Some(began.elapsed()).filter(|took| *took > self.limits.later).unwrap_or_default();
                match received {
                    Ok(Some(seen)) => drop(all.insert(*pid, seen)),
                    Ok(None) => drop(all.remove(pid)),
                    Err(seen) => {
                        all.insert(*pid, seen.clone());
                        self.stuck.insert(*pid, (seen, worker));
                        break;
                    }
                }
                if self.limits.for_next(*slow) != Some(limit) {
                    break;
                }
            }
        }
        all.extend(left.map(|pid| (*pid, ProcessScan::unread())));
    }
}

/// A thread's message about a process.
enum Message {
    /// The result by its descriptors; its mappings follow.
    FdTables(ProcessScan),
    /// The whole result; none if it has ended.
    Done(Option<ProcessScan>),
}

/// Receives the result of the next process; none if it has ended. After a timeout the error is the result until then.
fn receive(from: &Receiver<Message>, longest: Duration) -> Result<Option<ProcessScan>, ProcessScan> {
    let end = Instant::now() + longest;
    let mut seen = ProcessScan::unread();
    loop {
        match from.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Message::FdTables(tables)) => seen = ProcessScan { is_partial: true, ..tables },
            Ok(Message::Done(done)) => return Ok(done),
            Err(_) => return Err(seen),
        }
    }
}

fn scan_on_thread(host: &Host, gpus: Vec<DriverGpu>, pids: &[HostPid], limit: Duration, to: &Sender<Message>) {
    let nodes = Nodes::of(host, gpus);
    for pid in pids {
        let done = match ProcessReader::open(host, *pid) {
            Ok(reader) => Some(reader.scan(&nodes, Instant::now() + limit, to)),
            Err(error) => (!is_gone(&error)).then(ProcessScan::unread),
        };
        if to.send(Message::Done(done)).is_err() {
            return;
        }
    }
}

/// Reads one process through its open folder, which no later process with the same PID gets.
struct ProcessReader<'a> {
    host: &'a Host,
    pid: HostPid,
    folder: Folder,
    start_ticks: u64,
    has_ended: bool,
}

/// Findings about one process so far.
struct Found {
    /// By node: its descriptors' numbers, and the number of mappings.
    uses: BTreeMap<Node, (BTreeSet<String>, u32)>,
    /// By socket: the number of unreceived descriptors.
    sockets: BTreeMap<Vec<u8>, u32>,
    /// Descriptors that may still be read.
    left: usize,
    end: Instant,
    is_partial: bool,
    has_changed: bool,
}

impl Found {
    fn until(end: Instant) -> Found {
        let (uses, sockets) = (BTreeMap::new(), BTreeMap::new());
        Found { uses, sockets, left: MAX_DESCRIPTORS, end, is_partial: false, has_changed: false }
    }

    fn is_late(&mut self) -> bool {
        let is_late = Instant::now() >= self.end;
        self.is_partial |= is_late;
        is_late
    }
}

impl ProcessScan {
    fn unread() -> ProcessScan {
        ProcessScan { is_partial: true, ..ProcessScan::default() }
    }
}

impl ProcessReader<'_> {
    fn open(host: &Host, pid: HostPid) -> io::Result<ProcessReader<'_>> {
        let folder = Folder::at(host.at(format!("/proc/{}", pid.get())))?;
        let stat = folder.read("stat")?;
        let start_ticks = maker::started_ticks(&stat).ok_or(io::ErrorKind::InvalidData)?;
        Ok(ProcessReader { host, pid, folder, start_ticks, has_ended: maker::has_ended(&stat) })
    }

    fn scan(&self, nodes: &Nodes, end: Instant, to: &Sender<Message>) -> ProcessScan {
        // kcmp(2) compares threads of the running host only.
        let share = if self.host.is_this() { share_descriptors } else { |_, _| None };
        let mut found = Found::until(end);
        self.scan_fd_tables(nodes, share, &mut found);
        let _ = to.send(Message::FdTables(self.summarize(&found)));
        let result = self.scan_mappings(nodes, &mut found);
        found.is_partial |= result.is_err_and(|error| !is_gone(&error));
        self.summarize(&found)
    }

    fn summarize(&self, found: &Found) -> ProcessScan {
        let (pid, start_ticks) = (self.pid, self.start_ticks);
        let waiting = found.sockets.values().sum();
        let of = |(node, (descriptors, mappings)): (&Node, &(BTreeSet<String>, u32))| Use {
            node: node.clone(),
            descriptors: descriptors.len() as u32,
            mappings: *mappings,
        };
        let uses: Vec<Use> = found.uses.iter().map(of).collect();
        ProcessScan {
            holder: (!uses.is_empty()).then_some(Holder { pid, start_ticks, uses }),
            in_flight: (waiting > 0).then_some(InFlight { pid, start_ticks, descriptors: waiting }),
            is_partial: found.is_partial,
            has_changed: found.has_changed,
        }
    }

    /// Scans the process's descriptor table, and the tables of threads that have their own. If the first thread has ended, the others
    /// still have a table.
    fn scan_fd_tables(&self, nodes: &Nodes, share: fn(u32, u32) -> Option<bool>, found: &mut Found) {
        let own = self.pid.get();
        let mut tables = Vec::new();
        if !self.has_ended {
            tables.push(own);
            self.scan_fd_table("fd", "fdinfo", nodes, found);
        }
        let threads = self.folder.names("task", MAX_DESCRIPTORS).unwrap_or_else(|error| {
            found.is_partial |= !is_gone(&error);
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
            if tables.len() < MAX_TABLES {
                tables.push(thread);
            }
            self.scan_fd_table(&format!("task/{thread}/fd"), &format!("task/{thread}/fdinfo"), nodes, found);
        }
    }

    fn scan_fd_table(&self, table: &str, infos: &str, nodes: &Nodes, found: &mut Found) {
        let names = match self.folder.names(table, found.left) {
            Ok(names) => names,
            Err(error) => return found.is_partial |= !is_gone(&error),
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
                    found.is_partial |= !is_gone(&error);
                    String::new()
                })
            };
            let node = match self.folder.link(&at) {
                Ok(link) if link.starts_with(b"socket:") => {
                    let waiting = field(&info(found), "scm_fds").and_then(|count| count.parse().ok()).unwrap_or(0);
                    found.sockets.insert(link, waiting);
                    None
                }
                Ok(link) if is_dma_buf(&link) => dma_buf_node(&info(found)),
                Ok(link) if !link.starts_with(b"/") => None,
                // Also if the path is too long to be read (ENAMETOOLONG).
                _ if self
                    .folder
                    .is_readable_or_writable(&at)
                    .is_ok_and(|anything| anything || !is_o_path(&info(found))) =>
                {
                    self.folder.device(&at).ok().flatten().and_then(|device| nodes.node(device))
                }
                _ => None,
            };
            if let Some(node) = node {
                // The same number in two tables counts as one descriptor, as it usually is.
                found.uses.entry(node).or_default().0.insert(name);
            }
        }
    }

    /// Scans the process's mappings: a mapping keeps a node in use after its descriptor was closed.
    fn scan_mappings(&self, nodes: &Nodes, found: &mut Found) -> io::Result<()> {
        // If the first thread has ended, the other threads still have the memory.
        let living = if self.has_ended {
            let threads = self.folder.names("task", MAX_DESCRIPTORS)?;
            let stat = |thread: &str| self.folder.read(&format!("task/{thread}/stat"));
            let lives = |thread: &&String| !found.is_late() && stat(thread).is_ok_and(|stat| !maker::has_ended(&stat));
            let Some(thread) = threads.iter().find(lives) else { return Ok(()) };
            Some(Folder::at(self.host.at(format!("/proc/{thread}")))?)
        } else {
            None
        };
        let folder = living.as_ref().unwrap_or(&self.folder);
        // The path is part of the key: two files of a file system with layers or volumes can have the same device and inode.
        let (hashes, mut known) = (RandomState::new(), BTreeMap::new());
        let mut lines = BufReader::new(folder.open("maps", OFlags::RDONLY)?);
        let mut line = Vec::new();
        while lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? > 0 && !found.is_late() {
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
    if is_dma_buf(mapping.path.as_bytes()) {
        // Only fdinfo names the exporting module, and the descriptor may be closed.
        return None;
    }
    match folder.device(&format!("map_files/{}", mapping.map_file_name())) {
        Ok(device) => return nodes.node(device?),
        Err(error) if is_gone(&error) => found.has_changed = true,
        // EPERM: without CAP_SYS_ADMIN. EACCES: a user's own file system, which has no device nodes.
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
        let mut fields = line.trim_end_matches('\n').splitn(6, ' ');
        let (from, to) = fields.next()?.split_once('-')?;
        let [from, to] = [from, to].map(|address| u64::from_str_radix(address, 16));
        let (_rights, _offset, device, inode) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let path = fields.next().unwrap_or_default().trim_start();
        (inode != "0").then_some(Mapping { from: from.ok()?, to: to.ok()?, device, inode, path })
    }

    /// Its name in `map_files`: the addresses without leading zeros.
    fn map_file_name(&self) -> String {
        format!("{:x}-{:x}", self.from, self.to)
    }
}

/// `/dmabuf:NAME` as of Linux 5.3, `anon_inode:dmabuf` before.
fn is_dma_buf(link: &[u8]) -> bool {
    link.starts_with(b"/dmabuf:") || link == b"anon_inode:dmabuf"
}

/// The node for memory that the driver exported as a dma-buf. It keeps the exporting module loaded (drivers/dma-buf/dma-buf.c).
fn dma_buf_node(info: &str) -> Option<Node> {
    let module = match field(info, "exp_name")? {
        "nvidia" => "nvidia",
        "nvidia_drm" => "nvidia_drm",
        "nvidia_uvm" => "nvidia_uvm",
        _ => return None,
    };
    Some(Node { name: "dma-buf".to_string(), gpu: None, module })
}

/// Whether a descriptor is `O_PATH`, so its open did not reach the driver. A descriptor with access mode 3 of open(2), for ioctl(2) only,
/// can be neither read nor written either.
fn is_o_path(info: &str) -> bool {
    let flags = field(info, "flags").and_then(|flags| u32::from_str_radix(flags, 8).ok());
    flags.is_some_and(|flags| flags & OFlags::PATH.bits() != 0)
}

/// Whether an error means that a process, or a file of it, no longer exists.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData)
        || Errno::from_io_error(error) == Some(Errno::SRCH)
}

#[cfg(test)]
mod tests;
