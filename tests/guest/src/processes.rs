//! Processes of the guest by host PID: their PIDs in other namespaces, states and parents. Also sets the next PID.

use std::path::Path;

use anyhow::{Context, Result};

/// The PIDs of a process, from the init namespace to its own; none if there is no such process.
pub fn ns_pids(host_pid: u32) -> Option<Vec<u32>> {
    let status = std::fs::read_to_string(format!("/proc/{host_pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    Some(line.split_whitespace().filter_map(|number| number.parse().ok()).collect())
}

/// The host PID of the process with PID `view_pid` in the namespace of `member`; none if there is none.
pub fn host_pid(member: u32, view_pid: u32) -> Option<u32> {
    let depth = ns_pids(member)?.len();
    let space = namespace(member)?;
    all_pids().into_iter().find(|&pid| {
        ns_pids(pid).is_some_and(|own| own.len() == depth && own.last() == Some(&view_pid))
            && namespace(pid).is_some_and(|other| other == space)
    })
}

/// The host PID of the deepest descendant of a process, by first children.
pub fn deepest_descendant(ancestor: u32) -> u32 {
    let mut at = ancestor;
    while let Some(child) = all_pids().into_iter().find(|&pid| parent(pid) == Some(at)) {
        at = child;
    }
    at
}

/// The host PIDs of all descendants of a process, the deepest last.
pub fn descendants(ancestor: u32) -> Vec<u32> {
    let mut found = vec![ancestor];
    let mut at = 0;
    while let Some(above) = found.get(at).copied() {
        found.extend(all_pids().into_iter().filter(|&pid| parent(pid) == Some(above)));
        at += 1;
    }
    found.remove(0);
    found
}

/// The state letter in /proc: Z is a zombie.
pub fn state(host_pid: u32) -> Option<char> {
    stat(host_pid)?.chars().next()
}

pub fn kill(host_pid: u32) -> Result<()> {
    let pid = rustix::process::Pid::from_raw(host_pid.cast_signed()).context("no process is 0")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).context("cannot kill it")
}

/// Makes `pid` the next PID in the init namespace. Another fork can take it first: check the result.
pub fn set_next_host_pid(pid: u32) -> Result<()> {
    std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).context("cannot set the next PID")
}

pub fn parent(pid: u32) -> Option<u32> {
    stat(pid)?.split(' ').nth(1)?.parse().ok()
}

/// The fields after the program's name in a stat file. The name can contain anything.
fn stat(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(text.rsplit_once(") ")?.1.to_owned())
}

fn namespace(pid: u32) -> Option<std::path::PathBuf> {
    std::fs::read_link(Path::new("/proc").join(pid.to_string()).join("ns/pid")).ok()
}

fn all_pids() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
