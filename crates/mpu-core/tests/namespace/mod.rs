//! A PID namespace for tests, and a field of a driver's answer.

use mpu_core::{HostPid, PidMap, ViewPid};
use std::collections::BTreeMap;

/// Pairs of host and own PIDs; every other process is foreign.
#[derive(Debug, Clone)]
pub struct Namespace(pub BTreeMap<u32, u32>);

impl PidMap for Namespace {
    fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
        self.0.get(&pid.get()).and_then(|view| ViewPid::new(*view))
    }
    fn host_of(&self, pid: ViewPid) -> Option<HostPid> {
        self.0.iter().find(|(_, view)| **view == pid.get()).and_then(|(host, _)| HostPid::new(*host))
    }
    fn started(&self, pid: HostPid) -> Option<u64> {
        self.view_of(pid).map(|_| 0)
    }
}

pub fn get(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}
