//! Facts of a row beside its bytes: its releases, other fields of an answer, and the source. For user space only: the kernel needs
//! number and size alone.

use crate::release::Release;

/// Facts of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// Its releases, oldest first. Several if a branch was released beside another.
    pub releases: &'static [Releases],
    /// Other fields of an entry, if known.
    pub entry: Option<Entry>,
    /// A second table behind a pointer, which the driver of no release fills.
    pub unused: Option<Pointer>,
    /// The source.
    pub seen: &'static str,
}

/// Consecutive releases. Between two examined releases, a release counts as the older of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Releases {
    /// The first.
    pub since: Release,
    /// The last; none while the newest has it.
    pub until: Option<Release>,
}

impl Releases {
    /// Whether a release is one of them.
    pub fn has(&self, release: Release) -> bool {
        self.since <= release && self.until.is_none_or(|until| release <= until)
    }
}

/// An entry of GPU_GET_PID_INFO (`NV2080_CTRL_GPU_PID_INFO` of ctrl2080gpu.h), in byte offsets from where the entry begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The u32 that selects the requested figures; 0 is video memory.
    pub index: u16,
    /// The u32 status of this entry.
    pub result: u16,
    /// The first amount of memory; amounts are u64, up to the instances or the end.
    pub amounts: u16,
    /// The compute and the GPU instance, u32 each; all bits are set if there is none.
    pub instances: Option<u16>,
}

/// A pointer to a table, and the count of the table's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Byte offset of the u64 address.
    pub pointer: u16,
    /// Byte offset of the u32 count.
    pub count: u16,
}
