//! What keeps the NVIDIA driver, or one of its GPUs, from being unloaded, reset or handed over: processes and kernel modules.
//!
//! A process counts if it has one of the driver's nodes open or mapped, in the table of any of its threads. What it calls the node does
//! not matter ([`nodes`]). Judges nothing and names nobody: whose a process is, is `mpu`'s to find out.

pub mod modules;
pub mod nodes;

use crate::folder::Folder;
use crate::host::Host;
use crate::maker;
use crate::sys::share_descriptors;
use mpu_core::HostPid;
use nodes::{Node, Nodes};
use rustix::fs::OFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader};

/// Descriptors of one process that are looked at, in the tables of all its threads. A look at each takes some 2 µs.
const MOST_DESCRIPTORS: usize = 1 << 20;

/// Tables of a process that its other threads are compared with.
const MOST_TABLES: usize = 8;

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

/// Looks at every process of the host.
///
/// # Errors
/// `/proc` cannot be listed.
pub fn scan(host: &Host, nodes: &Nodes) -> io::Result<Scan> {
    // The kernel compares threads of the running host alone.
    let share = if host.is_this() { share_descriptors } else { |_, _| None };
    let entries = std::fs::read_dir(host.at("/proc"))?.flatten();
    let mut pids: Vec<HostPid> =
        entries.filter_map(|entry| HostPid::new(entry.file_name().to_str()?.parse().ok()?)).collect();
    pids.sort();
    let mut scan = Scan::default();
    for pid in pids {
        // A process that has ended meanwhile holds nothing.
        let Ok(look) = Look::at(host, pid) else { continue };
        look.take(nodes, share, &mut scan);
    }
    Ok(scan)
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
#[derive(Default)]
struct Found {
    uses: BTreeMap<Node, (BTreeSet<String>, u32)>,
    sockets: BTreeMap<Vec<u8>, u32>,
    left: usize,
    is_partial: bool,
}

impl Look<'_> {
    fn at(host: &Host, pid: HostPid) -> io::Result<Look<'_>> {
        let folder = Folder::at(host.at(format!("/proc/{}", pid.get())))?;
        let stat = folder.read("stat")?;
        let start_ticks = maker::started_ticks(&stat).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Look { host, pid, folder, start_ticks, has_ended: maker::has_ended(&stat) })
    }

    fn take(&self, nodes: &Nodes, share: fn(u32, u32) -> Option<bool>, scan: &mut Scan) {
        let mut found = Found { left: MOST_DESCRIPTORS, ..Found::default() };
        self.tables(nodes, share, &mut found);
        let mapped = self.mappings(nodes, &mut found);
        found.is_partial |= mapped.is_err_and(|error| is_refused(&error));
        let (pid, start_ticks) = (self.pid, self.start_ticks);
        if found.is_partial {
            scan.not_read.push(pid);
        }
        let waiting = found.sockets.values().sum();
        if waiting > 0 {
            scan.in_flight.push(InFlight { pid, start_ticks, descriptors: waiting });
        }
        let uses: Vec<Use> = found
            .uses
            .into_iter()
            .map(|(node, (descriptors, mappings))| Use { node, descriptors: descriptors.len() as u32, mappings })
            .collect();
        if !uses.is_empty() {
            scan.holders.push(Holder { pid, start_ticks, uses });
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
        let threads = self.folder.names("task", MOST_DESCRIPTORS).unwrap_or_default();
        let others = threads.iter().filter_map(|name| name.parse::<u32>().ok()).filter(|thread| *thread != own);
        for thread in others {
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
            Err(error) => return found.is_partial |= is_refused(&error),
        };
        found.left -= names.len();
        found.is_partial |= found.left == 0;
        for name in names {
            let at = format!("{table}/{name}");
            let info = || self.folder.read(&format!("{infos}/{name}")).unwrap_or_default();
            let node = match self.folder.link(&at) {
                Ok(link) if link.starts_with(b"socket:") => {
                    let waiting = field(&info(), "scm_fds").and_then(|count| count.parse().ok()).unwrap_or(0);
                    found.sockets.insert(link, waiting);
                    None
                }
                Ok(link) if is_dma_buffer(&link) => shared_memory(&info()),
                Ok(link) if !link.starts_with(b"/") => None,
                // Also one whose path is too long to be read (ENAMETOOLONG). One that is open for nothing (O_PATH) never reached the
                // driver.
                _ if self.folder.is_open_for_anything(&at).unwrap_or(false) => {
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
            let thread = maker::living_thread(&self.host.at("/proc"), self.pid, &maker::Look::new());
            let Some(thread) = thread.as_deref().and_then(|thread| thread.strip_prefix("task/")) else { return Ok(()) };
            Some(Folder::at(self.host.at(format!("/proc/{thread}")))?)
        } else {
            None
        };
        let folder = living.as_ref().unwrap_or(&self.folder);
        let mut known: BTreeMap<(String, String), Option<Node>> = BTreeMap::new();
        let mut lines = BufReader::new(folder.open("maps", OFlags::RDONLY)?);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            if let Some(mapping) = Mapping::parse(&String::from_utf8_lossy(&line)) {
                let file = (mapping.device.to_string(), mapping.inode.to_string());
                let look = || node_of_mapping(folder, &mapping, nodes);
                if let Some(node) = known.entry(file).or_insert_with(look) {
                    found.uses.entry(node.clone()).or_default().1 += 1;
                }
            }
            line.clear();
        }
        Ok(())
    }
}

fn node_of_mapping(folder: &Folder, mapping: &Mapping, nodes: &Nodes) -> Option<Node> {
    if is_dma_buffer(mapping.path.as_bytes()) {
        // What exported it is in the descriptor's information alone, and that may be closed.
        return None;
    }
    let device = folder.device(&format!("map_files/{}", mapping.file())).ok().flatten()?;
    nodes.node(device)
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

fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

#[cfg(test)]
mod tests;
