//! What is known of a row beside its bytes: which releases have it, what else stands in an answer, and where that was read.
//!
//! For user space alone. The translation goes by number and size, so the kernel's object has none of this.

use crate::release::Release;

/// What is known of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// The releases that have it, oldest first. More than one where a branch was released beside another.
    pub releases: &'static [Releases],
    /// What else stands in each entry, where that is known.
    pub entry: Option<Entry>,
    /// A second table behind a pointer, which no release's driver fills.
    pub unused: Option<Pointer>,
    /// Where it was read.
    pub seen: &'static str,
}

/// Releases without a gap. Between two that were examined, a release counts as the older of them.
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
    /// The u32 that says which figures are asked for; 0 is video memory.
    pub index: u16,
    /// The u32 status of this entry.
    pub result: u16,
    /// The first amount of memory; amounts are u64, up to the instances or the end.
    pub amounts: u16,
    /// The compute and the GPU instance, u32 each, all bits set where there is none.
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
