//! The types a row is made of.
//!
//! A row says where PIDs stand in one control's parameters, and nothing about what to do with them.

use core::fmt;

/// An RM control's number (`NVxxxx_CTRL_CMD_…`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ControlCmd(pub u32);

impl fmt::Debug for ControlCmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// The PID-bearing controls, by what they answer. One control can have several numbers and layouts, hence several rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Control {
    /// Processes that use the GPU.
    GpuGetPids,
    /// Memory of the processes asked for.
    GpuGetPidInfo,
    /// Utilisation samples, in the parameters.
    PerfGpumonUtilV2,
    /// Utilisation samples, behind a pointer.
    PerfGpumonUtil,
    /// Processes that accounting has a record of.
    AccountingPids,
    /// One process's accounting record.
    AccountingInfo,
    /// NVENC sessions, behind a pointer.
    NvencSessions,
    /// NVENC sessions, in the parameters.
    NvencSessionsV2,
    /// NvFBC sessions.
    NvfbcSessions,
    /// Who reserved the hardware performance monitor.
    HwpmReservation,
    /// Error report that names the caller.
    RcErrorReport,
    /// Frame buffer allocations by client, behind a pointer.
    FbClientAllocations,
    /// One process's accounting record, with more in it.
    AccountingInfoV2,
    /// An event of the memory soft limit: no control, and so in no row. See [`crate::event`].
    MemoryLimitEvent,
}

impl Control {
    /// Every control, in the order of the discriminants.
    pub const ALL: [Control; 14] = [
        Control::GpuGetPids,
        Control::GpuGetPidInfo,
        Control::PerfGpumonUtilV2,
        Control::PerfGpumonUtil,
        Control::AccountingPids,
        Control::AccountingInfo,
        Control::NvencSessions,
        Control::NvencSessionsV2,
        Control::NvfbcSessions,
        Control::HwpmReservation,
        Control::RcErrorReport,
        Control::FbClientAllocations,
        Control::AccountingInfoV2,
        Control::MemoryLimitEvent,
    ];

    /// The control's name in NVIDIA's headers, without `NVxxxx_CTRL_CMD_`; used for counters and metric labels. An event has its request's.
    pub const fn name(self) -> &'static str {
        match self {
            Control::GpuGetPids => "GPU_GET_PIDS",
            Control::GpuGetPidInfo => "GPU_GET_PID_INFO",
            Control::PerfGpumonUtilV2 => "PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2",
            Control::PerfGpumonUtil => "PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES",
            Control::AccountingPids => "GPUACCT_GET_ACCOUNTING_PIDS",
            Control::AccountingInfo => "GPUACCT_GET_PROC_ACCOUNTING_INFO",
            Control::NvencSessions => "GPU_GET_NVENC_SW_SESSION_INFO",
            Control::NvencSessionsV2 => "GPU_GET_NVENC_SW_SESSION_INFO_V2",
            Control::NvfbcSessions => "GPU_GET_NVFBC_SW_SESSION_INFO",
            Control::HwpmReservation => "HWPM_GET_RESERVATION_INFO",
            Control::RcErrorReport => "NVD_GET_RCERR_RPT",
            Control::FbClientAllocations => "FB_GET_CLIENT_ALLOCATION_INFO",
            Control::AccountingInfoV2 => "GPUACCT_GET_PROC_ACCOUNTING_INFO_V2",
            Control::MemoryLimitEvent => "RM_GET_EVENT_DATA",
        }
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
    /// The count is a question, too: how many entries the caller has room for, 0 to be told the number of entries alone.
    pub asks_room: bool,
    /// The driver may list the same process twice.
    pub repeats: bool,
}

impl Rows {
    /// A table whose count is an answer only, and that lists nothing twice.
    pub const fn new(count: u16, first: u16, stride: u16, capacity: u16, pid: u16) -> Rows {
        Rows { count, first, stride, capacity, pid, asks_room: false, repeats: false }
    }
    /// The same, with a count that says how many entries the caller has room for.
    pub const fn asking_room(self) -> Rows {
        Rows { asks_room: true, ..self }
    }
    /// The same, in which a process may stand twice.
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
    /// Engines in a slot; their records start 8 bytes into it, after the timestamp. 0: how many, and so where a slot ends, cannot be
    /// told by number and size.
    pub engines: u16,
    /// Bytes of an engine's record: util u32 @0, scale u32 @4, procId u32 @8, subProcessID u32 @12, subProcessName char[100] @16.
    pub engine_stride: u16,
    /// Byte offset in an engine's record of the u64 `pOsPidInfo`, a kernel address (570.86.15 and later).
    pub kernel_pointer: Option<u16>,
}

/// What stands behind a pointer in the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inner {
    /// A table; its count stands in the outer parameters at `count`, and the table starts at 0 of the inner buffer.
    Rows(Rows),
    /// Sample slots from offset 0 of the inner buffer.
    Samples(Samples),
}

/// Where the PIDs are, and in which direction they travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The driver fills a table of processes.
    List(Rows),
    /// The caller fills PIDs in; the driver answers in the other fields of each entry and returns the PIDs.
    Query(Rows),
    /// The caller asks about one PID at this byte offset; the driver answers in the other fields.
    QueryOne {
        /// Byte offset of the u32 PID.
        pid: u16,
        /// Byte offset of the u64 time, in microseconds since the Unix epoch, at which the process began to use the GPU.
        began: u16,
    },
    /// The caller asks about one PID at this byte offset, and where in the answer it stands whose record that is, is not known. So the
    /// driver is asked about nobody, whatever the size.
    AskNobody {
        /// Byte offset of the u32 PID.
        pid: u16,
    },
    /// The driver fills utilisation samples.
    Samples(Samples),
    /// The driver names one process.
    One {
        /// Byte offset of the u32 PID.
        pid: u16,
        /// Byte offset of a u32 that counts it, if one does.
        count: Option<u16>,
    },
    /// The driver fills a buffer of the caller's, whose address stands at byte offset `pointer` (u64).
    Embedded {
        /// Byte offset of the u64 address.
        pointer: u16,
        /// What the buffer holds.
        inner: Inner,
    },
}

/// Most bytes of parameters of a control whose size is not known: the public structures of its kind have 8 to 16,012.
const MOST_UNKNOWN: u32 = 0x1_0000;

/// One fact: under this number and with exactly this many bytes of parameters, this control has this layout. RM refuses any
/// other size, so number and size tell the layout without knowing the driver's release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Which control.
    pub control: Control,
    /// Its number.
    pub cmd: ControlCmd,
    /// Bytes of parameters (`paramsSize`).
    pub params_size: u32,
    /// Where the PIDs are.
    pub layout: Layout,
}

impl Row {
    /// Whether so many bytes of parameters have this layout.
    pub const fn takes(&self, size: u32) -> bool {
        match self.layout {
            Layout::AskNobody { pid } => pid as u32 + 4 <= size && size <= MOST_UNKNOWN,
            _ => size == self.params_size,
        }
    }
}
