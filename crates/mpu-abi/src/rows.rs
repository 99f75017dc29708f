//! The rows: every control and layout with a PID that a container can reach. A new driver is a row here, not code.
//!
//! Not here: numbers that only look like PIDs. Accounting set/get/clear (0xb01, 0xb02, 0xb05) and SET_SUB_PROCESS_ID (0x901) have vGPU
//! selectors; NVD_GET_DUMP (0x602) is a protobuf stream for root; a081/a084 and 0xc01 belong to the vGPU manager. docs/limits.md lists
//! what no ioctl has.

use crate::control::{ControlCmd, Inner, Layout, Rows, Samples};
use crate::history::{Entry, History, Pointer, Releases};
use crate::release::Release;

/// Makes the controls: one line each.
macro_rules! controls {
    ($($(#[$doc:meta])* $control:ident = $name:literal,)*) => {
        /// The controls with a PID. A control can have several numbers and layouts, and so several rows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Control {
            $($(#[$doc])* $control,)*
        }

        impl Control {
            /// Every control, in the order of the discriminants.
            pub const ALL: [Control; [$($name),*].len()] = [$(Control::$control),*];

            /// The control's name in NVIDIA's headers, without `NVxxxx_CTRL_CMD_`; used for counters and metric labels. An event has its request's
            /// name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Control::$control => $name,)*
                }
            }
        }
    };
}

controls! {
    /// Processes that use the GPU.
    GpuGetPids = "GPU_GET_PIDS",
    /// Memory of the requested processes.
    GpuGetPidInfo = "GPU_GET_PID_INFO",
    /// Utilisation samples, in the parameters.
    PerfGpumonUtilV2 = "PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2",
    /// Utilisation samples, behind a pointer.
    PerfGpumonUtil = "PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES",
    /// Processes with an accounting record.
    AccountingPids = "GPUACCT_GET_ACCOUNTING_PIDS",
    /// One process's accounting record.
    AccountingInfo = "GPUACCT_GET_PROC_ACCOUNTING_INFO",
    /// NVENC sessions, behind a pointer.
    NvencSessions = "GPU_GET_NVENC_SW_SESSION_INFO",
    /// NVENC sessions, in the parameters.
    NvencSessionsV2 = "GPU_GET_NVENC_SW_SESSION_INFO_V2",
    /// NvFBC sessions.
    NvfbcSessions = "GPU_GET_NVFBC_SW_SESSION_INFO",
    /// The owner of the hardware performance monitor's reservation.
    HwpmReservation = "HWPM_GET_RESERVATION_INFO",
    /// An error report with the caller's PID.
    RcErrorReport = "NVD_GET_RCERR_RPT",
    /// Frame buffer allocations by client, behind a pointer.
    FbClientAllocations = "FB_GET_CLIENT_ALLOCATION_INFO",
    /// One process's accounting record, with more fields.
    AccountingInfoV2 = "GPUACCT_GET_PROC_ACCOUNTING_INFO_V2",
    /// An event of the memory soft limit. No control, so it has no row. See [`crate::event`].
    MemoryLimitEvent = "RM_GET_EVENT_DATA",
}

/// One fact: with this number and exactly this many bytes of parameters, this control has this layout. RM refuses any other size, so
/// number and size determine the layout without the driver's release.
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

/// Names a row of [`ROWS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowId(u8);

impl RowId {
    /// The row's place in [`ROWS`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
    /// The row at that place, if there is one.
    pub const fn at(index: usize) -> Option<RowId> {
        if index < ROWS.len() { Some(RowId(index as u8)) } else { None }
    }
}

/// One row and its history. A const of both would put the text into the kernel.
struct Fact {
    row: Row,
    history: History,
}

const fn fact(control: Control, cmd: u32, params_size: u32, layout: Layout, history: History) -> Fact {
    Fact { row: Row { control, cmd: ControlCmd(cmd), params_size, layout }, history }
}

/// In every examined release.
const ALWAYS: Releases = from(0, 0, 0);

/// The last release of a branch.
const END: u16 = 999;

const fn from(major: u16, minor: u16, patch: u16) -> Releases {
    Releases { since: Release::new(major, minor, patch), until: None }
}

const fn between(since: (u16, u16, u16), until: (u16, u16, u16)) -> Releases {
    Releases { since: Release::new(since.0, since.1, since.2), until: Some(Release::new(until.0, until.1, until.2)) }
}

const fn in_releases(releases: &'static [Releases], seen: &'static str) -> History {
    History { releases, entry: None, unused: None, seen }
}

const fn pids_fact(cmd: u32, history: History) -> Fact {
    fact(Control::GpuGetPids, cmd, 3812, Layout::List(Rows::new(8, 12, 4, 950, 0)), history)
}

const fn pid_info_fact(cmd: u32, entry: Entry, history: History) -> Fact {
    let stride = match entry.instances {
        Some(instances) => instances + 8,
        None => 40,
    };
    let layout = Layout::Query(Rows::new(0, 8, stride, 200, 0));
    let history = History { entry: Some(entry), ..history };
    fact(Control::GpuGetPidInfo, cmd, 8 + 200 * stride as u32, layout, history)
}

const fn entry(instances: Option<u16>) -> Entry {
    Entry { index: 4, result: 8, amounts: 16, instances }
}

const fn gpumon_fact(capacity: u16, engines: u16, engine_stride: u16, history: History) -> Fact {
    let samples = samples(16, capacity, engines, engine_stride);
    let size = 16 + samples.stride as u32 * capacity as u32;
    fact(Control::PerfGpumonUtilV2, 0x2080_2096, size, Layout::Samples(samples), history)
}

const fn samples(first: u16, capacity: u16, engines: u16, engine_stride: u16) -> Samples {
    let kernel_pointer = if engine_stride == 128 { Some(120) } else { None };
    Samples { first, stride: 8 + engines * engine_stride, capacity, engines, engine_stride, kernel_pointer }
}

const fn gpumon_v1_fact(cmd: u32, engines: u16, history: History) -> Fact {
    let layout = Layout::Embedded { pointer: 16, inner: Inner::Samples(samples(0, 100, engines, 116)) };
    fact(Control::PerfGpumonUtil, cmd, 24, layout, history)
}

const fn nvenc_v2_fact(cmd: u32, history: History) -> Fact {
    fact(
        Control::NvencSessionsV2,
        cmd,
        16388,
        Layout::List(Rows::new(0, 4, 32, 512, 0).with_capacity_in_count()),
        history,
    )
}

const FACTS: &[Fact] = &[
    pids_fact(0x2080_018d, in_releases(&[from(450, 0, 0)], "450.248.02 to 610.43.03, ctrl2080gpu.h")),
    pids_fact(0x0080_0202, in_releases(&[between((0, 0, 0), (449, END, END))], "390.157, 418.226.00, ctrl0080gpu.h")),
    pid_info_fact(
        0x2080_018e,
        entry(Some(64)),
        in_releases(&[from(515, 0, 0)], "515.43.04 to 610.43.03, ctrl2080gpu.h"),
    ),
    pid_info_fact(
        0x2080_018e,
        entry(Some(40)),
        in_releases(&[between((450, 0, 0), (514, END, END))], "450.248.02, 460.106.00, 470.256.02"),
    ),
    pid_info_fact(
        0x0080_0203,
        entry(None),
        in_releases(&[between((0, 0, 0), (449, END, END))], "390.157, 418.226.00, ctrl0080gpu.h"),
    ),
    gpumon_fact(
        100,
        4,
        116,
        in_releases(
            &[between((460, 0, 0), (515, 85, END)), between((520, 0, 0), (524, END, END))],
            "460.106.00, 470.256.02, 515.43.04 to 515.76, 520.56.06, 520.61.05, ctrl2080perf.h",
        ),
    ),
    gpumon_fact(
        72,
        4,
        116,
        in_releases(
            &[between((515, 86, 0), (519, END, END)), between((525, 0, 0), (549, END, END))],
            "515.86.01, 515.105.01, 525.47.04 to 545.29.06, ctrl2080perf.h",
        ),
    ),
    gpumon_fact(
        72,
        6,
        116,
        in_releases(&[between((550, 0, 0), (569, END, END))], "550.40.07 to 565.77, ctrl2080perf.h"),
    ),
    gpumon_fact(72, 6, 128, in_releases(&[from(570, 0, 0)], "570.86.15 to 610.43.03, ctrl2080perf.h")),
    gpumon_v1_fact(0x2080_2083, 4, in_releases(&[between((0, 0, 0), (514, END, END))], "390.157 to 470.256.02")),
    gpumon_v1_fact(
        0x2080_a083,
        0,
        in_releases(
            &[between((515, 0, 0), (550, END, END))],
            "legacy number: 4 engines in 515.43.04 to 545.29.06, 6 in 550, nothing says which; ctrl2080perf.h",
        ),
    ),
    fact(
        Control::AccountingPids,
        0xb04,
        16012,
        Layout::List(Rows::new(16008, 8, 4, 4000, 0).repeating()),
        in_releases(&[ALWAYS], "390.157 to 610.43.03, ctrl0000gpuacct.h; the u32 at 4 is a vGPU selector"),
    ),
    fact(
        Control::AccountingInfo,
        0xb03,
        48,
        Layout::QueryOne { pid: 4, began: 32 },
        in_releases(&[ALWAYS], "390.157 to 610.43.03, ctrl0000gpuacct.h"),
    ),
    fact(
        Control::AccountingInfoV2,
        0xb06,
        64,
        Layout::QueryOne { pid: 4, began: 32 },
        in_releases(&[from(610, 43, 0)], "610.43.02, 610.43.03, 610.57.04, ctrl0000gpuacct.h"),
    ),
    fact(
        Control::NvencSessions,
        0x2080_016e,
        16,
        Layout::Embedded { pointer: 8, inner: Inner::Rows(Rows::new(0, 0, 32, 512, 0).with_capacity_in_count()) },
        in_releases(&[ALWAYS], "390.157 to 610.43.03, ctrl2080gpu.h"),
    ),
    nvenc_v2_fact(
        0x2080_01a9,
        in_releases(
            &[between((525, 47, 22), (525, 47, END)), between((525, 105, 17), (525, END, END))],
            "525.47.22 to 525.47.35, 525.105.17 to 525.147.05, ctrl2080gpu.h",
        ),
    ),
    nvenc_v2_fact(0x2080_01af, in_releases(&[from(530, 0, 0)], "530.30.02 to 610.43.03, ctrl2080gpu.h")),
    fact(
        Control::NvfbcSessions,
        0x2080_017c,
        13316,
        Layout::List(Rows::new(0, 4, 52, 256, 0)),
        in_releases(&[ALWAYS], "418.226.00 to 610.43.03, ctrl2080gpu.h"),
    ),
    fact(
        Control::HwpmReservation,
        0x90cc_0103,
        12,
        Layout::One { pid: 4, count: Some(0) },
        in_releases(&[ALWAYS], "390.157 to 610.43.03, ctrl90cchwpm.h"),
    ),
    fact(
        Control::RcErrorReport,
        0x607,
        2436,
        Layout::One { pid: 32, count: None },
        in_releases(&[ALWAYS], "450.248.02 to 610.43.03, ctrl0000nvd.h"),
    ),
    fact(
        Control::FbClientAllocations,
        0x2080_1349,
        32,
        Layout::Embedded { pointer: 24, inner: Inner::Rows(Rows::new(16, 0, 112, 512, 4)) },
        History {
            unused: Some(Pointer { pointer: 8, count: 0 }),
            ..in_releases(
                &[ALWAYS],
                "in the headers of 515.43.04 to 610.43.03, ctrl2080fb.h; release drivers answer NOT_SUPPORTED",
            )
        },
    ),
];

/// Every row.
pub const ROWS: &[Row] = &{
    let mut rows = [FACTS[0].row; FACTS.len()];
    let mut i = 0;
    while i < rows.len() {
        rows[i] = FACTS[i].row;
        i += 1;
    }
    rows
};

/// The row for this number and size. A number of a control also finds the layout of the control's other number: R430 to R445, which were
/// not examined, may pair the old numbers with newer layouts.
pub fn find(cmd: ControlCmd, params_size: u32) -> Option<RowId> {
    if !may_carry_pids(cmd) {
        return None;
    }
    let exact = ROWS.iter().position(|row| row.cmd == cmd && row.params_size == params_size);
    let sibling = || {
        let control = ROWS.iter().find(|row| row.cmd == cmd)?.control;
        ROWS.iter().position(|row| row.control == control && row.params_size == params_size)
    };
    exact.or_else(sibling).map(|index| RowId(index as u8))
}

/// A fast test: false means that no row has this number.
#[inline]
pub const fn may_carry_pids(cmd: ControlCmd) -> bool {
    CMD_TABLE[place(cmd, MULTIPLIER)] == cmd.0
}

/// Whether this number carries PIDs in some layout, known here or not.
pub fn carries_pids(cmd: ControlCmd) -> bool {
    may_carry_pids(cmd) && ROWS.iter().any(|row| row.cmd == cmd)
}

/// The row itself.
pub fn row(id: RowId) -> Option<&'static Row> {
    ROWS.get(id.index())
}

/// The history of a row.
pub fn history(id: RowId) -> &'static History {
    const HISTORIES: [History; FACTS.len()] = {
        let mut all = [FACTS[0].history; FACTS.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = FACTS[i].history;
            i += 1;
        }
        all
    };
    &HISTORIES[id.index()]
}

/// Places of [`CMD_TABLE`]; a power of two.
const CMD_PLACES: usize = 64;

/// Each row's number, at the place of its hash. The test is one exact comparison: a filter of bits would let frequent numbers pass, such
/// as memory information, each of which then takes the slow path.
const CMD_TABLE: [u32; CMD_PLACES] = {
    // A number counts at its own place only, so any number can fill an empty place.
    let mut table = [ROWS[0].cmd.0; CMD_PLACES];
    let mut i = 0;
    while i < ROWS.len() {
        table[place(ROWS[i].cmd, MULTIPLIER)] = ROWS[i].cmd.0;
        i += 1;
    }
    table
};

/// The first odd number from the golden ratio's on that gives each row's number its own place.
const MULTIPLIER: u32 = {
    let mut multiplier = 0x9e37_79b1;
    while !is_injective(multiplier) {
        multiplier += 2;
    }
    multiplier
};

const fn is_injective(multiplier: u32) -> bool {
    let mut i = 0;
    while i < ROWS.len() {
        let mut other = 0;
        while other < i {
            let same = ROWS[i].cmd.0 == ROWS[other].cmd.0;
            if !same && place(ROWS[i].cmd, multiplier) == place(ROWS[other].cmd, multiplier) {
                return false;
            }
            other += 1;
        }
        i += 1;
    }
    true
}

const fn place(cmd: ControlCmd, multiplier: u32) -> usize {
    (cmd.0.wrapping_mul(multiplier) >> (u32::BITS - CMD_PLACES.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_and_size_name_one_row() {
        for (i, row) in ROWS.iter().enumerate() {
            assert_eq!(find(row.cmd, row.params_size), RowId::at(i), "{row:?}");
        }
    }

    #[test]
    fn numbers_of_rows_alone_carry_pids() {
        assert!(ROWS.iter().all(|row| carries_pids(row.cmd)));
        // Memory and name of a GPU (ctrl2080fb.h, ctrl2080gpu.h), and no control.
        for cmd in [0x2080_1303, 0x2080_0110, 0] {
            assert!(!carries_pids(ControlCmd(cmd)), "{cmd:#x}");
        }
        assert_eq!(RowId::at(ROWS.len()), None);
    }

    #[test]
    fn tables_asking_room_or_repeating_are_marked() {
        let table = |cmd, size| match find(ControlCmd(cmd), size).and_then(row).map(|row| row.layout) {
            Some(Layout::List(rows) | Layout::Embedded { inner: Inner::Rows(rows), .. }) => {
                (rows.count_is_capacity, rows.repeats)
            }
            layout => panic!("{layout:?}"),
        };
        assert_eq!(table(0x2080_018d, 3812), (false, false));
        assert_eq!(table(0xb04, 16012), (false, true));
        assert_eq!(table(0x2080_016e, 16), (true, false));
    }

    #[test]
    fn known_number_takes_any_layout_of_its_control() {
        let control = |cmd, size| find(ControlCmd(cmd), size).and_then(row).map(|row| row.control);
        assert_eq!(control(0x0080_0203, 14408), Some(Control::GpuGetPidInfo));
        assert_eq!(control(0x2080_018e, 8008), Some(Control::GpuGetPidInfo));
        assert_eq!(control(0x2080_018d, 14408), None, "another control's layout");
        assert_eq!(control(0x2080_018e, 48), None, "a size that no layout of it has");
        assert_eq!(control(0x2080_0102, 14408), None, "a number without PIDs");
    }

    /// Classes of controls that programs send: those of all rows, and others of CUDA, NVML, graphics and debuggers
    /// (`src/common/sdk/nvidia/inc/ctrl` of 595.45.04 has a file for each).
    const CLASSES: [u32; 20] = [
        0x0000, 0x0002, 0x0041, 0x0073, 0x0080, 0x00de, 0x00f8, 0x2080, 0x208f, 0x503c, 0x83de, 0x9067, 0x906f, 0x9096,
        0x90cc, 0x90f1, 0xa06c, 0xa06f, 0xb06f, 0xc36f,
    ];

    #[test]
    fn no_number_without_row_takes_long_way() {
        for cmd in CLASSES.iter().flat_map(|class| (class << 16)..=(class << 16 | 0xffff)).map(ControlCmd) {
            assert_eq!(may_carry_pids(cmd), ROWS.iter().any(|row| row.cmd == cmd), "{cmd:?}");
        }
        // Sent very often by nvidia-smi, NVML and PyTorch: memory, clocks, utilisation, information of a GPU, semaphores.
        for cmd in
            [0x2080_1303, 0x2080_1301, 0x2080_0102, 0x2080_0110, 0x2080_014a, 0x2080_0131, 0x2080_3030, 0x0000_0101]
        {
            assert!(!may_carry_pids(ControlCmd(cmd)), "{cmd:#x}");
        }
        for cmd in (0..=u32::MAX).step_by(4099).map(ControlCmd) {
            assert_eq!(may_carry_pids(cmd), ROWS.iter().any(|row| row.cmd == cmd), "{cmd:?}");
        }
    }

    #[test]
    fn sizes_are_those_of_the_headers() {
        // Sizes from DWARF of the compiled SDK headers and from NVML's calls; typed here again to check the arithmetic.
        let expected: &[(Control, &[u32])] = &[
            (Control::GpuGetPids, &[0xee4]),
            (Control::GpuGetPidInfo, &[0x1f48, 0x2588, 0x3848]),
            (Control::PerfGpumonUtilV2, &[0xb870, 0x84d0, 0xc610, 0xda50]),
            (Control::PerfGpumonUtil, &[0x18]),
            (Control::AccountingPids, &[0x3e8c]),
            (Control::AccountingInfo, &[0x30]),
            (Control::NvencSessions, &[0x10]),
            (Control::NvencSessionsV2, &[0x4004]),
            (Control::NvfbcSessions, &[0x3404]),
            (Control::HwpmReservation, &[0xc]),
            (Control::RcErrorReport, &[0x984]),
            (Control::FbClientAllocations, &[0x20]),
            (Control::AccountingInfoV2, &[0x40]),
            (Control::MemoryLimitEvent, &[]),
        ];
        for control in Control::ALL {
            let mut sizes = [0; 8];
            let mut n = 0;
            for row in ROWS.iter().filter(|row| row.control == control) {
                if !sizes[..n].contains(&row.params_size) {
                    sizes[n] = row.params_size;
                    n += 1;
                }
            }
            sizes[..n].sort_unstable();
            let mut listed = [0; 8];
            let list = expected.iter().find(|(c, _)| *c == control).unwrap().1;
            listed[..list.len()].copy_from_slice(list);
            listed[..list.len()].sort_unstable();
            assert_eq!(sizes, listed, "{control:?}");
        }
    }

    #[test]
    fn every_field_lies_inside_its_parameters() {
        for row in ROWS {
            let size = row.params_size;
            let fits = |offset: u16, bytes: u32| assert!(u32::from(offset) + bytes <= size, "{row:?}");
            match row.layout {
                Layout::List(rows) | Layout::Query(rows) => {
                    fits(rows.count, 4);
                    fits(rows.first, u32::from(rows.stride) * u32::from(rows.capacity));
                    assert!(rows.pid + 4 <= rows.stride && rows.stride % 4 == 0);
                }
                Layout::QueryOne { pid, began } => {
                    fits(pid, 4);
                    fits(began, 8);
                }
                Layout::One { pid, count } => {
                    fits(pid, 4);
                    fits(count.unwrap_or(0), 4);
                }
                Layout::Samples(s) => {
                    fits(s.first, u32::from(s.stride) * u32::from(s.capacity));
                    assert!(s.kernel_pointer.unwrap_or(0) + 8 <= s.engine_stride);
                }
                Layout::Embedded { pointer, inner } => {
                    fits(pointer, 8);
                    if let Inner::Rows(rows) = inner {
                        fits(rows.count, 4);
                    }
                }
            }
        }
    }
}
