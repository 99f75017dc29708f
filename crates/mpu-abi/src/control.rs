//! The types of a row: where PIDs are in a control's parameters.

use core::fmt;

/// An RM control's number (`NVxxxx_CTRL_CMD_…`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ControlCmd(pub u32);

impl fmt::Debug for ControlCmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Equal entries in a table: `count` of them in use, each `stride` bytes, with a u32 PID at `pid` in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Byte offset of the u32 that counts entries, in the parameters.
    pub count: u16,
    /// Byte offset of the first entry.
    pub first: u16,
    /// Bytes from one entry to the next; a multiple of 4.
    pub stride: u16,
    /// Most entries that the table holds.
    pub capacity: u16,
    /// Byte offset of the u32 PID in an entry.
    pub pid: u16,
    /// The caller's count is also its capacity: 0 requests the number of entries alone.
    pub count_is_capacity: bool,
    /// The driver may list the same process twice.
    pub repeats: bool,
}

impl Rows {
    /// A table whose count is output only, without duplicates.
    pub const fn new(count: u16, first: u16, stride: u16, capacity: u16, pid: u16) -> Rows {
        Rows { count, first, stride, capacity, pid, count_is_capacity: false, repeats: false }
    }
    /// The same, with a count that is also the caller's capacity.
    pub const fn with_capacity_in_count(self) -> Rows {
        Rows { count_is_capacity: true, ..self }
    }
    /// The same, with possible duplicates.
    pub const fn repeating(self) -> Rows {
        Rows { repeats: true, ..self }
    }
}

/// Utilisation samples: `capacity` slots, each with a timestamp and one record per engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Samples {
    /// Byte offset of the first slot.
    pub first: u16,
    /// Bytes from one slot to the next.
    pub stride: u16,
    /// Most slots that the buffer holds.
    pub capacity: u16,
    /// Engines in a slot; their records start 8 bytes into it, after the timestamp. 0: number and size do not determine how many,
    /// and so where a slot ends.
    pub engines: u16,
    /// Bytes of an engine's record: util u32 @0, scale u32 @4, procId u32 @8, subProcessID u32 @12, subProcessName char[100] @16.
    pub engine_stride: u16,
    /// Byte offset in an engine's record of the u64 `pOsPidInfo`, a kernel address (570.86.15 and later).
    pub kernel_pointer: Option<u16>,
}

/// The contents of a buffer behind a pointer in the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inner {
    /// A table; its count stands in the outer parameters at `count`, and the table starts at 0 of the inner buffer.
    Rows(Rows),
    /// Sample slots from offset 0 of the inner buffer.
    Samples(Samples),
}

/// Where the PIDs are, and their direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The driver fills a table of processes.
    List(Rows),
    /// The caller fills in PIDs; the driver fills in the other fields of each entry and returns the PIDs.
    Query(Rows),
    /// The caller fills in one PID at this byte offset; the driver fills in the other fields.
    QueryOne {
        /// Byte offset of the u32 PID.
        pid: u16,
        /// Byte offset of the u64 time, in microseconds since the Unix epoch, at which the process began to use the GPU.
        began: u16,
    },
    /// The driver fills utilisation samples.
    Samples(Samples),
    /// The driver names one process.
    One {
        /// Byte offset of the u32 PID.
        pid: u16,
        /// Byte offset of a u32 count of it, if there is one.
        count: Option<u16>,
    },
    /// The driver fills a buffer of the caller, whose address is at byte offset `pointer` (u64).
    Embedded {
        /// Byte offset of the u64 address.
        pointer: u16,
        /// Its contents.
        inner: Inner,
    },
}
